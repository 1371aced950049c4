"""The server behind an engine's calls: batches of callers, refusals, deadlines, death, on every engine."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pytest

from podium.core.errors import CallTimedOut
from podium.core.spaces import Columns
from podium.engine.base import Engine, Handle
from podium.engine.local import LocalEngine
from podium.serving.base import ServerGone
from podium.serving.server import BadRequest, InferenceServer
from podium.serving.transports.engine import EngineClient, EngineServer
from tests.conformance.conftest import ray_engine

LAYOUT = {"act": {"obs": ((2,), np.dtype(np.float32))}}


@pytest.fixture(scope="module")
def ray() -> Iterator[Engine]:
    yield from ray_engine()


@pytest.fixture(params=["local", "strict", "ray"])
def engine(request: pytest.FixtureRequest) -> Engine:
    if request.param == "ray":
        found: Engine = request.getfixturevalue("ray")
        return found
    return LocalEngine(strict=request.param == "strict")


def doubled(columns: Columns) -> Columns:
    """Each row twice its size, and how many were there with it."""
    obs = columns["obs"]
    if (obs < 0).any():
        raise LookupError("a row below zero")
    return {"action": 2 * obs, "rows": np.full(len(obs), len(obs))}


def make_server(max_batch: int | None, max_wait_s: float | None) -> InferenceServer:
    return InferenceServer({"act": doubled}, max_batch=max_batch, max_wait_s=max_wait_s, layouts=LAYOUT)


class Inspected(EngineServer):
    """One that tells what it knows."""

    def requests(self) -> tuple[int, int, int]:
        stats = self.desk.server.stats
        return stats.requests, stats.passes, self.desk.server.waiting

    def pid(self) -> int:
        return os.getpid()


def serve(engine: Engine, max_batch: int | None, max_wait_s: float | None) -> Handle:
    make = partial(make_server, max_batch, max_wait_s)
    return engine.spawn(Inspected, make, name="server-0", callers=6)


def rows(*values: float) -> Columns:
    return {"obs": np.array([[value, value] for value in values], np.float32)}


class Caller:
    """Asks from where it was spawned."""

    def __init__(self, client: EngineClient) -> None:
        self.client = client

    def ask(self, value: float, times: int) -> list[Any]:
        answers = [self.client.ask(rows(value), timeout=20.0) for _ in range(times)]
        return [(float(answer.columns["action"][0, 0]), int(answer.columns["rows"][0])) for answer in answers]


def test_an_answer_has_the_rows_of_the_question(engine: Engine) -> None:
    handle = serve(engine, None, 0.0)
    client = EngineClient(engine, handle)
    answer = client.ask(rows(1, 2, 3))
    assert answer.version == 0
    assert np.array_equal(answer.columns["action"], [[2, 2], [4, 4], [6, 6]])
    client.close()
    engine.kill(handle)


def test_callers_are_answered_together(engine: Engine) -> None:
    """Where they run beside each other; where they can't, nobody waits for anybody."""
    handle = serve(engine, 3, None)
    callers = [engine.spawn(Caller, EngineClient(engine, handle)) for _ in range(3)]
    answers = engine.get([caller.call("ask", float(i), 20) for i, caller in enumerate(callers)], 60.0)
    together = 3 if engine.apart else 1
    assert answers == [[(2.0 * i, together)] * 20 for i in range(3)]
    assert engine.get(handle.call("requests")) == (60, 60 // together, 0)
    for one in (*callers, handle):
        engine.kill(one)


def test_who_is_late_is_not_waited_for(ray: Engine) -> None:
    handle = serve(ray, 2, 0.2)
    client = EngineClient(ray, handle)
    ray.check(handle.ready)
    client.ask(rows(1, 1))
    began = time.monotonic()
    assert client.ask(rows(1)).columns["rows"].tolist() == [1]
    assert 0.19 < time.monotonic() - began < 2
    ray.kill(handle)


def test_a_bad_request_and_a_failing_function_are_told_to_their_caller(engine: Engine) -> None:
    handle = serve(engine, None, 0.0)
    client = EngineClient(engine, handle)
    for columns, kind, told in (
        ({"obs": np.zeros((1, 3), np.float32)}, "act", r"obs has shape \[1, 3\], expected \[1, 2\]"),
        (rows(float("nan")), "act", "obs holds NaN or infinity"),
        (rows(1), "acct", "nothing answers 'acct'; did you mean 'act'"),
        ({}, "act", "0 rows, expected at least 1"),
    ):
        with pytest.raises(BadRequest, match=told):
            client.ask(columns, kind)
    with pytest.raises(LookupError, match="a row below zero"):
        client.ask(rows(-1))
    assert client.ask(rows(4)).columns["action"].tolist() == [[8, 8]]
    engine.kill(handle)


def test_a_question_that_takes_too_long_is_forgotten(ray: Engine) -> None:
    """The next pass holds nothing of it."""
    handle = serve(ray, 2, None)
    client = EngineClient(ray, handle)
    ray.check(handle.ready)
    with pytest.raises(CallTimedOut, match="server-0 did not answer"):
        client.ask(rows(1), timeout=0.3)
    until = time.monotonic() + 5
    while ray.get(handle.call("requests"))[2] and time.monotonic() < until:
        time.sleep(0.01)
    with ThreadPoolExecutor(2) as pool:
        clients = (client, EngineClient(ray, handle))
        answers = list(pool.map(lambda one, value: one.ask(rows(value), timeout=20.0), clients, (5.0, 6.0)))
    assert [answer.columns["action"][0, 0] for answer in answers] == [10, 12]
    assert ray.get(handle.call("requests")) == (2, 1, 0)
    ray.kill(handle)


def test_a_server_that_is_gone_is_named(engine: Engine) -> None:
    handle = serve(engine, 2, None)
    client = EngineClient(engine, handle)
    engine.check(handle.ready)
    if not engine.apart:
        engine.kill(handle)
        with pytest.raises(ServerGone, match="server-0 is gone"):
            client.ask(rows(1))
        return
    pid = engine.get(handle.call("pid"))
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(client.ask, rows(1), timeout=60.0)
        time.sleep(0.3)
        began = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(ServerGone, match="server-0 is gone"):
            asking.result(30)
    assert time.monotonic() - began < 10
    engine.kill(handle)
