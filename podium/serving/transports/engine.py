"""A server that an engine has spawned, and is called like anything else there: the transport on Ray is Ray's own call."""

from __future__ import annotations

from collections.abc import Callable

from podium.core.errors import CallTimedOut, WorkerDied
from podium.core.spaces import Columns
from podium.engine.base import Engine, Handle
from podium.serving.base import WAIT_S, Answer, ServerGone
from podium.serving.desk import Desk
from podium.serving.server import InferenceServer


class EngineServer:
    """To be spawned with as many `callers` as there will be: each one's call waits in a thread of its own until its pass
    is made."""

    def __init__(self, make: Callable[[], InferenceServer]) -> None:
        self.desk = Desk(make())

    def ask(self, columns: Columns, kind: str, timeout: float, alone: bool) -> Answer | None:
        """The answer, or None where it took too long."""
        rows = len(next(iter(columns.values()), ()))
        reply = self.desk.ask(columns, rows, kind, timeout, alone)
        if reply is None:
            return None
        if reply.error is not None:
            raise reply.error
        return Answer(reply.columns, reply.version)

    def close(self) -> None:
        self.desk.close()


class EngineClient:
    """One caller's way to a spawned server; it may be sent to others. Where calls run one after the other nobody else
    can ask meanwhile, and nobody is waited for."""

    def __init__(self, engine: Engine, handle: Handle) -> None:
        self._engine, self._handle = engine, handle

    def ask(self, columns: Columns, kind: str = "act", timeout: float = WAIT_S) -> Answer:
        call = self._handle.call("ask", columns, kind, timeout, not self._engine.apart)
        try:
            answer: Answer | None = self._engine.get(call, timeout)
        except WorkerDied as error:
            raise ServerGone(str(error)) from None
        if answer is None:
            raise CallTimedOut(f"{self._handle.name} did not answer within {timeout:g} s")
        return answer

    def close(self) -> None:
        """Nothing of it stays between calls."""
