"""The spaces of observations and actions: what they hold, how to sample and check them, as plain data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Columns = dict[str, np.ndarray]


@dataclass(frozen=True, eq=False)
class Box:
    """Arrays of one shape and dtype, each element between its `low` and `high`."""

    low: np.ndarray
    high: np.ndarray
    dtype: np.dtype

    @classmethod
    def of(cls, low: Any, high: Any, shape: Sequence[int], dtype: Any = np.float32) -> Box:
        kind = np.dtype(dtype)
        return cls(np.broadcast_to(np.asarray(low, kind), shape), np.broadcast_to(np.asarray(high, kind), shape), kind)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Box)
            and self.dtype == other.dtype
            and np.array_equal(self.low, other.low)
            and np.array_equal(self.high, other.high)
        )

    @property
    def shape(self) -> tuple[int, ...]:
        return self.low.shape

    @property
    def bounded(self) -> bool:
        return bool(np.isfinite(self.low).all() and np.isfinite(self.high).all())

    def sample(self, rng: np.random.Generator, n: int) -> np.ndarray:
        if self.dtype.kind in "iub":
            return rng.integers(self.low, self.high, size=(n, *self.shape), dtype=self.dtype, endpoint=True)
        low = np.where(np.isfinite(self.low), self.low, np.where(np.isfinite(self.high), self.high - 2, -1))
        high = np.where(np.isfinite(self.high), self.high, low + 2)
        share = rng.random((n, *self.shape))
        return np.clip((low * (1 - share) + high * share).astype(self.dtype), low, high)

    def outside(self, rows: np.ndarray) -> np.ndarray:
        """For rows `[n, ...]`: which rows leave the bounds (NaN does)."""
        inside = (rows >= self.low) & (rows <= self.high)
        return np.logical_not(np.all(inside, axis=tuple(range(1, inside.ndim))))

    def to_json(self) -> dict[str, Any]:
        return {"box": [self.low.tolist(), self.high.tolist()], "shape": list(self.shape), "dtype": self.dtype.str}

    def __str__(self) -> str:
        lows, highs = np.unique(self.low), np.unique(self.high)
        bounds = f"{lows[0]:g} to {highs[0]:g}" if len(lows) == len(highs) == 1 else "bounds per element"
        return f"Box{list(self.shape)} {self.dtype} ({bounds})"


@dataclass(frozen=True)
class Discrete:
    """One of `n` whole numbers, from 0 in columns; the env itself counts them from `start`."""

    n: int
    start: int = 0
    shape = ()
    dtype = np.dtype(np.int64)

    def sample(self, rng: np.random.Generator, n: int) -> np.ndarray:
        return rng.integers(self.n, size=n)

    def outside(self, rows: np.ndarray) -> np.ndarray:
        return (rows < 0) | (rows >= self.n)

    def to_json(self) -> dict[str, Any]:
        return {"discrete": self.n, "start": self.start}

    def __str__(self) -> str:
        return f"Discrete({self.n})" if not self.start else f"Discrete({self.n}, start={self.start})"


@dataclass(frozen=True)
class MultiDiscrete:
    """Several whole numbers, the i-th below `nvec[i]`; the env itself counts them from `start`, if it has one."""

    nvec: tuple[int, ...]
    start: tuple[int, ...] = ()
    dtype = np.dtype(np.int64)

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.nvec),)

    def sample(self, rng: np.random.Generator, n: int) -> np.ndarray:
        return rng.integers(np.array(self.nvec), size=(n, len(self.nvec)))

    def outside(self, rows: np.ndarray) -> np.ndarray:
        return np.any((rows < 0) | (rows >= np.array(self.nvec)), axis=1)

    def to_json(self) -> dict[str, Any]:
        return {"multi_discrete": list(self.nvec), "start": list(self.start)}

    def __str__(self) -> str:
        return f"MultiDiscrete({list(self.nvec)})"


@dataclass(frozen=True)
class MultiBinary:
    """`n` zeros and ones."""

    n: int
    dtype = np.dtype(np.int8)

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.n,)

    def sample(self, rng: np.random.Generator, n: int) -> np.ndarray:
        return rng.integers(2, size=(n, self.n), dtype=np.int8)

    def outside(self, rows: np.ndarray) -> np.ndarray:
        return ((rows != 0) & (rows != 1)).any(axis=1)

    def to_json(self) -> dict[str, Any]:
        return {"multi_binary": self.n}

    def __str__(self) -> str:
        return f"MultiBinary({self.n})"


@dataclass(frozen=True)
class Dict:
    """Named spaces; a value is a dict. As columns, each leaf stands under its path."""

    spaces: Mapping[str, Space]

    def to_json(self) -> dict[str, Any]:
        return {"dict": {key: space.to_json() for key, space in self.spaces.items()}}

    def __str__(self) -> str:
        return "Dict(" + ", ".join(f"{key}: {space}" for key, space in self.spaces.items()) + ")"


@dataclass(frozen=True)
class Tuple:
    """Spaces in order; a value is a tuple. As columns, each leaf stands under its index."""

    spaces: tuple[Space, ...]

    def to_json(self) -> dict[str, Any]:
        return {"tuple": [space.to_json() for space in self.spaces]}

    def __str__(self) -> str:
        return "Tuple(" + ", ".join(map(str, self.spaces)) + ")"


Leaf = Box | Discrete | MultiDiscrete | MultiBinary
Space = Leaf | Dict | Tuple


@dataclass(frozen=True)
class Frames:
    """An observation that is made of several frames in a row: `count` equal parts along `axis`, the oldest first."""

    count: int
    axis: int

    def shape(self, whole: Sequence[int]) -> tuple[int, ...]:
        """The shape of one frame of an observation of this shape."""
        sizes = list(whole)
        sizes[self.axis] //= self.count
        return tuple(sizes)

    def newest(self, columns: np.ndarray, lead: int) -> np.ndarray:
        """The last frame of observations that have `lead` axes before their own."""
        axis = lead + self.axis
        size = columns.shape[axis] // self.count
        return columns[(slice(None),) * axis + (slice(-size, None),)]

    def joined(self, frames: np.ndarray, lead: int) -> np.ndarray:
        """`[..., count, *frame]` as observations; where they join along their first axis, nothing is copied."""
        shape = list(frames.shape[lead + 1 :])
        shape[self.axis] *= self.count
        if self.axis:
            frames = np.moveaxis(frames, lead, lead + self.axis)
        return frames.reshape(*frames.shape[:lead], *shape)


def children(space: Dict | Tuple) -> Iterator[tuple[Any, Space]]:
    """The keys and spaces directly inside."""
    yield from space.spaces.items() if isinstance(space, Dict) else enumerate(space.spaces)


def leaves(space: Space, path: str) -> dict[str, Leaf]:
    """Every array of the space by path: `{"obs": Box}` for a plain space, `{"obs/camera": Box, ...}` for a nested."""
    if isinstance(space, Dict | Tuple):
        return {p: leaf for key, inner in children(space) for p, leaf in leaves(inner, f"{path}/{key}").items()}
    return {path: space}


def flatten(space: Space, value: Any, path: str) -> Columns:
    """A nested value (of one env or of many) as columns by path; a missing key raises KeyError with its path."""
    if not isinstance(space, Dict | Tuple):
        return {path: np.asarray(value)}
    columns: Columns = {}
    for key, inner in children(space):
        try:
            part = value[key]
        except (KeyError, IndexError, TypeError):
            raise KeyError(f"{path}/{key}") from None
        columns.update(flatten(inner, part, f"{path}/{key}"))
    return columns


def offset(leaf: Leaf) -> np.ndarray:
    """What the env adds to the whole numbers of a leaf's columns."""
    return np.asarray(getattr(leaf, "start", 0) or 0)


