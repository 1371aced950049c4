"""The errors that Podium raises on purpose, and the exit code that each means on the command line."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class PodiumError(Exception):
    """A failure with a cause that one line can tell. `exit_code` is what the command line ends with."""

    exit_code = 1


class UsageError(PodiumError):
    """What could be known before the first env step: a wrong name, setting, folder or resource."""

    exit_code = 2


class ConfigError(UsageError):
    """A setting that is unknown, out of range, of the wrong kind, or that nothing would read."""


class EnvCheckError(UsageError):
    """An env that breaks its own declaration, found by the check before the first training step."""


class MissingExtra(UsageError):
    """A part of Podium that needs a package which is not installed."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} needs an extra that is not installed: pip install 'podium[{extra}]'")
        self._given = (what, extra)

    def __reduce__(self) -> tuple[type[MissingExtra], tuple[str, str]]:
        return type(self), self._given


class EnvDataError(PodiumError):
    """An env returned something during training that it must not: NaN, a wrong shape, a value outside its space."""


class CheckpointError(PodiumError):
    """A checkpoint that is truncated, altered or of another schema."""


class WorkerDied(PodiumError):
    """The process or object behind a handle is gone."""


class ArgumentLost(WorkerDied):
    """A value that a call was given is gone with whoever made it; the one who was called is well."""


class GroupBroken(PodiumError):
    """A member of a group could not meet the others, since another one is gone."""


class CallTimedOut(PodiumError, TimeoutError):
    """A call that did not end within its time."""


class TrainingError(PodiumError):
    """Learning produced something that training can't go on with, such as a loss that is not finite."""


def known_names(name: str, known: Iterable[str]) -> str:
    """The nearest known name and all of them, for the end of an error's line."""
    names = sorted(known)
    return f"{did_you_mean(name, names) or ';'} known: {', '.join(names) or 'none'}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'clip'?` when some known name is near, else the empty string."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else ""
