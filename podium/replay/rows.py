"""The rows of a replay: a ring of `[rows, streams]` columns in which every observation stands once.

A stream is one env's rows in their order. The observation that follows a row is that of the next row; the one that
follows the newest row stands in the slot of the row to come. Observations that no row shows (those that ended episodes
by truncation, and those after which a stream broke off) stand beside the ring. Of observations that are stacks of frames
the ring holds the newest frame, and stacks are put together again when they are asked for. In memory a stream's rows
stand one behind the other, so that what is read of a few in a row is read in one go.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from podium.core.batch import Batch
from podium.core.errors import PodiumError, UsageError
from podium.core.spaces import Columns, Frames, under
from podium.replay.beside import Beside

FLAGS = ("terminated", "truncated", "valid", "start")


class Rows:
    """A ring for at least `capacity` rows in all. `at` counts a stream's rows from the first one ever; `tail` to `head`
    are there. Its columns are made when the first batch shows what there is."""

    def __init__(self, capacity: int, frames: Mapping[str, Frames] | None = None) -> None:
        self.capacity = capacity
        self.frames = dict(frames or {})
        self.lead = max((part.count for part in self.frames.values()), default=1) - 1
        self.columns: Columns = {}
        self.head = self.tail = 0
        self.length = self.width = 0
        self._reused: dict[tuple[Any, ...], np.ndarray] = {}

    # --- writing ---

    def begin(self, batch: Batch) -> None:
        """Make the columns for rows like those of the batch."""
        self._allocate(batch.width, {name: (part.shape[2:], part.dtype) for name, part in batch.cols.items()})

    def _allocate(self, width: int, shapes: Mapping[str, tuple[tuple[int, ...], np.dtype]]) -> None:
        self.width, self._shapes = width, dict(shapes)
        self.length = self.capacity // width + self.lead + 1
        n = (self.length, width)
        for name, (shape, dtype) in self._shapes.items():
            stack = self.frames.get(name)
            if name not in FLAGS:
                self.columns[name] = by_stream(n, stack.shape(shape) if stack else shape, dtype)
        self.terminated, self.done, self.start, self.usable = (by_stream(n, (), np.dtype(bool)) for _ in range(4))
        self._age = by_stream(n, (), np.dtype(np.uint8))
        self.seen = [name for name in self.columns if under({name: 0}, "obs") or under({name: 0}, "state")]
        self.beside = Beside(by_stream(n, (), np.dtype(np.int32)), {name: self.columns[name] for name in self.seen})
        self._stretch = np.zeros(self.width, np.int64)  # where the rows that are known to follow each other begin
        self._torn = np.zeros(self.width, bool)  # whether that was in the midst of an episode

    def insert(self, batch: Batch) -> None:
        """Append a fragment of every stream, once `check` let it pass."""
        rows = np.arange(self.head, self.head + batch.length)
        follows = self._follows(batch)
        self.beside.forget(rows % self.length)
        for name, column in self.columns.items():
            self._write(column, self._stored(name, batch[name], 2))
        done = batch["terminated"] | batch["truncated"]
        begins = batch["start"].copy()
        begins[0] |= ~follows
        stretch = np.maximum.accumulate(np.where(begins, rows[:, None], self._stretch), axis=0)
        torn = np.where(
            stretch < self.head, self._torn, ~batch["start"][np.maximum(stretch - self.head, 0), _every(batch)]
        )
        since = rows[:, None] - stretch
        age = np.minimum(since, self.lead)
        usable = batch["valid"] & ~(torn & (since < self.lead))
        for column, part in (
            (self.terminated, batch["terminated"]),
            (self.done, done),
            (self.start, begins),
            (self.usable, usable),
            (self._age, age),
        ):
            self._write(column, part)
        self._stretch, self._torn = stretch[-1], torn[-1]
        if batch.finals is not None:
            self._keep_finals(batch)
        self.head += batch.length
        self.tail = max(self.tail, self.head - self.length + 1)
        here = self.head % self.length
        for name in self.seen:
            self.columns[name][here] = self._stored(name, batch.last[name], 1)
        self.settle()

    def check(self, batch: Batch) -> None:
        """Refuse rows that are not like those before, or that are more than the ring holds."""
        if batch.width != self.width:
            raise PodiumError(f"a sample of {batch.width} envs, and the replay was begun with {self.width}")
        if batch.length > self.length - self.lead - 1:
            raise UsageError(
                f"--buffer {self.capacity} holds {self.capacity // self.width} steps of each of {self.width} envs, and a "
                f"sample has {batch.length}: take a larger --buffer or a shorter --fragment"
            )
        for name, (shape, dtype) in self._shapes.items():
            given = batch[name]
            if given.shape[2:] != shape or given.dtype != dtype:
                raise PodiumError(
                    f"{name!r} is {list(given.shape[2:])} {given.dtype} in a sample, and was {list(shape)} {dtype} when "
                    "the replay began"
                )

    def _stored(self, name: str, column: np.ndarray, lead: int) -> np.ndarray:
        stack = self.frames.get(name)
        return column if stack is None else stack.newest(column, lead)

    def _write(self, column: np.ndarray, rows: np.ndarray) -> None:
        here = self.head % self.length
        first = min(len(rows), self.length - here)
        column[here : here + first] = rows[:first]
        column[: len(rows) - first] = rows[first:]

    def _follows(self, batch: Batch) -> np.ndarray:
        """Which streams go on where they were. Of the others the observation after the newest row is put beside the ring:
        a worker was replaced, envs began anew, or a fragment was lost."""
        if self.head == 0:
            return batch["start"][0].copy()
        here, before = self.head % self.length, (self.head - 1) % self.length
        same = np.ones(self.width, bool)
        for name in under(self.columns, "obs"):
            equal = self.columns[name][here] == self._stored(name, batch[name][0], 1)
            same &= equal.reshape(self.width, -1).all(axis=1)
        goes_on = same & ~(batch["start"][0] & ~self.done[before])
        open_end = self.usable[before] & ~self.terminated[before] & (self.beside.at[before] < 0)
        broken = np.flatnonzero(open_end & ~goes_on)
        if len(broken):
            self.beside.keep(before, broken, {name: self.columns[name][here, broken] for name in self.seen})
            self.done[before, broken] = True
        return same

    def _keep_finals(self, batch: Batch) -> None:
        finals = batch.finals
        assert finals is not None
        cut = batch["truncated"][finals.t, finals.n] & ~batch["terminated"][finals.t, finals.n]
        if cut.any():
            cols = {name: self._stored(name, finals.cols[name][cut], 1) for name in self.seen}
            self.beside.keep((self.head + finals.t[cut]) % self.length, finals.n[cut], cols)

    # --- reading ---

    def flat(self, at: np.ndarray, stream: np.ndarray) -> np.ndarray:
        """Rows as indices of columns whose two axes are one."""
        return stream * self.length + at % self.length

    def take(self, column: np.ndarray, at: np.ndarray, stream: np.ndarray) -> np.ndarray:
        """A column's values at rows of any shape."""
        return as_flat(column)[self.flat(at, stream)]

    def observed(self, name: str, at: np.ndarray, stream: np.ndarray) -> np.ndarray:
        """The observations (or states) at these rows, one axis of them."""
        stack = self.frames.get(name)
        if stack is None:
            return self._gather(name, self.flat(at, stream), "at")
        return stack.joined(self._gather(name, self._stack(at, stream, stack.count), "at"), 1)

    def after(self, name: str, last: np.ndarray, stream: np.ndarray) -> np.ndarray:
        """The observations that the rows led to; any for those that ended an episode by termination."""
        stack, final = self.frames.get(name), self.take(self.beside.at, last, stream)
        ended = np.flatnonzero(final >= 0)
        if stack is None:
            found = self._gather(name, self.flat(last + 1, stream), "after")
            found[ended] = self.beside.columns[name][final[ended]]
            return found
        index = self._stack(last + 1, stream, stack.count)
        index[ended, :-1] = self._stack(last[ended], stream[ended], stack.count)[:, 1:]
        frames = self._gather(name, index, "after")
        frames[ended, -1] = self.beside.columns[name][final[ended]]
        return stack.joined(frames, 1)

    def around(self, name: str, at: np.ndarray, stream: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The observations at these rows and those that they led to. Stacks share their frames."""
        stack = self.frames.get(name)
        if stack is None:
            return self.observed(name, at, stream), self.after(name, at, stream)
        index = np.concatenate([self._stack(at, stream, stack.count), self.flat(at + 1, stream)[:, None]], axis=1)
        frames = self._gather(name, index, "around")
        final = self.take(self.beside.at, at, stream)
        ended = np.flatnonzero(final >= 0)
        frames[ended, -1] = self.beside.columns[name][final[ended]]
        return stack.joined(frames[:, :-1], 1), stack.joined(frames[:, 1:], 1)

    def _stack(self, at: np.ndarray, stream: np.ndarray, count: int) -> np.ndarray:
        """`[B, count]`: the rows whose frames make each row's stack; an episode's first one fills the places before."""
        back = np.minimum(np.arange(count - 1, -1, -1), self.take(self._age, at, stream).astype(np.int64)[:, None])
        return self.flat(at[:, None] - back, stream[:, None])

    def _gather(self, name: str, index: np.ndarray, use: str) -> np.ndarray:
        """Rows by their flat indices, into memory that the next gathering of this size and use writes to again."""
        column = self.columns[name]
        key = (name, use, index.shape)
        if key not in self._reused:
            self._reused[key] = np.empty((*index.shape, *column.shape[2:]), column.dtype)
        return np.take(as_flat(column), index, axis=0, out=self._reused[key], mode="clip")

    # --- state ---

    def get_state(self) -> dict[str, Any]:
        """Everything but the rows, which `chunk` gives."""
        shapes = {name: [list(shape), dtype.name] for name, (shape, dtype) in self._shapes.items()}
        ends = {"stretch": self._stretch.copy(), "torn": self._torn.copy()}
        last = {name: self.columns[name][self.head % self.length].copy() for name in self.seen}
        return {"head": self.head, "tail": self.tail, "width": self.width, "shapes": shapes, "last": last, **ends}

    def set_state(self, state: Mapping[str, Any]) -> None:
        shapes = {name: (tuple(shape), np.dtype(dtype)) for name, (shape, dtype) in state["shapes"].items()}
        self._allocate(state["width"], shapes)
        self.head, self.tail = state["head"], state["tail"]
        self._stretch, self._torn = state["stretch"].copy(), state["torn"].copy()
        for name, part in state["last"].items():
            self.columns[name][self.head % self.length] = part

    def chunk(self, first: int, end: int) -> dict[str, Any]:
        """The rows from `first` to before `end`, as far as they lie in one piece without a copy."""
        here, rows = first % self.length, end - first
        slots = np.arange(first, end) % self.length
        whole = slice(here, here + rows) if here + rows <= self.length else slots
        flags = {name: part[whole] for name, part in self._flags().items()}
        place, stream, cols = self.beside.entries(slots)
        beside = {"place": place, "stream": stream, "columns": cols}
        return {
            "first": first,
            "columns": {name: column[whole] for name, column in self.columns.items()},
            "flags": flags,
            "beside": beside,
        }

    def put_chunk(self, chunk: Mapping[str, Any]) -> None:
        """The rows of a chunk, as far as they are still wanted."""
        count = len(next(iter(chunk["flags"].values())))
        rows = np.arange(chunk["first"], chunk["first"] + count)
        wanted = (rows >= self.tail) & (rows < self.head)
        slots = rows[wanted] % self.length
        for name, column in self.columns.items():
            column[slots] = chunk["columns"][name][wanted]
        for name, flag in self._flags().items():
            flag[slots] = chunk["flags"][name][wanted]
        beside = chunk["beside"]
        kept = wanted[beside["place"]]
        cols = {name: part[kept] for name, part in beside["columns"].items()}
        self.beside.keep(rows[beside["place"][kept]] % self.length, beside["stream"][kept], cols)

    def settle(self) -> None:
        """What follows from the rows for the observation after the newest."""
        here = self.head % self.length
        self._age[here] = np.minimum(self._age[here - 1].astype(np.int64) + 1, self.lead)

    def _flags(self) -> Columns:
        return {
            "terminated": self.terminated,
            "done": self.done,
            "start": self.start,
            "usable": self.usable,
            "age": self._age,
        }

    @property
    def nbytes(self) -> int:
        """The bytes of everything that is kept."""
        if not self.columns:
            return 0
        return sum(part.nbytes for part in (*self.columns.values(), *self._flags().values())) + self.beside.nbytes


def by_stream(n: tuple[int, int], shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Zeros `[rows, streams, ...]` that lie in memory stream by stream."""
    return np.zeros((n[1], n[0], *shape), dtype).swapaxes(0, 1)


def as_flat(column: np.ndarray) -> np.ndarray:
    """The two axes as one, as `Rows.flat` counts."""
    return column.swapaxes(0, 1).reshape(-1, *column.shape[2:])


def _every(batch: Batch) -> np.ndarray:
    return np.arange(batch.width)
