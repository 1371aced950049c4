"""Experience as numpy columns `[T, N, ...]`, with what belongs to a fragment's ends beside them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from podium.core.spaces import Columns, under


@dataclass(frozen=True)
class Finals:
    """The observations that ended episodes where the env already gave the next episode's: sparse, by `(t, n)`."""

    t: np.ndarray
    n: np.ndarray
    cols: Columns

    @classmethod
    def concat(cls, parts: Sequence[Finals], widths: Sequence[int]) -> Finals:
        offsets = np.cumsum([0, *widths[:-1]])
        return cls(
            np.concatenate([part.t for part in parts]),
            np.concatenate([part.n + offset for part, offset in zip(parts, offsets, strict=True)]),
            {key: np.concatenate([part.cols[key] for part in parts]) for key in parts[0].cols},
        )

    def within(self, times: slice, envs: slice) -> Finals:
        keep = (self.t >= times.start) & (self.t < times.stop) & (self.n >= envs.start) & (self.n < envs.stop)
        every = envs.step or 1
        keep &= (self.n - envs.start) % every == 0
        t, n = self.t[keep] - times.start, (self.n[keep] - envs.start) // every
        return Finals(t, n, {key: column[keep] for key, column in self.cols.items()})


@dataclass(frozen=True)
class Batch:
    """Columns of one length T and width N. `first` and `last` hold per-env values before the first and after the last
    row.

    `valid` [T, N] is always there: steps are counted from it, and rows that are not valid (the reset row of an env that
    resets on the step after the end, or padding) teach nothing.
    """

    cols: Columns
    first: Columns = field(default_factory=dict)
    last: Columns = field(default_factory=dict)
    finals: Finals | None = None

    def __post_init__(self) -> None:
        if not self.cols:
            raise ValueError("a batch needs at least one column")
        name, column = next(iter(self.cols.items()))
        if column.ndim < 2:
            raise ValueError(f"column {name!r} has shape {column.shape}, expected [T, N, ...]")
        if "valid" not in self.cols:
            self.cols["valid"] = np.ones(column.shape[:2], bool)
        for key, other in self.cols.items():
            if other.shape[:2] != column.shape[:2]:
                raise ValueError(
                    f"column {key!r} has shape {other.shape}, expected {column.shape[:2]} first, as {name!r}"
                )
        for side, ends in (("first", self.first), ("last", self.last)):
            for key, other in ends.items():
                if other.shape[:1] != (column.shape[1],):
                    raise ValueError(f"{side} {key!r} has shape {other.shape}, expected [{column.shape[1]}, ...]")

    def __getitem__(self, name: str) -> np.ndarray:
        try:
            return self.cols[name]
        except KeyError:
            raise KeyError(f"no column {name!r}; there are {', '.join(sorted(self.cols))}") from None

    @property
    def length(self) -> int:
        return self.cols["valid"].shape[0]

    @property
    def width(self) -> int:
        return self.cols["valid"].shape[1]

    @property
    def steps(self) -> int:
        """How many real env steps the batch holds."""
        return int(np.count_nonzero(self.cols["valid"]))

    @property
    def nbytes(self) -> int:
        finals = self.finals.cols if self.finals is not None else {}
        return sum(column.nbytes for group in (self.cols, self.first, self.last, finals) for column in group.values())

    def with_columns(self, **columns: np.ndarray) -> Batch:
        """The same batch with more (or replaced) columns."""
        return replace(self, cols={**self.cols, **columns})

    def group(self, path: str) -> Columns:
        """The columns at or under a path: `group("obs")` is `{"obs": ...}` or `{"obs/a": ..., "obs/b": ...}`."""
        return under(self.cols, path)

    def slice(self, times: slice = slice(None), envs: slice = slice(None)) -> Batch:
        """A window of neighbours, or of envs every so-manieth. What stood at the ends stays only where the window still
        touches them.

        A window that starts later has the recurrent state of its start if the columns hold it (`state/...`); one that
        ends earlier bootstraps from the observation of the row after it.
        """
        times, envs = _window(times, self.length), _window(envs, self.width, every=envs.step or 1)
        first = {key: column[envs] for key, column in self.first.items()}
        if times.start > 0:
            first = {key: self.cols[key][times.start, envs] for key in self.first if key in self.cols}
        last = {key: column[envs] for key, column in self.last.items()}
        if times.stop < self.length:
            last = {key: self.cols[key][times.stop, envs] for key in self.last if key in self.cols}
        cols = {key: column[times, envs] for key, column in self.cols.items()}
        return Batch(cols, first, last, self.finals.within(times, envs) if self.finals is not None else None)

    def sequences(self, length: int) -> Batch:
        """Cut the fragment into windows of `length` side by side: `[T, N]` becomes `[length, T / length * N]`."""
        if length < 1 or self.length % length:
            raise ValueError(f"sequence length {length} does not divide the fragment's {self.length} steps")
        if length == self.length:
            return self
        return concat([self.slice(slice(t, t + length)) for t in range(0, self.length, length)])

    def rows(self) -> np.ndarray:
        """The flat indices (t * N + n) of the valid rows."""
        return np.flatnonzero(self.cols["valid"])

    def minibatches(self, size: int, rng: np.random.Generator) -> Iterator[Columns]:
        """Valid rows, shuffled, as flat columns of about `size` rows."""
        flat = {key: column.reshape(-1, *column.shape[2:]) for key, column in self.cols.items()}
        for index in split_rows(self.rows(), size, rng):
            yield {key: column[index] for key, column in flat.items()}


