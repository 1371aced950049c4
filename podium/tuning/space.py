"""What a search may try: each `--search name=...` as a dimension, checked against the setting of that name."""

from __future__ import annotations

import dataclasses
import itertools
import math
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from podium.algorithms.common.base import RunConfig
from podium.core.config import Schedule, coerce, flag, plain, show
from podium.core.errors import ConfigError, UsageError, did_you_mean

SHARED = ("steps", "seed", "stop_return", "engine", "address", "checkpoint_every", "keep")
"""Settings that all trials have in common: what they are measured by, and where they run."""

FORMS = (
    "a range such as 0.1:0.9, log:1e-5:1e-2, int:1:8 or logint:16:512, or choices such as 0.1,0.2,0.3 or 64,64|128,128"
)
FACTORS = (0.8, 1.25)
"""What exploring multiplies a number by (Jaderberg et al., 2017, section 4)."""

FIGURES = 6

Value = float | int | str | bool | None


@dataclass(frozen=True)
class Dimension:
    """One setting's range from `low` to `high`, or its choices. `then` is the rest of a schedule that a number begins."""

    name: str
    text: str
    low: float = 0.0
    high: float = 0.0
    whole: bool = False
    log: bool = False
    choices: tuple[Value, ...] = ()
    then: str = ""

    @property
    def ends(self) -> tuple[Value, ...]:
        return self.choices or (self.low, self.high)

    def setting(self, value: Value) -> Value:
        """A value as the setting takes it: numbers of a range with as many figures as anybody would type."""
        typed = value if self.choices or not isinstance(value, float) else self._within(value)
        return f"{typed!r}{self.then}" if self.then else typed

    def grid(self) -> tuple[Value, ...]:
        """Every value, where they can be counted."""
        if self.choices:
            return self.choices
        if self.whole and not self.log:
            return tuple(range(int(self.low), int(self.high) + 1))
        raise UsageError(
            f"--search {self.text}: --sampler grid tries every value, expected choices such as 0.1,0.2 or whole numbers "
            "such as int:1:8"
        )

    def draw(self, rng: np.random.Generator) -> Value:
        """Any value, each as likely as another (of a log range: each power)."""
        if self.choices:
            return self.choices[int(rng.integers(len(self.choices)))]
        share = float(rng.random())
        if self.log:
            return self._within(math.exp(math.log(self.low) * (1 - share) + math.log(self.high) * share))
        return self._within(self.low + share * (self.high - self.low))

    def explore(self, value: Value, rng: np.random.Generator) -> Value:
        """A value near this one: a number times 0.8 or 1.25, a choice's neighbour."""
        up = bool(rng.integers(2))
        if self.choices:
            place = self.choices.index(value) + (1 if up else -1)
            return self.choices[min(max(place, 0), len(self.choices) - 1)]
        assert isinstance(value, int | float)
        moved = self._within(value * FACTORS[up])
        if moved == value and self.whole:
            return self._within(value + (1 if up else -1))
        return self.draw(rng) if value == 0 else moved

    def _within(self, number: float) -> float | int:
        number = number if self.whole else float(f"{number:.{FIGURES}g}")
        number = min(max(number, self.low), self.high)
        return round(number) if self.whole else number


@dataclass(frozen=True)
class Space:
    """All dimensions of a search, in the order in which they were given."""

    dimensions: tuple[Dimension, ...]

    def settings(self, params: Mapping[str, Value]) -> dict[str, Value]:
        """Drawn values as settings of a run."""
        return {one.name: one.setting(params[one.name]) for one in self.dimensions}

    def draw(self, rng: np.random.Generator) -> dict[str, Value]:
        return {one.name: one.draw(rng) for one in self.dimensions}

    def explore(self, params: Mapping[str, Value], rng: np.random.Generator) -> dict[str, Value]:
        return {one.name: one.explore(params[one.name], rng) for one in self.dimensions}

    def grid(self) -> list[dict[str, Value]]:
        names = [one.name for one in self.dimensions]
        return [
            dict(zip(names, values, strict=True)) for values in itertools.product(*(d.grid() for d in self.dimensions))
        ]


