"""Figures of a run: metrics with declared merge rules, stage timers, and the window of the last finished episodes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from time import perf_counter
from typing import Any

import numpy as np

# A mean is held as (weighted total, weight), every other rule as one number.
Held = tuple[float, float] | float
MERGES: dict[str, Callable[[Any, Any], Held]] = {
    "mean": lambda mine, theirs: (mine[0] + theirs[0], mine[1] + theirs[1]),
    "sum": lambda mine, theirs: mine + theirs,
    "max": lambda mine, theirs: float(np.maximum(mine, theirs)),
    "min": lambda mine, theirs: float(np.minimum(mine, theirs)),
    "last": lambda mine, theirs: theirs,
}


class Metrics:
    """Named figures, each with the rule by which two of its values become one.

    A value of None says that there is none yet and records nothing. NaN is carried, and wins every merge but `last`.
    """

    def __init__(self) -> None:
        self._held: dict[str, tuple[str, Held]] = {}

    def mean(self, name: str, value: float | None, weight: float = 1.0) -> None:
        """A mean over `weight` things; one over nothing is absent."""
        if weight < 0:
            raise ValueError(f"metric {name!r} has weight {weight}, expected 0 or more")
        if value is not None:
            self._merge(name, "mean", (float(value) * float(weight), float(weight)) if weight else (0.0, 0.0))

    def sum(self, name: str, value: float | None) -> None:
        self._record(name, "sum", value)

    def max(self, name: str, value: float | None) -> None:
        self._record(name, "max", value)

    def min(self, name: str, value: float | None) -> None:
        self._record(name, "min", value)

    def last(self, name: str, value: float | None) -> None:
        self._record(name, "last", value)

    def update(self, other: Metrics) -> None:
        """Merge the other's figures into these, each by its rule."""
        for name, (rule, held) in other._held.items():
            self._merge(name, rule, held)

    @classmethod
    def merge(cls, parts: Iterable[Metrics]) -> Metrics:
        """All parts as one, merged in their order; the parts stay as they are."""
        merged = cls()
        for part in parts:
            merged.update(part)
        return merged

    def values(self) -> dict[str, float]:
        """The figures as plain numbers, in the order in which they were first recorded."""
        figures: dict[str, float] = {}
        for name, (_, held) in self._held.items():
            if not isinstance(held, tuple):
                figures[name] = held
            elif held[1] > 0:
                figures[name] = held[0] / held[1]
        return figures

    def _record(self, name: str, rule: str, value: float | None) -> None:
        if value is not None:
            self._merge(name, rule, float(value))

    def _merge(self, name: str, rule: str, value: Held) -> None:
        known, held = self._held.get(name, (rule, None))
        if known != rule:
            raise ValueError(f"metric {name!r} is recorded as {rule}, but its rule is {known}")
        self._held[name] = (rule, value if held is None else MERGES[rule](held, value))


class Timers:
    """Seconds by stage. A stage inside another counts in both."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        start = perf_counter()
        try:
            yield
        finally:
            self.add(name, perf_counter() - start)

    def add(self, name: str, seconds: float) -> None:
        self._seconds[name] = self._seconds.get(name, 0.0) + seconds

    def take(self) -> dict[str, float]:
        """The seconds of each stage since the last take."""
        taken, self._seconds = self._seconds, {}
        return taken


class EpisodeWindow:
    """The returns and lengths of the last `size` finished episodes, and how many there have been in all."""

    def __init__(self, size: int = 100) -> None:
        self.size = size
        self.episodes = 0
        self._returns: deque[float] = deque(maxlen=size)
        self._lengths: deque[int] = deque(maxlen=size)

    def add(self, returns: Iterable[float], lengths: Iterable[int]) -> None:
        for episode_return, length in zip(returns, lengths, strict=True):
            self._returns.append(float(episode_return))
            self._lengths.append(int(length))
            self.episodes += 1

    @property
    def mean(self) -> float | None:
        return sum(self._returns) / len(self._returns) if self._returns else None

    @property
    def length_mean(self) -> float | None:
        return sum(self._lengths) / len(self._lengths) if self._lengths else None

    @property
    def full(self) -> bool:
        return len(self._returns) >= self.size

    def get_state(self) -> dict[str, Any]:
        return {"episodes": self.episodes, "returns": list(self._returns), "lengths": list(self._lengths)}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Take a state back; a smaller window keeps the newest of it."""
        self.episodes = int(state["episodes"])
        self._returns = deque(map(float, state["returns"]), maxlen=self.size)
        self._lengths = deque(map(int, state["lengths"]), maxlen=self.size)
