"""Gradient descent on one flat numpy vector: Adam, scaling gradients that are too long, averaging over those who learn
together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

BLOCK = 1 << 15
"""Numbers that are updated at once: so many, with what is worked out on the way, stay in the processor's cache."""


class Adam:
    """Adam (Kingma and Ba, 2015) over a vector, updated in place."""

    def __init__(self, size: int, eps: float, betas: tuple[float, float] = (0.9, 0.999)) -> None:
        self._eps, self._betas = eps, betas
        self._mean, self._square = np.zeros(size, np.float32), np.zeros(size, np.float32)
        self._steps = 0

    def step(self, vector: np.ndarray, gradient: np.ndarray, lr: float) -> None:
        """One update of `vector` against the gradient."""
        first, second = self._betas
        self._steps += 1
        bias = math.sqrt(1 - second**self._steps)
        size, eps = np.float32(lr * bias / (1 - first**self._steps)), np.float32(self._eps * bias)
        for at in range(0, len(vector), BLOCK):
            part = slice(at, at + BLOCK)
            mean, square, slope = self._mean[part], self._square[part], gradient[part]
            mean += np.float32(1 - first) * (slope - mean)
            square += np.float32(1 - second) * (np.square(slope) - square)
            vector[part] -= size * mean / (np.sqrt(square) + eps)

    def get_state(self) -> dict[str, Any]:
        return {"mean": self._mean.copy(), "square": self._square.copy(), "steps": self._steps}

    def set_state(self, state: Mapping[str, Any]) -> None:
        self._mean[:], self._square[:], self._steps = state["mean"], state["square"], int(state["steps"])


def shrink(norm: float, most: float | None) -> float:
    """What a gradient of this length is to be multiplied by, so that it is no longer than `most`."""
    return 1.0 if most is None or norm <= most else most / (norm + 1e-6)


class Reduce(Protocol):
    """The mean of one array over all `size` who learn together, the same for each of them."""

    @property
    def size(self) -> int: ...
    def __call__(self, values: np.ndarray, /) -> np.ndarray: ...


def mean_over_rows(gradient: np.ndarray, rows: int, reduce: Reduce) -> np.ndarray:
    """The gradient over everyone's rows: the mean of all, each by its number of rows."""
    weighed = reduce(np.append(gradient * np.float32(rows), np.float32(rows)))
    return weighed[:-1] / max(weighed[-1], np.float32(1e-6))


def agreed(figures: Sequence[float], reduce: Reduce | None) -> float:
    """The mean of everyone's figures, of which some may have none: what all who learn together decide by."""
    told = np.array([sum(figures), len(figures)], np.float64)
    total, count = told if reduce is None else reduce(told)
    return float(total / max(count, 1e-9))