def parse(texts: Sequence[str], config: type[RunConfig], given: Mapping[str, Any]) -> Space:
    """The space of `name=range` texts. What is searched can't be given as well."""
    if not texts:
        raise UsageError(f"nothing to search: expected --search NAME=..., with {FORMS}")
    dimensions = [_dimension(text, config) for text in texts]
    seen: set[str] = set()
    for one in dimensions:
        if one.name in seen:
            raise UsageError(f"--search {one.name} is given twice")
        if one.name in given:
            raise UsageError(f"{flag(one.name)} is given and searched: --search {one.text}")
        seen.add(one.name)
    return Space(tuple(dimensions))


def _dimension(text: str, config: type[RunConfig]) -> Dimension:
    name, equals, words = text.partition("=")
    name = name.removeprefix("--").replace("-", "_")
    if not equals or not name:
        raise UsageError(f"--search is {text!r}, expected NAME=... with {FORMS}")
    fields = {field.name: field for field in dataclasses.fields(config) if not field.metadata["internal"]}
    if name not in fields:
        raise ConfigError(f"--search {text}: unknown setting {flag(name)}{did_you_mean(flag(name), map(flag, fields))}")
    if name in SHARED:
        raise UsageError(f"--search {text}: all trials have the same {flag(name)}")
    field, kind = fields[name], typing.get_type_hints(config)[name]
    try:
        if ":" in words and "|" not in words and "," not in words:
            found = _range(name, text, words, int in _members(kind) and float not in _members(kind))
        else:
            found = _choices(name, text, words, field, kind)
        for value in found.ends:
            coerce(field, kind, found.setting(value))
    except ConfigError as error:
        raise ConfigError(f"--search {text}: {error}") from None
    return found


def _range(name: str, text: str, words: str, only_whole: bool) -> Dimension:
    words, arrow, rest = words.partition("->")
    parts = words.split(":")
    form = parts.pop(0) if parts[0] in ("log", "int", "logint") else ""
    try:
        low, high = map(float, parts)
    except ValueError:
        raise ConfigError(f"{words!r} is no range, expected {FORMS}") from None
    log, whole = form.startswith("log"), form.endswith("int") or only_whole
    if not (math.isfinite(low) and math.isfinite(high)):
        raise ConfigError("a range goes from one finite number to another")
    if low >= high:
        raise ConfigError(f"the range from {low:g} to {high:g} is {'empty' if low == high else 'backwards'}")
    if log and low <= 0:
        raise ConfigError(f"a log range lies above 0, and this one begins at {low:g}")
    if whole and (low != int(low) or high != int(high)):
        raise ConfigError(f"expected whole numbers, not {low:g} to {high:g}")
    if whole:
        low, high = int(low), int(high)
    return Dimension(name, text, low, high, whole, log, then=arrow + rest)


def _choices(name: str, text: str, words: str, field: dataclasses.Field[Any], kind: Any) -> Dimension:
    parts = [part.strip() for part in words.split("|" if "|" in words else ",")]
    if not all(parts):
        raise ConfigError(f"{words!r} has an empty choice, expected {FORMS}")
    values = [_storable(coerce(field, kind, part)) for part in parts]
    if len({show(value) for value in values}) < len(values):
        raise ConfigError(f"{words!r} has a choice twice")
    if len(values) < 2:
        raise ConfigError(
            f"{words!r} is one choice alone, expected {FORMS}; what does not vary is a setting like any other"
        )
    return Dimension(name, text, choices=tuple(values))


def _storable(value: Any) -> Value:
    """As a database keeps it."""
    return show(plain(value)) if isinstance(value, tuple | Schedule) else value


def _members(kind: Any) -> tuple[Any, ...]:
    return typing.get_args(kind) or (kind,)
