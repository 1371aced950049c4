"""Every transport gives the same: answers to whom they belong, in passes of many, refusals alone, ends that are told."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

from podium.core.errors import CallTimedOut, PodiumError
from podium.core.spaces import Columns
from podium.serving.base import Client, ServerGone
from podium.serving.desk import Desk
from podium.serving.server import BadRequest, InferenceServer, Pass

LAYOUT = {"obs": ((3,), np.dtype(np.float32))}


def double(columns: Columns) -> Columns:
    if (columns["obs"] == 666).any():
        raise ArithmeticError("the number of the beast")
    return {"action": columns["obs"] * 2, "rows": np.full(len(columns["obs"]), len(columns["obs"]))}


def triple(columns: Columns) -> Columns:
    return {"action": columns["obs"] * 3}


class Place:
    """A server with its transport, and clients of it."""

    def __init__(self, kind: str, **settings: Any) -> None:
        self.passes: list[Pass] = []
        server = InferenceServer(
            {"act": double, "values": triple},
            layouts={"act": LAYOUT, "values": LAYOUT},
            observe=self.passes.append,
            **settings,
        )
        self.desk = Desk(server)
        self._stack = ExitStack()
        self._stack.callback(self.desk.close)
        self.transport, self._connect = KINDS[kind](self.desk)
        self._stack.callback(self.transport.close)

    def client(self) -> Client:
        client = self._connect(self.transport.address)
        self._stack.callback(client.close)
        return client

    def close(self) -> None:
        self._stack.close()


def shm(desk: Desk) -> tuple[Any, Callable[[str], Client]]:
    from podium.serving.transports.shm import ShmClient, ShmTransport

    return ShmTransport(desk, places=40), ShmClient


KINDS: dict[str, Callable[[Desk], tuple[Any, Callable[[str], Client]]]] = {"shm": shm}


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest) -> Iterator[Callable[..., Place]]:
    places: list[Place] = []

    def make(**settings: Any) -> Place:
        places.append(Place(request.param, **settings))
        return places[-1]

    yield make
    for one in places:
        one.close()


def rows(*numbers: float) -> Columns:
    return {"obs": np.repeat(np.array(numbers, np.float32)[:, None], 3, axis=1)}


def test_an_answer_has_the_rows_of_its_question_and_the_version(place: Callable[..., Place]) -> None:
    client = place(version=7).client()
    answer = client.ask(rows(1, 2, 5))
    np.testing.assert_array_equal(answer.columns["action"][:, 0], [2, 4, 10])
    assert answer.version == 7
    np.testing.assert_array_equal(client.ask(rows(1), "values").columns["action"], [[3, 3, 3]])
    kept = answer.columns["action"]
    client.ask(rows(9, 9, 9))
    np.testing.assert_array_equal(kept[:, 0], [2, 4, 10])  # an answer is the caller's own


def test_a_pass_waits_for_all_and_everyone_gets_what_is_theirs(place: Callable[..., Place]) -> None:
    callers, times = 12, 30
    here = place(max_batch=callers, max_wait_s=None)

    def play(who: int) -> list[tuple[float, int]]:
        client = here.client()
        answers = [client.ask(rows(who * 1000 + step)).columns for step in range(times)]
        return [(float(answer["action"][0, 0]), int(answer["rows"][0])) for answer in answers]

    with ThreadPoolExecutor(callers) as pool:
        for who, found in enumerate(pool.map(play, range(callers))):
            assert found == [(2.0 * (who * 1000 + step), callers) for step in range(times)]
    assert [one.requests for one in here.passes] == [callers] * times
    assert all(one.done >= one.first for one in here.passes)


def test_one_at_a_time(place: Callable[..., Place]) -> None:
    here = place(max_batch=1, max_wait_s=0.0)

    def play(who: int) -> bool:
        client = here.client()
        return all(client.ask(rows(who)).columns["action"][0, 0] == 2 * who for _ in range(20))

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(play, range(6)))
    assert {one.requests for one in here.passes} == {1} and len(here.passes) == 120


def test_a_pass_that_is_not_full_goes_when_the_first_has_waited_long_enough(place: Callable[..., Place]) -> None:
    here = place(max_batch=100, max_wait_s=0.1)
    client = here.client()
    for _ in range(3):
        began = time.monotonic()
        client.ask(rows(1))
        assert 0.09 < time.monotonic() - began < 0.5
    assert here.passes[-1].done - here.passes[-1].first >= 0.1


def test_requests_of_several_rows_fill_a_pass(place: Callable[..., Place]) -> None:
    here = place(max_batch=8, max_wait_s=None)
    with ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(here.client().ask, rows(*range(size))) for size in (3, 5)]
        assert [int(one.result(10).columns["rows"][0]) for one in asked] == [8, 8]


def test_what_is_wrong_is_refused_alone(place: Callable[..., Place]) -> None:
    here = place(max_batch=2, max_wait_s=None)
    good, bad = here.client(), here.client()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(good.ask, rows(1))
        for columns, kind, expected in (
            ({"obs": np.zeros((1, 4), np.float32)}, "act", r"obs has shape \[1, 4\], expected \[1, 3\]"),
            ({"obs": np.zeros((1, 3))}, "act", "obs is float64, expected float32"),
            ({"obs": np.full((1, 3), np.nan, np.float32)}, "act", "NaN"),
            ({"observation": np.zeros((1, 3), np.float32)}, "act", "no column 'obs'"),
            ({**rows(1), "more": np.zeros(1)}, "act", "unknown columns: more"),
            (rows(1), "acts", "did you mean 'act'"),
            (rows(), "act", "0 rows"),
        ):
            with pytest.raises(BadRequest, match=expected):
                bad.ask(columns, kind, timeout=5)
        assert not waiting.done()
        bad.ask(rows(2))
        assert waiting.result(5).columns["action"][0, 0] == 2
    assert here.desk.server.stats.refused == 7


def test_an_error_reaches_everyone_of_its_pass_and_the_server_goes_on(place: Callable[..., Place]) -> None:
    client = place().client()
    with pytest.raises(PodiumError, match="the number of the beast"):
        client.ask(rows(666))
    assert client.ask(rows(4)).columns["action"][0, 0] == 8


def test_weights_are_swapped_under_load_and_every_answer_says_which(place: Callable[..., Place]) -> None:
    here = place(max_batch=4, max_wait_s=0.001)
    ended = threading.Event()

    def play(who: int) -> list[tuple[int, float]]:
        client, found = here.client(), []
        while not ended.is_set():
            answer = client.ask(rows(1))
            found.append((answer.version, float(answer.columns["action"][0, 0])))
        return found

    with ThreadPoolExecutor(4) as pool:
        playing = [pool.submit(play, who) for who in range(4)]
        for version in range(1, 30):
            time.sleep(0.01)
            factor = version + 1.0
            here.desk.swap({"act": lambda c, f=factor: {"action": c["obs"] * f}, "values": triple}, version)
        time.sleep(0.05)
        ended.set()
        for player in playing:
            found = player.result(10)
            versions = [version for version, _ in found]
            assert versions == sorted(versions) and versions[-1] == 29 and len(set(versions)) > 5
            assert all(number == (version + 1.0 if version else 2.0) for version, number in found)


def test_a_client_that_waits_too_long_is_told_and_may_ask_again(place: Callable[..., Place]) -> None:
    here = place(max_batch=2, max_wait_s=None)
    alone = here.client()
    began = time.monotonic()
    with pytest.raises(CallTimedOut):
        alone.ask(rows(1), timeout=0.2)
    assert time.monotonic() - began < 1.5
    other = here.client()
    with ThreadPoolExecutor(2) as pool:
        again = pool.submit(alone.ask, rows(3))
        time.sleep(0.2)
        assert not again.done()  # what it has given up is no part of a pass
        assert pool.submit(other.ask, rows(4)).result(5).columns["action"][0, 0] == 8
        assert again.result(5).columns["action"][0, 0] == 6
    assert [one.requests for one in here.passes] == [2]


def test_clients_learn_that_the_server_was_closed(place: Callable[..., Place]) -> None:
    here = place(max_batch=2, max_wait_s=None)
    client = here.client()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.ask, rows(1))
        time.sleep(0.1)
        here.transport.close()
        with pytest.raises(ServerGone):
            waiting.result(5)
