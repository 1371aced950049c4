"""Observations that no row of the ring shows: few, kept apart, each known by the row that led to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from podium.core.spaces import Columns

FEW = 64


class Beside:
    """`at` says for each slot of the ring which entry is its own, or -1. It grows with what is in it at once."""

    def __init__(self, at: np.ndarray, like: Mapping[str, np.ndarray]) -> None:
        self.at = at
        self.at[:] = -1
        self.columns: Columns = {name: np.empty((FEW, *part.shape[2:]), part.dtype) for name, part in like.items()}
        self._free = np.arange(FEW - 1, -1, -1)

    def keep(self, slots: np.ndarray | int, streams: np.ndarray, cols: Mapping[str, np.ndarray]) -> None:
        """An observation for each of these rows."""
        count = len(streams)
        while len(self._free) < count:
            self._grow()
        entries, self._free = self._free[len(self._free) - count :][::-1], self._free[: len(self._free) - count]
        for name, part in cols.items():
            self.columns[name][entries] = part
        self.at[slots, streams] = entries

    def forget(self, slots: np.ndarray) -> None:
        """Give up what belongs to every row of these slots."""
        entries = self.at[slots]
        self._free = np.concatenate([self._free, entries[entries >= 0]])
        self.at[slots] = -1

    def _grow(self) -> None:
        size = len(next(iter(self.columns.values())))
        self.columns = {name: np.concatenate([part, np.empty_like(part)]) for name, part in self.columns.items()}
        self._free = np.concatenate([np.arange(2 * size - 1, size - 1, -1), self._free])

    @property
    def nbytes(self) -> int:
        return self.at.nbytes + sum(part.nbytes for part in self.columns.values())

    def entries(self, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
        """What belongs to these slots: the place in `slots`, the stream, and the observations."""
        place, stream = np.nonzero(self.at[slots] >= 0)
        entries = self.at[slots[place], stream]
        return place, stream, {name: part[entries] for name, part in self.columns.items()}
