"""A table of normal noise that everyone who searches shares: a perturbation is where in it it begins, a whole number."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from podium.core import seeding


def table(seed: int, size: int) -> np.ndarray:
    """`size` normal numbers, to be sent once."""
    return seeding.generator(seed, "noise table").standard_normal(size, np.float32)


def offsets(seed: int, update: int, count: int, size: int, length: int) -> np.ndarray:
    """Where the perturbations of an update begin in a table of `size` numbers, each `length` numbers long. They are those
    of the update, whoever plays them."""
    return seeding.generator(seed, "noise", update).integers(0, size - length + 1, count)


class Noises:
    """Perturbations as pieces of the table."""

    def __init__(self, table: np.ndarray, offsets: np.ndarray, length: int) -> None:
        self._table, self._offsets, self._length = table, offsets, length

    def __len__(self) -> int:
        return len(self._offsets)

    def __getitem__(self, number: int) -> np.ndarray:
        if not 0 <= number < len(self):
            raise IndexError(number)
        at = int(self._offsets[number])
        return self._table[at : at + self._length]

    def __iter__(self) -> Iterator[np.ndarray]:
        return (self[number] for number in range(len(self)))

    def sum(self, weights: np.ndarray) -> np.ndarray:
        """The perturbations times their weights, added up in their order: so it rounds the same everywhere."""
        total = np.zeros(self._length, np.float32)
        for weight, noise in zip(weights, self, strict=True):
            if weight:
                total += np.float32(weight) * noise
        return total
