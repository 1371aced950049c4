"""Settings as frozen dataclasses: each field says what it is, its unit and its range, and is checked when it is set."""

from __future__ import annotations

import dataclasses
import itertools
import math
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import SimpleNamespace
from typing import Any, Literal, TypeVar

from podium.core.errors import ConfigError, did_you_mean

C = TypeVar("C", bound="Config")


@dataclass(frozen=True)
class Schedule:
    """A number that changes over the run: straight lines between `(progress, value)` points, progress from 0 to 1."""

    points: tuple[tuple[float, float], ...]

    def at(self, progress: float) -> float:
        before = self.points[0]
        for point in self.points[1:]:
            if progress <= point[0]:
                share = max((progress - before[0]) / (point[0] - before[0]), 0.0)
                return before[1] * (1 - share) + point[1] * share
            before = point
        return before[1]

    def __str__(self) -> str:
        """As it is typed; the progress is left out where `parse` would find the same."""
        bare = "->".join(_exact(value) for _, value in self.points)
        if len(self.points) > 1 and Schedule.parse(bare) == self:
            return bare
        return "->".join(f"{_exact(value)}@{_exact(progress)}" for progress, value in self.points)

    @classmethod
    def parse(cls, text: str) -> Schedule:
        """`3e-4->0` over the whole run; `0.2->0.1@0.5->0` with the progress at which a value is reached."""
        parts = [part.split("@") for part in text.split("->")]
        values = [float(part[0]) for part in parts]
        even = [i / max(len(parts) - 1, 1) for i in range(len(parts))]
        progress = [float(part[1]) if len(part) > 1 else even[i] for i, part in enumerate(parts)]
        if not all(map(math.isfinite, [*values, *progress])):
            raise ValueError("points are finite numbers")
        if any(len(part) > 2 for part in parts) or any(b <= a for a, b in itertools.pairwise(progress)):
            raise ValueError("points must have growing progress")
        if progress[0] < 0 or progress[-1] > 1:
            raise ValueError("progress goes from 0 to 1")
        return cls(tuple(zip(progress, values, strict=True)))


def _exact(number: float) -> str:
    short = f"{number:g}"
    return short if float(short) == number else repr(float(number))


SCHEDULE_WORDS = ", or a schedule such as 0.1->0"
BOOLS = {"true": True, "false": False, "yes": True, "no": False, "1": True, "0": False}


def setting(
    default: Any,
    help: str,
    *,
    unit: str = "",
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    only: tuple[str, Sequence[Any]] | None = None,
    internal: bool = False,
) -> Any:
    """A config field. `low`/`high` are inclusive bounds, `above` an exclusive one.

    `only=(field, values)` says that the setting is read only while another has one of these values: setting it in any
    other case is refused, since nothing would read it. An `internal` one is no flag of the command line.
    """
    metadata = {
        "help": help,
        "unit": unit,
        "low": low,
        "high": high,
        "above": above,
        "only": only,
        "internal": internal,
    }
    if isinstance(default, dict):
        return dataclasses.field(default_factory=default.copy, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def flag(name: str) -> str:
    """A field's name as it is typed."""
    return "--" + name.replace("_", "-")


@dataclass(frozen=True)
class Config:
    """The base of every algorithm's settings."""

    @classmethod
    def build(cls: type[C], given: Mapping[str, Any]) -> C:
        """Check what was given (text or values) and fill in the rest; refuse what is unknown or would not be read."""
        fields = {field.name: field for field in dataclasses.fields(cls)}
        for name in given:
            if name not in fields:
                raise ConfigError(f"unknown setting {flag(name)}{did_you_mean(flag(name), map(flag, fields))}")
        hints = typing.get_type_hints(cls)
        config = cls(**{name: coerce(fields[name], hints[name], value) for name, value in given.items()})
        for name in given:
            config._check_read(name, fields[name])
        config.check()
        return config

    def _check_read(self, name: str, field: dataclasses.Field[Any]) -> None:
        only = field.metadata["only"]
        if only is not None and getattr(self, only[0]) not in only[1] and getattr(self, name) != field.default:
            wanted = " or ".join(f"{flag(only[0])} {show(value)}" for value in only[1])
            raise ConfigError(
                f"{flag(name)} {show(getattr(self, name))} would not be read: {flag(only[0])} is "
                f"{show(getattr(self, only[0]))}, and it goes with {wanted}"
            )

    def check(self) -> None:
        """What several fields must fulfil together; algorithms add theirs."""

    def replace(self: C, **changes: Any) -> C:
        return type(self).build({**self.to_json(), **changes})

    def at(self, progress: float) -> SimpleNamespace:
        """Every setting's value at some progress (0 to 1) of the run."""
        constant, scheduled = self._by_kind
        return SimpleNamespace(**constant, **{name: schedule.at(progress) for name, schedule in scheduled.items()})

    @cached_property
    def _by_kind(self) -> tuple[dict[str, Any], dict[str, Schedule]]:
        """The settings that stay as they are, and those that follow a schedule."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        scheduled = {name: value for name, value in values.items() if isinstance(value, Schedule)}
        return {name: value for name, value in values.items() if name not in scheduled}, scheduled

    def to_json(self) -> dict[str, Any]:
        return {field.name: plain(getattr(self, field.name)) for field in dataclasses.fields(self)}


def value_at(value: Any, progress: float) -> Any:
    """A setting's value at some progress (0 to 1) of the run."""
    return value.at(progress) if isinstance(value, Schedule) else value


def plain(value: Any) -> Any:
    """A setting as JSON writes it."""
    return str(value) if isinstance(value, Schedule) else list(value) if isinstance(value, tuple) else value


def show(value: Any) -> str:
    """A setting as it is typed."""
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, tuple | list) else str(value)


