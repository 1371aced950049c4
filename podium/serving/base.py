"""How a caller reaches a server, whatever carries the rows: one small interface, and addresses by their scheme."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from podium.core.errors import PodiumError
from podium.core.spaces import Columns

WAIT_S = 30.0
"""How long a client waits for an answer unless told."""


class ServerGone(PodiumError):
    """The server has ended, or says nothing any more."""


class RunOver(PodiumError):
    """The run that a simulator played for has ended."""


@dataclass(slots=True)
class Answer:
    """The rows that came back, and the version of the weights that gave them."""

    columns: Columns
    version: int


class Client(Protocol):
    """One caller's way to a server; for one thread at a time. `ask` raises `BadRequest` for what the server refuses,
    `CallTimedOut` after `timeout` seconds, and `ServerGone` if nobody is there."""

    def ask(self, columns: Columns, kind: str = "act", timeout: float = WAIT_S) -> Answer: ...
    def close(self) -> None: ...


class Transport(Protocol):
    """The server's side. `address` is what clients connect to, and can be sent to other processes; callers are answered
    from the moment it is made until `close`."""

    @property
    def address(self) -> str: ...
    def close(self) -> None: ...