def _window(part: slice, size: int, every: int = 1) -> slice:
    start, stop, step = part.indices(size)
    if step != every or step < 1 or start >= stop:
        raise ValueError(f"a batch can't be cut to {start}:{stop}:{step} of {size}, expected a window of neighbours")
    return slice(start, stop, step)


def split_rows(rows: np.ndarray, size: int, rng: np.random.Generator, of: int | None = None) -> list[np.ndarray]:
    """Shuffle row indices and cut them into equal parts as near to `size` as can be; no part is a small remainder. With
    `of` there are as many parts as that many rows would give: those who learn together take equally many steps."""
    if not len(rows) and of is None:
        return []
    parts = max(1, round((len(rows) if of is None else of) / size))
    return np.array_split(rng.permutation(rows), parts) if parts > 1 else [rows]


def concat(batches: Sequence[Batch]) -> Batch:
    """Batches of one length side by side (along N). Columns that not every batch has are an error."""
    head = batches[0]
    if len(batches) == 1:
        return head
    for other in batches[1:]:
        if other.length != head.length:
            raise ValueError(f"batches of {head.length} and {other.length} steps can't stand side by side")
        for mine, theirs in ((head.cols, other.cols), (head.first, other.first), (head.last, other.last)):
            if odd := sorted(mine.keys() ^ theirs.keys()):
                raise ValueError(f"column {odd[0]!r} is in one batch and not in another")
    finals = [batch.finals for batch in batches if batch.finals is not None]
    if finals and len(finals) < len(batches):
        raise ValueError("final observations are in one batch and not in another")
    return Batch(
        {key: np.concatenate([batch.cols[key] for batch in batches], axis=1) for key in head.cols},
        {key: np.concatenate([batch.first[key] for batch in batches]) for key in head.first},
        {key: np.concatenate([batch.last[key] for batch in batches]) for key in head.last},
        Finals.concat(finals, [batch.width for batch in batches]) if finals else None,
    )


def empty_aligned(shape: Sequence[int], dtype: Any) -> np.ndarray:
    """Uninitialised memory that starts on a cache line, so that vector code rounds the same in every run."""
    kind = np.dtype(dtype)
    size = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
    raw = np.empty(size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size].view(kind).reshape(shape)
