"""Where simulators connect to a run that learns from them: the gRPC service Training, in a thread of its own."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from podium.core.errors import PodiumError, UsageError
from podium.serving import speech
from podium.serving.place import bracketed, is_loopback
from podium.serving.protocol import podium_pb2
from podium.serving.protocol.columns import to_messages
from podium.serving.server import BadRequest
from podium.serving.speech import Began, Listener, Moved, Spaces
from podium.serving.transports.token import TokenCheck

SERVICE = "podium.v1.Training"
TOKEN_VARIABLE = "PODIUM_TOKEN"
HELLO_S = 10.0
"""How long a stream may take to say hello."""

END_S = 2.0
"""How long streams may take to end when the run does."""

OPTIONS = [
    ("grpc.so_reuseport", 0),  # else a second run could take the port without a word
    ("grpc.max_concurrent_streams", 1024),
    ("grpc.keepalive_time_ms", 20_000),  # so that a simulator whose machine is gone is missed
    ("grpc.keepalive_timeout_ms", 10_000),
]


class Over(Exception):
    """The run has ended."""


class Silent(Exception):
    """A simulator has said nothing for too long."""


class Session:
    """One simulator's stream, as the run's side knows it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.answer: asyncio.Future[bytes] | None = None


@dataclass(frozen=True, slots=True)
class Heard:
    """What came from a simulator; None when its stream has ended."""

    session: Session
    what: Began | Moved | None


@dataclass(frozen=True)
class Place:
    """Where to listen, for whom, and how long to wait for them."""

    port: int
    host: str = "127.0.0.1"
    token: str | None = None
    wait: float = 300.0

    @classmethod
    def of(cls, port: Any, host: Any = "127.0.0.1", token: Any = None, wait: Any = 300.0) -> Place:
        """The place as it is typed. Without a token that of the environment is taken."""
        if isinstance(port, bool) or not str(port).isdigit() or int(port) > 65535:
            raise UsageError(f"--port is {port!r}, expected a whole number from 0 to 65535, 0 for any that is free")
        try:
            seconds = float(wait)
        except (TypeError, ValueError):
            seconds = 0.0
        if not 0 < seconds <= threading.TIMEOUT_MAX:
            raise UsageError(f"--wait is {wait!r}, expected a number above 0 (s)")
        secret = str(token) if token is not None else os.environ.get(TOKEN_VARIABLE) or None
        if secret is not None and not (secret.isascii() and secret.isprintable() and secret.strip() == secret != ""):
            raise UsageError("--token is empty or has other characters than ASCII's, expected a word")
        if secret is None and not is_loopback(str(host)):
            raise UsageError(f"--host {host} is not this machine alone: give a token by {TOKEN_VARIABLE} or --token")
        return cls(int(port), str(host), secret, seconds)

    @property
    def address(self) -> str:
        return f"{bracketed(self.host)}:{self.port}"


