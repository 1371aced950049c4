"""A server on an engine whose callers use shared memory where they are on its machine, and the engine's calls elsewhere."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

from podium.core.spaces import Columns
from podium.engine.base import Engine, Handle
from podium.serving.base import WAIT_S, Answer, ServerGone
from podium.serving.server import InferenceServer
from podium.serving.transports.engine import EngineClient, EngineServer
from podium.serving.transports.shm import ShmClient, ShmTransport

LEAST_BYTES = 16 << 20
"""How long an answer may be, and a request at least; memory is used as it is touched."""


class NearServer(EngineServer):
    """`places` callers at most can be on its machine, with requests of so many `rows` as a rule. What is longer than
    `request_bytes` goes by the engine's calls."""

    def __init__(self, make: Callable[[], InferenceServer], places: int, rows: int, request_bytes: int) -> None:
        super().__init__(make)
        self._places, self._rows, self._request_bytes = places, rows, max(request_bytes, LEAST_BYTES)
        self._shared: ShmTransport | None = None
        self._opening = threading.Lock()

    def near(self, machine: str | None) -> tuple[str, int] | None:
        """Where callers on that machine find it, if it is its own, and how long their requests may be."""
        if machine is None or machine != this_machine():
            return None
        with self._opening:
            if self._shared is None:
                sizes = {"request_bytes": self._request_bytes, "reply_bytes": self._request_bytes}
                self._shared = ShmTransport(self.desk, self._places, rows=self._rows, **sizes)
        return self._shared.address, self._request_bytes

    def close(self) -> None:
        if self._shared is not None:
            self._shared.close()
        super().close()


class NearClient:
    """One caller, who finds out with the first question how near the server is; it may be sent to others before that."""

    def __init__(self, engine: Engine, handle: Handle) -> None:
        self._engine, self._handle = engine, handle
        self._far = EngineClient(engine, handle)
        self._near: ShmClient | None = None
        self._longest = 0
        self._looked = False

    def ask(self, columns: Columns, kind: str = "act", timeout: float = WAIT_S) -> Answer:
        if not self._looked:
            self._look(timeout)
        if self._near is None or 2 * sum(column.nbytes for column in columns.values()) > self._longest:
            return self._far.ask(columns, kind, timeout)
        try:
            return self._near.ask(columns, kind, timeout)
        except ServerGone as error:
            raise ServerGone(f"{self._handle.name} is gone: {error}") from None

    def _look(self, timeout: float) -> None:
        if self._engine.apart:  # else nothing is nearer than a call
            found = self._engine.get(self._handle.call("near", this_machine()), timeout)
            if found is not None:
                address, self._longest = found
                self._near = ShmClient(address)
        self._looked = True

    def close(self) -> None:
        if self._near is not None:
            self._near.close()


def this_machine() -> str | None:
    """What processes that can share memory have in common: the kernel that runs, and whom they see beside them. None
    where the system doesn't tell."""
    try:
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return None
