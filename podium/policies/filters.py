"""Running mean and variance of observations, merged exactly from any number of parts."""

from __future__ import annotations

from typing import Any

import numpy as np


class RunningMoments:
    """Count, mean and sum of squared deviations per element; float64, by Chan's parallel formula."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.count = 0.0
        self.mean = np.zeros(shape)
        self.squares = np.zeros(shape)

    def update(self, rows: np.ndarray) -> None:
        """Add rows `[n, ...]`."""
        if len(rows):
            mean = rows.mean(axis=0, dtype=np.float64)
            self.merge(float(len(rows)), mean, np.square(rows - mean).sum(axis=0, dtype=np.float64))

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
