"""A server that an engine has spawned, and is called like anything else there: the transport on Ray is Ray's own call."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial

from podium.core.errors import CallTimedOut, WorkerDied
from podium.core.spaces import Columns
from podium.engine.base import Engine, Handle
from podium.serving.base import WAIT_S, Answer, ServerGone
from podium.serving.desk import Deliver, Desk
from podium.serving.server import InferenceServer, Reply
from podium.serving.wire import Wire

CALLER_BYTES = 16
VERSION_BYTES = 8


class EngineServer:
    """To be spawned with as many `callers` as there will be. Requests and answers are packed into bytes, which engines
    carry at the least cost: who asks, then the columns; the version, then the columns."""

    def __init__(self, make: Callable[[], InferenceServer]) -> None:
        self.desk = Desk(make())
        self._wire = Wire()
        self._waiting: dict[bytes, Deliver] = {}

    def ask(self, packed: bytes) -> Future[bytes]:
        """The answer, as soon as a pass has made it."""
        caller, answer = packed[:CALLER_BYTES], Future[bytes]()
        self.forget(caller)  # what it has given up
        columns, kind = self._wire.read(memoryview(packed)[CALLER_BYTES:])
        deliver = self._waiting[caller] = partial(self._deliver, caller, answer)
        self.desk.submit(columns, len(next(iter(columns.values()), ())), kind, deliver)
        return answer

    def ask_alone(self, packed: bytes) -> Future[bytes]:
        """For callers that nobody can ask beside: the pass begins with what is there."""
        answer = self.ask(packed)
        if not answer.done():
            self.desk.flush()
        return answer

    def forget(self, caller: bytes) -> None:
        """Drop what a caller has asked and doesn't wait for any more."""
        if (deliver := self._waiting.pop(caller, None)) is not None:
            self.desk.forget(deliver)

    def _deliver(self, caller: bytes, answer: Future[bytes], reply: Reply) -> None:
        self._waiting.pop(caller, None)
        if reply.error is not None:
            answer.set_exception(reply.error)
        else:
            answer.set_result(reply.version.to_bytes(VERSION_BYTES, "little") + self._wire.pack(reply.columns, ""))

    def close(self) -> None:
        self.desk.close()


class EngineClient:
    """One caller's way to a spawned server; it may be sent to others before it has asked, for one thread at a time. Where
    calls run one after the other nobody else can ask meanwhile, and nobody is waited for."""

    def __init__(self, engine: Engine, handle: Handle) -> None:
        self._engine, self._handle = engine, handle
        self._method = "ask" if engine.apart else "ask_alone"
        self._caller = b""
        self._wire = Wire()

    def ask(self, columns: Columns, kind: str = "act", timeout: float = WAIT_S) -> Answer:
        self._caller = self._caller or uuid.uuid4().bytes
        call = self._handle.brief(self._method, self._caller + self._wire.pack(columns, kind))
        try:
            answer: bytes = self._engine.get(call, timeout)
        except WorkerDied as error:
            raise ServerGone(str(error)) from None
        except CallTimedOut:
            self._handle.call("forget", self._caller)
            raise CallTimedOut(f"{self._handle.name} did not answer within {timeout:g} s") from None
        version, packed = answer[:VERSION_BYTES], answer[VERSION_BYTES:]
        return Answer(self._wire.read(memoryview(bytearray(packed)))[0], int.from_bytes(version, "little"))

    def close(self) -> None:
        """Nothing of it stays between calls."""
