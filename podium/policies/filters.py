"""Running mean and variance of observations, merged exactly from any number of parts."""

from __future__ import annotations

from typing import Any

import numpy as np

from podium.core.sgd import Reduce

Moments = tuple[float, np.ndarray, np.ndarray]


class RunningMoments:
    """Count, mean and sum of squared deviations per element; float64, by Chan's parallel formula."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.count = 0.0
        self.mean = np.zeros(shape)
        self.squares = np.zeros(shape)

    def update(self, rows: np.ndarray, reduce: Reduce | None = None) -> None:
        """Add rows `[n, ...]`, and those of all who learn together."""
        count, mean, squares = moments_of(rows)
        self.merge(*((count, mean, squares) if reduce is None else _over_all(count, mean, squares, reduce)))

    def merge(self, count: float, mean: np.ndarray, squares: np.ndarray) -> None:
        """Add the moments of other rows."""
        if not count:
            return
        total = self.count + count
        delta = mean - self.mean
        self.squares = self.squares + squares + np.square(delta) * (self.count * count / total)
        self.mean = self.mean + delta * (count / total)
        self.count = total

    def scale(self) -> np.ndarray:
        """One over the standard deviation; one before there are two rows."""
        if self.count < 2:
            return np.ones_like(self.mean)
        return 1.0 / np.sqrt(self.squares / self.count + 1e-8)

    def get_state(self) -> dict[str, Any]:
        return {"count": self.count, "mean": self.mean.copy(), "squares": self.squares.copy()}

    def set_state(self, state: dict[str, Any]) -> None:
        self.count, self.mean, self.squares = state["count"], state["mean"].copy(), state["squares"].copy()


def moments_of(rows: np.ndarray) -> Moments:
    """Count, mean and sum of squared deviations of rows `[n, ...]`."""
    if not len(rows):
        return 0.0, np.zeros(rows.shape[1:]), np.zeros(rows.shape[1:])
    mean = rows.mean(axis=0, dtype=np.float64)
    return float(len(rows)), mean, np.square(rows - mean).sum(axis=0, dtype=np.float64)


def _over_all(count: float, mean: np.ndarray, squares: np.ndarray, reduce: Reduce) -> Moments:
    """The moments of everyone's rows together: first the mean, then the deviations from that."""
    added = reduce(np.append((count * mean).ravel(), count)) * reduce.size
    total = float(added[-1])
    if not total:
        return 0.0, mean, squares
    common = (added[:-1] / total).reshape(mean.shape)
    about_common = squares + count * np.square(mean - common)
    return total, common, reduce(about_common.ravel()).reshape(mean.shape) * reduce.size