def _members(kind: Any) -> tuple[Any, ...]:
    origin = typing.get_origin(kind)
    return typing.get_args(kind) if origin in (types.UnionType, typing.Union) else (kind,)


def describe(kind: Any, metadata: Mapping[str, Any]) -> str:
    """What a field expects, in words: `a number from 0 to 1, or a schedule such as 1->0`."""
    kinds = [member for member in _members(kind) if member is not type(None)]
    words = []
    for member in kinds:
        if typing.get_origin(member) is Literal:
            words.append("one of " + ", ".join(map(str, typing.get_args(member))))
        elif typing.get_origin(member) is tuple:
            words.append("a list such as 64,64" if typing.get_args(member)[0] is int else "a list such as a,b")
        elif member is not Schedule:
            words.append(
                {int: "a whole number", float: "a number", bool: "true or false", str: "text"}.get(member, "an object")
            )
    text = " or ".join(words)
    low, high, above = (metadata[key] for key in ("low", "high", "above"))
    if low is not None or above is not None or high is not None:
        text += f" from {low:g}" if low is not None else f" above {above:g}" if above is not None else ""
        text += f" to {high:g}" if high is not None and (low is not None or above is not None) else ""
        text += f" up to {high:g}" if high is not None and low is None and above is None else ""
    if Schedule in kinds:
        text += SCHEDULE_WORDS
    return text + (", or none" if type(None) in _members(kind) else "")


def coerce(field: dataclasses.Field[Any], kind: Any, value: Any) -> Any:
    """A value or its text as the field's type, within its range."""
    try:
        result = _convert(kind, value)
        for number in _numbers(result):
            _check_range(number, _bounds(result, field.metadata))
        return result
    except (ValueError, TypeError):
        expected = describe(kind, field.metadata)
        unit = f" ({field.metadata['unit']})" if field.metadata["unit"] else ""
        choices = [str(c) for m in _members(kind) if typing.get_origin(m) is Literal for c in typing.get_args(m)]
        hint = did_you_mean(str(value), choices)
        raise ConfigError(f"{flag(field.name)} is {show(value)!r}, expected {expected}{unit}{hint}") from None


def _convert(kind: Any, value: Any) -> Any:
    members = _members(kind)
    if type(None) in members and (value is None or value == "none"):
        return None
    for member in members:
        if typing.get_origin(member) is Literal and value in typing.get_args(member):
            return value
    for member in members:
        if member is type(None) or typing.get_origin(member) is Literal:
            continue
        try:
            return _convert_one(member, value)
        except (ValueError, TypeError, OverflowError):
            continue
    raise ValueError


def _convert_one(kind: Any, value: Any) -> Any:
    if typing.get_origin(kind) is tuple:
        (inner, *_) = typing.get_args(kind)
        items = [part for part in value.split(",") if part] if isinstance(value, str) else value
        if not isinstance(items, Sequence):
            items = [items]
        return tuple(_convert_one(inner, item) for item in items)
    if kind is Schedule:
        return value if isinstance(value, Schedule) else Schedule.parse(_text(value))
    if kind is bool:
        if isinstance(value, bool):
            return value
        if _text(value).lower() not in BOOLS:
            raise ValueError
        return BOOLS[value.lower()]
    if kind is int:
        if isinstance(value, bool):
            raise ValueError
        number = float(_text(value).replace("_", "")) if isinstance(value, str) else value
        if int(number) != number:
            raise ValueError
        return int(_text(value)) if isinstance(value, str) and value.lstrip("+-").isdigit() else int(number)
    if kind is float:
        if isinstance(value, bool) or math.isnan(float(value)):
            raise ValueError
        return float(value)
    if kind is str:
        return _text(value)
    if kind is Any:
        return value
    raise ValueError


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError
    return value


def _numbers(value: Any) -> list[float]:
    if isinstance(value, Schedule):
        return [number for _, number in value.points]
    if isinstance(value, tuple):
        return [number for number in value if isinstance(number, int | float)]
    return [value] if isinstance(value, int | float) and not isinstance(value, bool) else []


def _bounds(value: Any, metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    """A schedule may touch an exclusive bound: a step size begins or ends at 0, it only must not stay there."""
    if isinstance(value, Schedule) and metadata["above"] is not None:
        return {**metadata, "low": metadata["above"], "above": None}
    return metadata


def _check_range(number: float, metadata: Mapping[str, Any]) -> None:
    low, high, above = (metadata[key] for key in ("low", "high", "above"))
    if (low is not None and number < low) or (high is not None and number > high):
        raise ValueError
    if above is not None and number <= above:
        raise ValueError


def help_lines(cls: type[Config]) -> list[str]:
    """Two columns: each setting with its default, and what it is and may be."""
    hints = typing.get_type_hints(cls)
    rows = []
    for field in dataclasses.fields(cls):
        if field.metadata["internal"]:
            continue
        kind, unit = hints[field.name], field.metadata["unit"]
        mark = "~" if Schedule in _members(kind) else " "
        default = "none" if field.default is None else show(plain(field.default))
        expected = describe(kind, field.metadata).replace(SCHEDULE_WORDS, "")
        rows.append(
            (f"{mark} {flag(field.name)} {default}", f"{field.metadata['help']} [{expected}{unit and f', {unit}'}]")
        )
    width = max(len(left) for left, _ in rows)
    return [f"{left:<{width}}  {right}" for left, right in rows]
