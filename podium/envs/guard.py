"""The checks of an env's data that stay on at every step: finite numbers, and values inside what was declared."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from podium.core.errors import EnvDataError
from podium.core.spaces import Box, Columns, Leaf

BOUNDS_EVERY = 8
TOLERANCE = 1e-5


class Guard:
    """Looks after preallocated columns. Whole numbers are range-checked at every step, Box bounds at every eighth."""

    def __init__(self, leaves: dict[str, Leaf], columns: Columns, bounds: bool, first: int = 0) -> None:
        self._first = first
        self._floats = [(p, columns[p].reshape(-1)) for p, leaf in leaves.items() if leaf.dtype.kind == "f"]
        self._wholes = [
            (p, leaf, columns[p].reshape(len(columns[p]), -1).view(np.uint64), _limit(leaf))
            for p, leaf in leaves.items()
            if not isinstance(leaf, Box) and leaf.dtype == np.int64
        ]
        boxes = {p: leaf for p, leaf in leaves.items() if bounds and isinstance(leaf, Box)}
        self._boxes = [(p, leaf, columns[p], *tolerant(leaf)) for p, leaf in boxes.items() if not _endless(leaf)]
        self._columns = columns

    def check(self, reward: np.ndarray, step: int) -> None:
        """Raise for what the env must not return."""
        self.check_finite(step)
        if not math.isfinite(reward.dot(reward)):
            raise_not_finite("reward", reward, step, self._first)
        for path, leaf, whole, limit in self._wholes:
            if (whole >= limit).any():
                self._raise_outside(path, leaf, whole >= limit, step)
        if self._boxes and step % BOUNDS_EVERY == 0:
            self.check_bounds(step)

    def check_finite(self, step: int) -> None:
        for path, flat in self._floats:
            if not math.isfinite(flat.dot(flat)):
                raise_not_finite(path, self._columns[path], step, self._first)

    def check_bounds(self, step: int) -> None:
        for path, leaf, column, low, high in self._boxes:
            outside = (column < low) | (column > high)
            if outside.any():
                self._raise_outside(path, leaf, outside, step)

    def _raise_outside(self, path: str, leaf: Leaf, outside: np.ndarray, step: int) -> None:
        row = int(np.argwhere(outside)[0, 0])
        raise EnvDataError(
            f"{path} is {worst(leaf, self._columns[path][row]):g} in env {row + self._first} at step {step}, "
            f"outside its declared {leaf}"
        )


def raise_not_finite(
    path: str, column: np.ndarray, step: int, first: int = 0, rows: Sequence[int] | None = None
) -> None:
    """Raise, naming the env, where a value is not finite; a sum of squares overflows sooner, so look again."""
    bad = ~np.isfinite(column.reshape(len(column), -1))
    if not bad.any():
        return
    row = int(np.flatnonzero(bad.any(axis=1))[0])
    what = "NaN" if np.isnan(column[row]).any() else "infinite"
    env = (row if rows is None else int(rows[row])) + first
    raise EnvDataError(f"{path} is {what} in env {env} at step {step}")


def check_finals(finals: Columns, rows: np.ndarray, step: int, first: int = 0) -> None:
    """The same for the observations that ended episodes."""
    for path, column in finals.items():
        if column.dtype.kind == "f" and not math.isfinite(np.vdot(column, column)):
            raise_not_finite(path, column, step, first, rows.tolist())


def tolerant(box: Box) -> tuple[np.ndarray, np.ndarray]:
    """Bounds with room for rounding."""
    if box.dtype.kind != "f":
        return box.low, box.high
    low, high = (np.where(np.isfinite(bound), bound, 0) for bound in (box.low, box.high))
    return box.low - TOLERANCE * (1 + abs(low)), box.high + TOLERANCE * (1 + abs(high))


def worst(leaf: Leaf, value: np.ndarray) -> float:
    """The element that is furthest outside, to show it."""
    if isinstance(leaf, Box):
        excess = np.maximum(leaf.low.astype(float) - value, value - leaf.high.astype(float))
    else:
        excess = np.maximum(-value.astype(float), value - np.asarray(getattr(leaf, "nvec", getattr(leaf, "n", 2))))
    return float(np.ravel(value)[np.argmax(excess)])


def _limit(leaf: Leaf) -> np.ndarray:
    return np.atleast_1d(np.array(getattr(leaf, "nvec", getattr(leaf, "n", 2)), np.uint64))


def _endless(box: Box) -> bool:
    full = np.iinfo(box.dtype) if box.dtype.kind in "iu" else None
    if full is not None:
        return bool((box.low == full.min).all() and (box.high == full.max).all())
    return bool(np.isinf(box.low).all() and np.isinf(box.high).all())
