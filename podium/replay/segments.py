"""A replay's rows in checkpoints: pieces that never change once they are full, each with a name of its content.

A checkpoint that has a piece of that name already need not be given it again: it is linked, not written anew.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np

from podium.replay.rows import Rows

PIECES = 16
PREFIX = "replay-"


class Segments:
    """Cuts the rows at fixed places. The newest rows, and the oldest where nobody has their piece, are loose."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._names: dict[int, str] = {}

    @property
    def _size(self) -> int:
        return -(-self._rows.length // PIECES)

    def get_state(self, known: Collection[str]) -> tuple[dict[str, Any], dict[str, Any]]:
        """The state of the rows, and the pieces by their names: None for those that are known."""
        rows, size = self._rows, self._size
        pieces: dict[str, Any] = {}
        loose, names = [], {}
        for number in range(rows.tail // size, -(-rows.head // size)):
            first, end = max(number * size, rows.tail), min((number + 1) * size, rows.head)
            full = end - first == size and end < rows.head  # an end may still break off at the next insertion
            name = self._names.get(number)
            if name is None and full:
                name = f"{PREFIX}{number:08d}-{_digest(rows.chunk(first, end))}"
            if name is not None and (full or name in known):
                names[number] = name
                pieces[name] = None if name in known else rows.chunk(first, end)
            else:
                loose.append(rows.chunk(first, end))
        self._names = names
        named = [[number, name] for number, name in names.items()]
        return {**rows.get_state(), "pieces": named, "loose": loose}, pieces

    def set_state(self, state: Mapping[str, Any], pieces: Mapping[str, Any]) -> None:
        self._rows.set_state(state)
        self._names = {int(number): name for number, name in state["pieces"]}
        for chunk in (*(pieces[name] for name in self._names.values()), *state["loose"]):
            self._rows.put_chunk(chunk)
        self._rows.settle()


def _digest(chunk: Mapping[str, Any]) -> str:
    found = hashlib.sha256()
    for path, array in _arrays(chunk, ""):
        found.update(f"{path} {array.dtype.str} {array.shape}".encode())
        found.update(np.ascontiguousarray(array).data)
    return found.hexdigest()[:16]


def _arrays(tree: Mapping[str, Any], path: str) -> Iterator[tuple[str, np.ndarray]]:
    for name, part in tree.items():
        if isinstance(part, Mapping):
            yield from _arrays(part, f"{path}/{name}")
        else:
            yield f"{path}/{name}", np.asarray(part)
