"""A replay from which every transition is drawn equally often, with returns over several steps."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from podium.core import seeding
from podium.core.batch import Batch
from podium.core.errors import PodiumError
from podium.core.spaces import Frames, under
from podium.replay.base import NEXT, Drawn, side_by_side
from podium.replay.rows import Rows
from podium.replay.segments import Segments

MASK = "mask"


class UniformReplay:
    """A transition is drawn once the `n_step` rows from it on are there, and their next observation.

    Drawn are flat rows as a batch `[1, B]`: `return` is the discounted sum of the rewards up to `n_step` rows or the
    episode's end, `discount` what the value of `next/obs` is worth: 0 after a termination, gamma to the number of rows
    summed else, also after a truncation.
    """

    def __init__(
        self, capacity: int, *, seed: int = 0, frames: Mapping[str, Frames] | None = None, n_step: int = 1
    ) -> None:
        self.rows = Rows(capacity, frames)
        self.n_step = n_step
        self._rng = seeding.generator(seed, "replay")
        self._segments = Segments(self.rows)
        self._usable = 0
        self._newest = np.zeros(0, np.int64)  # the rows that the last fragment completed

    @property
    def size(self) -> int:
        return self._usable

    @property
    def total(self) -> float:
        return float(self._usable)

    @property
    def nbytes(self) -> int:
        return self.rows.nbytes

    def span(self, head: int) -> tuple[int, int]:
        """With so many rows in all: the first that can be drawn, and the one behind the last."""
        rows = self.rows
        tail = max(rows.tail, head - rows.length + 1)
        behind = head - self.n_step + 1 - (MASK in rows.columns)  # a mask comes with the row that it is of
        first = tail + rows.lead if tail else 0
        return first, max(behind, first)

    def insert(self, batches: list[Batch | None]) -> None:
        batch, rows = side_by_side(batches), self.rows
        if not rows.columns:
            rows.begin(batch)
        rows.check(batch)
        before, now = self.span(rows.head), self.span(rows.head + batch.length)
        self._leave(np.arange(before[0], min(now[0], before[1])))
        rows.insert(batch)
        self._newest = np.arange(max(now[0], before[1]), now[1])
        self._enter(self._newest)

    def newest(self, gamma: float) -> Batch:
        """The transitions that the last fragment completed: of each step those of all streams."""
        at, stream = np.repeat(self._newest, self.rows.width), np.tile(np.arange(self.rows.width), len(self._newest))
        return self._transitions(at, stream, np.ones(len(at), np.float32), gamma)

    def _leave(self, at: np.ndarray) -> None:
        """These rows can't be drawn any more."""
        self._usable -= int(np.count_nonzero(self.rows.usable[at % self.rows.length]))

    def _enter(self, at: np.ndarray) -> None:
        """These rows may be drawn, as far as they teach something."""
        self._usable += int(np.count_nonzero(self.rows.usable[at % self.rows.length]))

    def sample(self, count: int, gamma: float, beta: float = 0.0) -> Drawn:
        self._check_any()
        at, stream, weight = self._draw(count, beta)
        return Drawn(self._transitions(at, stream, weight, gamma), at * self.rows.width + stream)

    def _check_any(self) -> None:
        if not self._usable:
            raise PodiumError(f"nothing can be drawn from a replay in which no row has the {self.n_step} that it needs")

    def feedback(self, ids: np.ndarray, errors: np.ndarray) -> None:
        """Every row is drawn as often as before."""

    def _draw(self, count: int, beta: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Rows, their streams, and the weight of each; rows that teach nothing are drawn again."""
        first, end = self.span(self.rows.head)
        width = self.rows.width
        drawn = np.empty(0, np.int64)
        while len(drawn) < count:
            some = self._rng.integers(first * width, end * width, size=count - len(drawn))
            drawn = np.concatenate([drawn, some[self.rows.take(self.rows.usable, some // width, some % width)]])
        return drawn // width, drawn % width, np.ones(count, np.float32)

    def _transitions(self, at: np.ndarray, stream: np.ndarray, weight: np.ndarray, gamma: float) -> Batch:
        rows = self.rows
        last, reward = at, rows.take(rows.columns["reward"], at, stream)
        steps = np.ones(len(at), np.int64)
        if self.n_step > 1:
            ahead, streams = at[:, None] + np.arange(self.n_step), stream[:, None]
            goes_on = ~rows.take(rows.done, ahead, streams)
            summed = np.ones(ahead.shape, bool)
            np.logical_and.accumulate(goes_on[:, :-1], axis=1, out=summed[:, 1:])
            weights = summed * gamma ** np.arange(self.n_step)
            reward = (rows.take(rows.columns["reward"], ahead, streams) * weights).sum(axis=1).astype(np.float32)
            steps = summed.sum(axis=1)
            last = at + steps - 1
        discount = gamma**steps * ~rows.take(rows.terminated, last, stream)
        cols = {"return": reward, "discount": discount.astype(np.float32), "weight": weight}
        for name, column in rows.columns.items():
            if name not in under({name: 0}, "obs") and name != "reward":
                cols[name] = rows.take(column, at, stream)
        for name in under(rows.columns, "obs"):
            if self.n_step == 1:
                cols[name], cols[NEXT + name] = rows.around(name, at, stream)
            else:
                cols[name], cols[NEXT + name] = rows.observed(name, at, stream), rows.after(name, last, stream)
        if MASK in rows.columns:
            cols[NEXT + MASK] = self._legal_after(last, stream)
        return Batch({name: column[None] for name, column in cols.items()})

    def _legal_after(self, last: np.ndarray, stream: np.ndarray) -> np.ndarray:
        """The masks of the observations that rows led to; of one beside the ring nobody has said what is legal there."""
        rows = self.rows
        legal = rows.take(rows.columns[MASK], last + 1, stream)
        legal[rows.take(rows.beside.at, last, stream) >= 0] = True
        return legal

    def get_state(self, known: Collection[str] = ()) -> tuple[dict[str, Any], dict[str, Any]]:
        state: dict[str, Any] = {"rng": seeding.get_state(self._rng), "rows": None}
        pieces: dict[str, Any] = {}
        if self.rows.columns:
            state["rows"], pieces = self._segments.get_state(known)
        return state, pieces

    def set_state(self, state: Mapping[str, Any], pieces: Mapping[str, Any]) -> None:
        seeding.set_state(self._rng, state["rng"])
        if state["rows"] is not None:
            self._segments.set_state(state["rows"], pieces)
            self._usable = 0
            self._enter(np.arange(*self.span(self.rows.head)))
