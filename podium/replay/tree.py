"""A tree of sums: which leaf a number falls on, for many numbers at once, and many leaves changed at once."""

from __future__ import annotations

import numpy as np

FAN = 16
"""Children of a node: few levels, each of which is one operation on a small table."""


class SumTree:
    """`size` leaves of weight 0 or more. With the weights of each family stand their running sums, which are what a
    descent compares with and what the parent weighs, so that both round alike and no descent ends on a weight of 0."""

    def __init__(self, size: int) -> None:
        self.size = size
        widths = [size]
        while widths[-1] > FAN:
            widths.append(-(-widths[-1] // FAN))
        # The leaves first; each level is padded, so that it is a table of families.
        self._weights = [np.zeros((-(-width // FAN), FAN)) for width in widths]
        self._running = [np.zeros_like(level) for level in self._weights]

    @property
    def total(self) -> float:
        return float(self._running[-1][0, -1])

    @property
    def nbytes(self) -> int:
        return 2 * sum(level.nbytes for level in self._weights)

    def get(self, leaves: np.ndarray) -> np.ndarray:
        return self._weights[0].reshape(-1)[leaves]

    def set(self, leaves: np.ndarray, weights: np.ndarray | float) -> None:
        """Change these leaves; of one that is named twice the last weight counts."""
        if not len(leaves):
            return
        for level, running in zip(self._weights, self._running, strict=True):
            level.reshape(-1)[leaves] = weights
            leaves = _distinct(leaves // FAN)
            sums = level[leaves].cumsum(axis=1)
            running[leaves], weights = sums, sums[:, -1]

    def find(self, numbers: np.ndarray) -> np.ndarray:
        """The leaf on which each number from 0 to below the total falls, when the leaves lie end to end."""
        nodes, rest = np.zeros(len(numbers), np.int64), numbers
        rows = np.arange(len(numbers))
        for running in reversed(self._running):
            reached = running[nodes]
            rest = np.minimum(rest, np.nextafter(reached[:, -1], 0.0))  # a difference may round up onto the end
            child = (reached > rest[:, None]).argmax(axis=1)
            before = np.where(child > 0, reached[rows, child - 1], 0.0)
            nodes, rest = nodes * FAN + child, rest - before
        return nodes


def _distinct(nodes: np.ndarray) -> np.ndarray:
    """Each of them once, in their order."""
    ordered = np.sort(nodes)
    return ordered[np.concatenate([[True], ordered[1:] != ordered[:-1]])]