class Training:
    """The server's side of all streams. What simulators say waits in `take` for the run, and they wait for `answer`."""

    def __init__(self, place: Place, algo: str = "") -> None:
        self.place, self.algo = place, algo
        self.version = 0
        self.spaces: Spaces | None = None
        self.masked: bool | None = None
        self.connected = 0
        self._inbox: list[Heard] = []
        self._changed = threading.Condition()
        self._sessions = 0
        opened: Future[int] = Future()
        self._thread = threading.Thread(target=self._run, args=(opened,), name="simulators", daemon=True)
        self._thread.start()
        self.address = f"{bracketed(place.host)}:{opened.result()}"

    # --- the run's side ---

    def first_spaces(self) -> Spaces:
        """The spaces of the first simulator, once it is there."""
        with self._changed:
            if self._changed.wait_for(lambda: self.spaces is not None, self.place.wait) and self.spaces is not None:
                return self.spaces
        raise UsageError(f"no simulator came to {self.address} within {self.place.wait:g} s (--wait)")

    def take(self) -> list[Heard]:
        """What has been heard since, as soon as there is anything."""
        with self._changed:
            if not self._changed.wait_for(lambda: bool(self._inbox), self.place.wait):
                who = (
                    f"none of the {self.connected} simulators on" if self.connected else "no simulator was connected to"
                )
                said = " said anything" if self.connected else ""
                raise PodiumError(f"{who} {self.address}{said} for {self.place.wait:g} s (--wait)")
            heard, self._inbox = self._inbox, []
            return heard

    def answer(self, sessions: Sequence[Session], actions: np.ndarray, version: int) -> None:
        """Send each its row of actions, in the env's own numbers."""
        self.version = version
        commands = [_action(row, version) for row in actions]
        self._loop.call_soon_threadsafe(_hand_out, list(zip(sessions, commands, strict=True)))

    def close(self) -> None:
        """End all streams: their simulators see that the run is over."""
        self._loop.call_soon_threadsafe(self._over.set_result, None)
        self._thread.join()

    # --- the streams' side, all in one thread ---

    def _run(self, opened: Future[int]) -> None:
        try:
            asyncio.run(self._serve(opened))
        except Exception as error:
            if opened.done():
                raise
            opened.set_exception(error)

    async def _serve(self, opened: Future[int]) -> None:
        self._loop = asyncio.get_running_loop()
        self._over: asyncio.Future[None] = self._loop.create_future()
        guards = [TokenCheck(self.place.token, free=health.SERVICE_NAME)] if self.place.token is not None else []
        server = grpc.aio.server(options=OPTIONS, interceptors=guards)
        play = grpc.stream_stream_rpc_method_handler(
            self._play, response_serializer=podium_pb2.Command.SerializeToString
        )
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, {"Play": play})])
        servicer = health.aio.HealthServicer()
        for name in ("", SERVICE):
            await servicer.set(name, health_pb2.HealthCheckResponse.SERVING)
        health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
        reflection.enable_server_reflection((SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
        try:
            port = server.add_insecure_port(self.place.address)
            await server.start()
        except RuntimeError:
            raise UsageError(f"{self.place.address} can't be listened on: is the port taken?") from None
        opened.set_result(port)
        await self._over
        await servicer.enter_graceful_shutdown()
        await server.stop(END_S)

    async def _play(self, _: Any, context: Any) -> None:
        """One simulator from its hello to its end."""
        session = None
        try:
            listener = await self._greeted(context)
            session = self._join()
            while (data := await self._within(context.read(), self.place.wait)) is not grpc.aio.EOF:
                what = listener.hear(data)
                session.answer = self._loop.create_future() if listener.playing else None
                self._tell(Heard(session, what))
                if session.answer is not None:
                    await context.write(await self._within(session.answer, None))
        except BadRequest as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except Silent as silent:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, str(silent))
        except Over:
            return
        finally:
            if session is not None:
                self._leave(session)

    async def _greeted(self, context: Any) -> Listener:
        """One who is to understand the simulator, once it has said hello."""
        data = await self._within(context.read(), HELLO_S)
        if data is grpc.aio.EOF:
            raise BadRequest("the stream has ended before hello")
        theirs = speech.spaces_of(speech.greeting(data))
        with self._changed:
            mine = self.spaces = self.spaces if self.spaces is not None else theirs
            self._changed.notify()
        speech.refuse_other(mine, theirs)
        await context.write(podium_pb2.Command(welcome=podium_pb2.Welcome(algo=self.algo, version=self.version)))
        return Listener(mine, self._agreed_mask)

    def _agreed_mask(self, given: bool) -> bool:
        """Whether simulators give masks: the first observation of the run decides."""
        self.masked = given if self.masked is None else self.masked
        return self.masked

    def _join(self) -> Session:
        self._sessions += 1
        with self._changed:
            self.connected += 1
        return Session(self._sessions)

    def _leave(self, session: Session) -> None:
        with self._changed:
            self.connected -= 1
        self._tell(Heard(session, None))

    def _tell(self, heard: Heard) -> None:
        with self._changed:
            self._inbox.append(heard)
            self._changed.notify()

    async def _within(self, waited: Awaitable[Any], seconds: float | None) -> Any:
        """What is waited for; not longer than that, nor beyond the run's end."""
        task = asyncio.ensure_future(waited)
        try:
            await asyncio.wait({task, self._over}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise Over if self._over.done() else Silent(f"nothing was said for {seconds:g} s")
        finally:
            task.cancel()


def _action(row: np.ndarray, version: int) -> podium_pb2.Command:
    (column,) = to_messages({"action": row})
    return podium_pb2.Command(action=podium_pb2.Action(action=column, version=version))


def _hand_out(answers: Sequence[tuple[Session, Any]]) -> None:
    for session, command in answers:
        if session.answer is not None and not session.answer.done():  # done: it has gone meanwhile
            session.answer.set_result(command)


_OPEN: dict[Place, tuple[Training, int]] = {}
_OPENING = threading.Lock()


def acquire(place: Place, algo: str = "") -> Training:
    """The one server of this process at a place; it ends when all who asked for it have released it."""
    with _OPENING:
        training, users = _OPEN.get(place, (None, 0))
        training = training if training is not None else Training(place, algo)
        _OPEN[place] = training, users + 1
        return training


def release(training: Training) -> None:
    with _OPENING:
        _, users = _OPEN.pop(training.place)
        if users > 1:
            _OPEN[training.place] = training, users - 1
            return
    training.close()