def under(columns: Mapping[str, Any], path: str) -> dict[str, Any]:
    """The entries at or under a path."""
    return {key: column for key, column in columns.items() if key == path or key.startswith(path + "/")}


def unflatten(space: Space, columns: Mapping[str, Any], path: str) -> Any:
    """The nested value whose columns these are."""
    if isinstance(space, Dict):
        return {key: unflatten(inner, columns, f"{path}/{key}") for key, inner in children(space)}
    if isinstance(space, Tuple):
        return tuple(unflatten(inner, columns, f"{path}/{key}") for key, inner in children(space))
    return columns[path]


def from_json(data: Mapping[str, Any]) -> Space:
    """The space that `to_json` wrote."""
    kind, body = next(iter(data.items()))
    if kind == "box":
        low, high = (np.array(bound, dtype=data["dtype"]).reshape(data["shape"]) for bound in body)
        return Box(low, high, np.dtype(data["dtype"]))
    if kind == "discrete":
        return Discrete(body, data["start"])
    if kind == "multi_discrete":
        return MultiDiscrete(tuple(body), tuple(data["start"]))
    if kind == "multi_binary":
        return MultiBinary(body)
    if kind == "dict":
        return Dict({key: from_json(inner) for key, inner in body.items()})
    return Tuple(tuple(from_json(inner) for inner in body))
