"""The benchmark's roles as actors of Ray, where the server is an actor too and its calls are the transport."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from podium.bench.rpc.crew import AGENT, GRACE_S, WATCH_S, late
from podium.bench.rpc.roles import Agent, Observer
from podium.bench.rpc.settings import Settings
from podium.core.errors import CallTimedOut, PodiumError, WorkerDied
from podium.engine.base import Handle
from podium.engine.start import start
from podium.serving.transports.engine import EngineClient, EngineServer

CONTROL_CALLS = 2
"""The coordinator's, beside those of the observers."""


class SpawnedAgent(Agent):
    """An agent that is called instead of listening."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._asked = EngineServer(lambda: self._server)

    def ask(self, packed: bytes) -> Future[bytes]:
        return self._asked.ask(packed)

    def join(self, address: Any) -> None:
        """It is there from the beginning."""

    def close(self) -> None:
        self._asked.close()


class SpawnedObserver(Observer):
    """An observer whose client was made for it."""

    def join(self, address: EngineClient) -> None:
        self._client = address


class Actors:
    """A crew on Ray, which is started with it and ended with it."""

    def __init__(self, limit: float, observers: int) -> None:
        self._limit, self._callers = limit, observers + CONTROL_CALLS
        self._engine = start("ray")
        self._handles: dict[str, Handle] = {}

    def add(self, name: str, build: Callable[..., Any], *args: Any) -> None:
        callers = self._callers if name == AGENT else 1
        self._handles[name] = self._engine.spawn(build, *args, name=name, callers=callers)

    def address(self) -> EngineClient:
        self._engine.check(self._handles[AGENT].ready, self._limit)
        return EngineClient(self._engine, self._handles[AGENT])

    def call(
        self,
        names: Sequence[str],
        method: str,
        *args: Any,
        done: str = "answered",
        watch: Callable[[], bool] | None = None,
    ) -> list[Any]:
        refs = {name: self._handles[name].call(method, *args) for name in names}
        waiting = dict(refs)
        due = time.monotonic() + self._limit + GRACE_S
        while waiting:
            left = max(due - time.monotonic(), 0.0)
            ready, _ = self._engine.wait(list(waiting.values()), 1, min(left, WATCH_S))
            for name in [name for name, ref in waiting.items() if ref in ready]:
                self._check(name, waiting.pop(name))
            if watch is not None and waiting and watch():
                due = time.monotonic() + self._limit + GRACE_S
            if time.monotonic() >= due and waiting:
                raise CallTimedOut(late(list(waiting), done, self._limit))
        return list(self._engine.get(list(refs.values())))

    def _check(self, name: str, ref: Any) -> None:
        try:
            self._engine.check(ref)
        except Exception as error:
            raise self._dead() or PodiumError(f"{name}: {error}") from None

    def _dead(self) -> WorkerDied | None:
        """The end of another one is often why somebody fails; who lives says nothing or that it is busy."""
        due = time.monotonic() + GRACE_S
        for handle in self._handles.values():
            try:
                self._engine.check(handle.call("close"), max(due - time.monotonic(), 0.05))
            except WorkerDied as died:
                return died
            except Exception:
                continue
        return None

    def close(self) -> None:
        self._engine.close()
