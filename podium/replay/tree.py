"""A tree of sums: which leaf a number falls on, for many numbers at once, and many leaves changed at once."""

from __future__ import annotations

import numpy as np

FAN = 16
"""Children of a node: few levels, each of which is one operation on a small table."""


class SumTree:
    """`size` leaves of weight 0 or more. A node is the running sum of its children, which is also what a descent
    compares with, so that both round alike and no descent ends on a leaf of weight 0."""

    def __init__(self, size: int) -> None:
        self.size = size
        widths = [size]
        while widths[-1] > 1:
            widths.append(-(-widths[-1] // FAN))
        # The leaves first; each level is padded, so that it is a table of families.
        self._levels = [np.zeros((-(-width // FAN), FAN)) for width in widths[:-1]] or [np.zeros((1, FAN))]
        self._total = 0.0

    @property
    def total(self) -> float:
        return self._total

    @property
    def nbytes(self) -> int:
        return sum(level.nbytes for level in self._levels)

    @property
    def leaves(self) -> np.ndarray:
        """Every leaf's weight; a view."""
        return self._levels[0].reshape(-1)[: self.size]

    def get(self, leaves: np.ndarray) -> np.ndarray:
        return self.leaves[leaves]

    def set(self, leaves: np.ndarray, weights: np.ndarray | float) -> None:
        """Change these leaves; of one that is named twice the last weight counts."""
        if not len(leaves):
            return
        self.leaves[leaves] = weights
        nodes = leaves
        for below, level in zip(self._levels, self._levels[1:], strict=False):
            nodes = _distinct(nodes // FAN)
            level.reshape(-1)[nodes] = below[nodes].cumsum(axis=1)[:, -1]
        self._total = float(self._levels[-1][0].cumsum()[-1])

    def find(self, numbers: np.ndarray) -> np.ndarray:
        """The leaf on which each number from 0 to below the total falls, when the leaves lie end to end."""
        nodes, rest = np.zeros(len(numbers), np.int64), numbers
        rows = np.arange(len(numbers))
        for level in reversed(self._levels):
            reached = level[nodes].cumsum(axis=1)
            rest = np.minimum(rest, np.nextafter(reached[:, -1], 0.0))  # a difference may round up onto the end
            child = (reached > rest[:, None]).argmax(axis=1)
            before = np.where(child > 0, reached[rows, child - 1], 0.0)
            nodes, rest = nodes * FAN + child, rest - before
        return nodes


def _distinct(nodes: np.ndarray) -> np.ndarray:
    """Each of them once, in their order."""
    ordered = np.sort(nodes)
    return ordered[np.concatenate([[True], ordered[1:] != ordered[:-1]])]
