"""What a replay is to those who fill it and learn from it, and how many bytes its rows take."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from podium.core.batch import Batch
from podium.core.spaces import Frames, Leaf, Space, leaves

NEXT = "next/"
"""What stands before the paths of the observations that the rows led to."""

ERROR = "error"
"""The column of a fragment that says how wrong the policy was about the transitions that the fragment completes: beside
each of its last rows that of the row which is drawn from then on, NaN where nobody knows."""

ROW_BYTES = 4 + 4 + 5
"""A row's reward, its place among what stands beside the ring, and its flags."""

PRIORITY_BYTES = 17
"""A leaf of the sum tree, its running sum, and its share of what is above it."""


@dataclass(frozen=True)
class Drawn:
    """Rows to learn on, and who they are, for what is found out about them."""

    batch: Batch
    ids: np.ndarray


class Replay(Protocol):
    """Keeps the newest rows of every stream. The arrays of what is drawn may be overwritten by the next `sample`.

    `insert` takes a fragment of each source, None where one has nothing this time. `feedback` says how wrong the policy
    was about what was drawn. A state's pieces never change under their names: those that are `known` are left out of it.
    """

    @property
    def size(self) -> int:
        """How many rows can be drawn."""
        ...

    @property
    def total(self) -> float:
        """What its rows weigh together, where one of several replays is drawn from by its share of that."""
        ...

    @property
    def nbytes(self) -> int: ...
    def insert(self, batches: list[Batch | None]) -> None: ...
    def sample(self, count: int, gamma: float, beta: float = 0.0) -> Drawn: ...
    def feedback(self, ids: np.ndarray, errors: np.ndarray) -> None: ...
    def get_state(self, known: Collection[str] = ()) -> tuple[dict[str, Any], dict[str, Any]]: ...
    def set_state(self, state: Mapping[str, Any], pieces: Mapping[str, Any]) -> None: ...


def row_bytes(
    observation: Space, action: Leaf, frames: Mapping[str, Frames] | None = None, prioritized: bool = False
) -> int:
    """What a transition takes up: each observation once, each frame of a stack once."""
    seen = 0
    for path, leaf in leaves(observation, "obs").items():
        shared = frames[path].count if frames and path in frames else 1
        seen += int(np.prod(leaf.shape, dtype=np.int64)) * leaf.dtype.itemsize // shared
    acted = int(np.prod(action.shape, dtype=np.int64)) * action.dtype.itemsize
    return seen + acted + ROW_BYTES + (PRIORITY_BYTES if prioritized else 0)


def side_by_side(batches: list[Batch | None]) -> Batch:
    """The fragments of every source as one; where a source has none, rows that are not valid stand in its place."""
    from podium.core.batch import concat

    shown = next(batch for batch in batches if batch is not None)
    return concat([_nothing_like(shown) if batch is None else batch for batch in batches])


def _nothing_like(batch: Batch) -> Batch:
    cols = {name: np.zeros_like(column) for name, column in batch.cols.items()}
    cols["start"] = np.ones_like(batch["start"])
    first, last = ({name: np.zeros_like(part) for name, part in ends.items()} for ends in (batch.first, batch.last))
    return Batch(cols, first, last, None if batch.finals is None else batch.finals.within(slice(0, 0), slice(0, 0)))
