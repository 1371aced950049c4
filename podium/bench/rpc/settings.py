"""What one measurement of the RPC benchmark is made of, and how flags become several of them along one axis."""

from __future__ import annotations

import ipaddress
import math
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

from podium.core.errors import UsageError, known_names

TRANSPORTS = ("torch_rpc", "grpc", "ray", "shm")
MEET_AT_A_PORT = ("torch_rpc", "grpc")
FEWEST, MOST = 3, 1000


@dataclass(frozen=True)
class Settings:
    """One agent, `world_size - 2` observers, and the coordinator, which is the process that was launched."""

    transport: str = "torch_rpc"
    world_size: int = 10
    master_addr: str = "127.0.0.1"
    master_port: int = 29501
    batch: bool = True
    state_size: str = "10-20-10"
    nlayers: int = 5
    out_features: int = 10
    episodes: int = 10
    steps: int = 100
    warmup: int = 20
    max_batch: int | None = None
    max_wait_ms: float | None = None
    rate: float | None = None
    timeout: float = 60.0
    seed: int = 1

    @property
    def observers(self) -> int:
        return self.world_size - 2

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(int(size) for size in self.state_size.split("-"))

    @property
    def requests(self) -> int:
        """How many an observer makes that are measured."""
        return self.episodes * self.steps

    @property
    def passes(self) -> tuple[int, float | None]:
        """The most rows of a pass, and for how many seconds it waits for them; None waits for all of them."""
        most = self.max_batch or (self.observers if self.batch else 1)
        if self.max_wait_ms is not None:
            return most, self.max_wait_ms / 1000
        everyone = self.max_batch is None and self.batch and self.rate is None
        return most, None if everyone else 0.0


@dataclass(frozen=True)
class Axis:
    """The one setting that has several values."""

    name: str
    values: Sequence[Any]


@dataclass(frozen=True)
class Field:
    """How one flag is read; `several` if it may hold a list with commas."""

    read: Callable[[str], Any]
    expected: str
    help: str
    several: bool = False


def read(words: Mapping[str, str]) -> tuple[Settings, Axis | None]:
    """The settings from the flags' texts; several values of at most one of them are the x axis."""
    lists = [name for name, text in words.items() if "," in text and FIELDS[name].several]
    if len(lists) > 1:
        first, second = lists[:2]
        raise UsageError(
            f"--{first} {words[first]!r} and --{second} {words[second]!r} both hold several values, expected at most one list"
        )
    values = {name: [_value(name, part) for part in _parts(name, text)] for name, text in words.items()}
    axis = Axis(lists[0], tuple(values[lists[0]])) if lists else None
    settings = Settings(**{name: found[0] for name, found in values.items()})
    for one in along(settings, axis):
        _check(one, words)
    return settings, axis


def along(settings: Settings, axis: Axis | None) -> list[Settings]:
    """The settings of each row of the report."""
    return [replace(settings, **{axis.name: value}) for value in axis.values] if axis is not None else [settings]


def _parts(name: str, text: str) -> list[str]:
    parts = text.split(",") if FIELDS[name].several else [text]
    for part in parts:
        if parts.count(part) > 1:
            raise UsageError(f"--{name} is {text!r}, which holds {part!r} twice")
    return [part.strip() for part in parts]


def _value(name: str, text: str) -> Any:
    field = FIELDS[name]
    try:
        return field.read(text)
    except ValueError:
        raise UsageError(f"--{name} is {text!r}, expected {field.expected}") from None


def _check(settings: Settings, words: Mapping[str, str]) -> None:
    if settings.max_wait_ms is not None and settings.passes[0] == 1:
        raise UsageError("--max_wait_ms would not be read: passes of one request wait for no other")
    if settings.rate is not None and settings.rate < 1 / settings.timeout:
        raise UsageError(f"--rate is {settings.rate:g} a second, expected at least one request in --timeout")


