"""A replay from which what surprised the policy most is drawn most often (Schaul et al., 2016)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from podium.core.batch import Batch
from podium.core.errors import TrainingError
from podium.core.spaces import Frames
from podium.replay.base import ERROR
from podium.replay.rows import as_flat
from podium.replay.tree import SumTree
from podium.replay.uniform import UniformReplay

LEAST = 1e-6
"""Added to every error, so that a row that was right once may still be drawn."""


class PrioritizedReplay(UniformReplay):
    """A row's priority is its error to the power `alpha`, and the greatest so far until its error is known. `sample`
    weighs rows by (how many there are times their probability) to the power -`beta`, over the greatest such weight among
    those drawn."""

    def __init__(
        self,
        capacity: int,
        *,
        seed: int = 0,
        frames: Mapping[str, Frames] | None = None,
        n_step: int = 1,
        alpha: float = 0.6,
    ) -> None:
        super().__init__(capacity, seed=seed, frames=frames, n_step=n_step)
        self.alpha = alpha
        self._greatest = 1.0
        self._tree: SumTree | None = None

    @property
    def total(self) -> float:
        return self._tree.total if self._tree is not None else 0.0

    @property
    def nbytes(self) -> int:
        return self.rows.nbytes + (self._tree.nbytes if self._tree is not None else 0)

    def insert(self, batches: list[Batch | None]) -> None:
        """Rows about which a fragment says how wrong the policy was begin with that as their priority."""
        shown = next(batch for batch in batches if batch is not None)
        if ERROR not in shown.cols:
            super().insert(batches)
            return
        unknown = np.full(shown[ERROR].shape, np.nan, np.float32)
        errors = np.concatenate([unknown if batch is None else batch[ERROR] for batch in batches], axis=1)
        super().insert([None if batch is None else _without_errors(batch) for batch in batches])
        leaves, errors = self._leaves(self._newest), errors[len(errors) - len(self._newest) :].reshape(-1)
        known = np.isfinite(errors) & (self._weights.get(leaves) > 0)
        self._prioritize(leaves[known], errors[known])

    def _leave(self, at: np.ndarray) -> None:
        leaves = self._leaves(at)
        self._usable -= int(np.count_nonzero(self._weights.get(leaves)))
        self._weights.set(leaves, 0.0)

    def _enter(self, at: np.ndarray) -> None:
        leaves = self._leaves(at)
        usable = as_flat(self.rows.usable)[leaves]
        self._weights.set(leaves, np.where(usable, self._greatest, 0.0))
        self._usable += int(np.count_nonzero(usable))

    @property
    def _weights(self) -> SumTree:
        if self._tree is None:
            self._tree = SumTree(self.rows.length * self.rows.width)
        return self._tree

    def _leaves(self, at: np.ndarray) -> np.ndarray:
        """The leaves of every stream's rows."""
        return self.rows.flat(at[:, None], np.arange(self.rows.width)).reshape(-1)

    def _draw(self, count: int, beta: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """One row from each of `count` equal parts of all priorities."""
        tree, rows = self._weights, self.rows
        leaves = tree.find((np.arange(count) + self._rng.random(count)) * (tree.total / count))
        stream, slot = np.divmod(leaves, rows.length)
        at = rows.tail + (slot - rows.tail) % rows.length
        weight = (tree.get(leaves) * (self.size / tree.total)) ** -beta
        return at, stream, (weight / weight.max()).astype(np.float32)

    def feedback(self, ids: np.ndarray, errors: np.ndarray) -> None:
        """Errors of any sign. One that is not finite ends the training; rows that are gone by now are passed over."""
        if not np.isfinite(errors).all():
            raise TrainingError(
                f"a priority is {errors[~np.isfinite(errors)][0]}, expected a finite error; try a lower --lr"
            )
        rows = self.rows
        first, end = self.span(rows.head)
        at = ids // rows.width
        here = (at >= first) & (at < end)
        self._prioritize(rows.flat(at[here], ids[here] % rows.width), errors[here])

    def _prioritize(self, leaves: np.ndarray, errors: np.ndarray) -> None:
        priority = (np.abs(errors.astype(np.float64)) + LEAST) ** self.alpha
        self._greatest = max(self._greatest, float(priority.max(initial=0.0)))
        self._weights.set(leaves, priority)

    def get_state(self, known: Collection[str] = ()) -> tuple[dict[str, Any], dict[str, Any]]:
        state, pieces = super().get_state(known)
        state["greatest"] = self._greatest
        if self._tree is not None:
            state["priorities"] = self._tree.get(self._leaves(np.arange(*self.span(self.rows.head))))
        return state, pieces

    def set_state(self, state: Mapping[str, Any], pieces: Mapping[str, Any]) -> None:
        self._greatest = state["greatest"]
        self._tree, self._usable = None, 0
        super().set_state(state, pieces)
        if "priorities" in state:
            self._weights.set(self._leaves(np.arange(*self.span(self.rows.head))), state["priorities"])


def _without_errors(batch: Batch) -> Batch:
    return replace(batch, cols={name: column for name, column in batch.cols.items() if name != ERROR})