def check_address(host: str, port: int) -> bool:
    """Refuse a place that nobody can listen at; true if it can be reached from other machines."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError:
        raise UsageError(f"--master_addr is {host!r}, expected a name or an address of this machine") from None
    family, kind, protocol, _, address = found
    with socket.socket(family, kind, protocol) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind(address)
            trial.listen()
        except PermissionError:
            raise UsageError(f"--master_port {port}: only the system may listen there, expected 1024 or more") from None
        except OSError as error:
            taken = error.strerror == "Address already in use"
            why = f"--master_port {port} is taken on {host}" if taken else f"--master_addr {host}: {error.strerror}"
            raise UsageError(f"{why}, expected {'a free port' if taken else 'an address of this machine'}") from None
    return not ipaddress.ip_address(str(address[0])).is_loopback


def whole(name: str, text: str) -> int:
    """The value of another flag, from 1."""
    try:
        return _whole(text)
    except ValueError:
        raise UsageError(f"--{name} is {text!r}, expected {WHOLE}") from None


def truth(name: str, text: str) -> bool:
    """The value of another flag, true or false."""
    try:
        return _truth(text)
    except ValueError:
        raise UsageError(f"--{name} is {text!r}, expected True or False") from None


def _whole(text: str, least: int = 1, most: float = math.inf) -> int:
    if not (text.isascii() and text.isdigit()) or not least <= int(text) <= most:
        raise ValueError
    return int(text)


def _number(text: str, least: float = 0.0) -> float:
    number = float(text)
    if not least <= number < math.inf:
        raise ValueError
    return number


def _above_zero(text: str) -> float:
    number = _number(text)
    if not number:
        raise ValueError
    return number


def _truth(text: str) -> bool:
    return (
        {"true": True, "false": False}[text.lower()] if text.lower() in ("true", "false") else _whole(text, 0, 1) == 1
    )


def _size(text: str) -> str:
    return "-".join(str(_whole(part)) for part in text.split("-"))


def _transport(text: str) -> str:
    if text not in TRANSPORTS:
        raise UsageError(f"--transport is {text!r}{known_names(text, TRANSPORTS)}")
    return text


WHOLE = "a whole number from 1"
FIELDS = {
    "transport": Field(_transport, "", f"what carries the rows: {', '.join(TRANSPORTS)}; torch_rpc", True),
    "world_size": Field(
        partial(_whole, least=FEWEST, most=MOST),
        f"a whole number from {FEWEST} to {MOST}: a coordinator, an agent and at least one observer",
        "processes: a coordinator, an agent, the rest observers; 10",
        True,
    ),
    "master_addr": Field(str, "", "where torch_rpc meets and grpc listens; 127.0.0.1"),
    "master_port": Field(partial(_whole, most=65535), "a port from 1 to 65535", "its port; 29501"),
    "batch": Field(_truth, "True or False", "wait for all observers' requests, or answer one at a time; True", True),
    "state_size": Field(
        _size, "whole numbers from 1 with dashes between, such as 10-20-10", "of a state; 10-20-10", True
    ),
    "nlayers": Field(partial(_whole, least=0), "a whole number from 0", "linear layers after the first; 5", True),
    "out_features": Field(_whole, WHOLE, "actions to choose from, and the width of the layers; 10", True),
    "episodes": Field(_whole, WHOLE, "of each observer; 10"),
    "steps": Field(_whole, WHOLE, "of an episode; 100"),
    "warmup": Field(partial(_whole, least=0), "a whole number from 0", "steps of each observer before; 20"),
    "max_batch": Field(_whole, WHOLE, "requests in a pass at most, instead of --batch", True),
    "max_wait_ms": Field(
        _number, "a number of milliseconds from 0", "for how long a pass waits for its requests", True
    ),
    "rate": Field(_above_zero, "requests per second above 0", "open loop: requests per second of all observers", True),
    "timeout": Field(_above_zero, "a number of seconds above 0", "seconds that anything may take; 60"),
    "seed": Field(partial(_whole, least=0), "a whole number from 0", "of states, rewards and weights; 1"),
}
assert list(FIELDS) == [field.name for field in fields(Settings)]
