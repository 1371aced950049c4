"""The desk: many threads ask one server, each gets its own rows, and nobody waits for a thread that isn't there."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from podium.core.spaces import Columns
from podium.serving.desk import Desk
from podium.serving.server import BadRequest, Function, InferenceServer, Reply


def twice(columns: Columns) -> Columns:
    return {"action": columns["obs"] * 2}


def in_threads(count: int, work: Callable[[int], None]) -> None:
    """Run it in as many threads and wait; what one raises is raised here."""
    errors: list[BaseException] = []

    def run(index: int) -> None:
        try:
            work(index)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads), "somebody was never answered"
    if errors:
        raise errors[0]


def ask(desk: Desk, value: float, rows: int = 1, kind: str = "act", timeout: float | None = 20) -> Reply | None:
    return desk.ask({"obs": np.full((rows, 2), value, np.float32)}, rows, kind, timeout)


def test_each_thread_gets_its_own_rows() -> None:
    for settings in ({"max_batch": 5, "max_wait_s": 0.002}, {"max_batch": 64}):
        desk = Desk(InferenceServer({"act": twice}, **settings))

        def work(index: int, desk: Desk = desk) -> None:
            for i in range(200):
                value, rows = index * 1000 + i, 1 + i % 3
                reply = ask(desk, value, rows)
                assert reply is not None and reply.error is None
                assert reply.columns["action"].tolist() == [[2 * value] * 2] * rows

        in_threads(6, work)
        desk.close()
        assert desk.server.stats.requests == 1200 and desk.server.waiting == 0


def test_whoever_completes_a_pass_computes_it_for_all() -> None:
    computing: list[int] = []

    def act(columns: Columns) -> Columns:
        computing.append(threading.get_ident())
        return twice(columns)

    desk = Desk(InferenceServer({"act": act}, max_batch=4, max_wait_s=None))
    callers: set[int] = set()

    def work(index: int) -> None:
        callers.add(threading.get_ident())
        for i in range(100):
            reply = ask(desk, i)
            assert reply is not None and reply.columns["action"][0, 0] == 2 * i

    in_threads(4, work)
    assert desk.server.stats.passes == 100 and desk.server.stats.batch.counts.keys() == {16}, "all four, each time"
    assert set(computing) <= callers, "no thread of its own"
    desk.close()


def test_a_pass_falls_due_by_waiting_alone() -> None:
    desk = Desk(InferenceServer({"act": twice}, max_batch=100, max_wait_s=0.05))
    for _ in range(3):
        began = time.monotonic()
        reply = ask(desk, 1)
        waited = time.monotonic() - began
        assert reply is not None and reply.error is None and 0.045 <= waited < 5
    desk.close()
    assert threading.active_count() == len([t for t in threading.enumerate() if t.name != "inference-deadlines"])


def test_no_answer_in_time_is_none_and_nobody_waits_for_it() -> None:
    desk = Desk(InferenceServer({"act": twice}, max_batch=2, max_wait_s=None))
    assert ask(desk, 1, timeout=0.05) is None
    assert desk.server.waiting == 0 and desk.server.missing() == 2
    desk.close()


class Slowly(InferenceServer):
    """Forgets and swaps when it is told to."""

    def __init__(self) -> None:
        super().__init__({"act": twice})
        self.begun, self.go = threading.Event(), threading.Event()

    def forget(self, tag: Any) -> None:
        self.begun.set()
        assert self.go.wait(20)

    def swap(self, functions: Mapping[str, Function], version: int) -> None:
        self.forget(None)


@pytest.mark.parametrize(
    "work", [lambda desk: desk.forget(print), lambda desk: desk.swap({}, 2)], ids=["forget", "swap"]
)
def test_who_comes_while_the_desk_is_busy_otherwise_is_answered(work: Callable[[Desk], None]) -> None:
    server = Slowly()
    desk = Desk(server)
    thread = threading.Thread(target=work, args=(desk,))
    thread.start()
    assert server.begun.wait(20)
    found: list[Reply] = []
    desk.submit({"obs": np.ones((1, 2), np.float32)}, 1, "act", found.append)
    assert found == []
    server.go.set()
    thread.join(20)
    assert [reply.columns["action"].tolist() for reply in found] == [[[2, 2]]]
    desk.close()


def test_refusals_and_errors_come_back() -> None:
    def fails(columns: Columns) -> Columns:
        raise ZeroDivisionError("broke")

    desk = Desk(InferenceServer({"act": fails}))
    refused, failed = ask(desk, 1, kind="atc"), ask(desk, 1)
    assert refused is not None and isinstance(refused.error, BadRequest)
    assert failed is not None and isinstance(failed.error, ZeroDivisionError)
    desk.close()


def test_weights_change_under_load_and_no_request_is_lost() -> None:
    """Version v multiplies by v: an answer whose version is another than its factor comes from a mixed pass."""

    def by(factor: int) -> Callable[[Columns], Columns]:
        return lambda columns: {"action": columns["obs"] * factor}

    desk = Desk(InferenceServer({"act": by(1)}, max_batch=8, version=1))
    versions: list[int] = []
    done = threading.Event()

    def work(index: int) -> None:
        if index == 0:
            for version in range(2, 60):
                desk.swap({"act": by(version)}, version)
                time.sleep(0.002)
            done.set()
            return
        while not done.is_set():
            reply = ask(desk, index)
            assert reply is not None and reply.error is None
            assert reply.columns["action"][0, 0] == index * reply.version
            versions.append(reply.version)

    in_threads(4, work)
    desk.close()
    assert len(set(versions)) > 10


class AskedInBetween(Desk):
    """Something is asked in the moment after the timer has looked for deadlines, and before it waits."""

    asked: list[Reply]

    def _deliver(self, replies: Any) -> None:
        Desk._deliver(replies)
        if threading.current_thread() is self._timer and not hasattr(self, "asked"):
            self.asked = []
            asking = ({"obs": np.ones(1)}, 1, "act", self.asked.append)
            thread = threading.Thread(target=self.submit, args=asking)
            thread.start()
            thread.join()


def test_the_timer_misses_nothing_that_is_asked_just_before_it_waits() -> None:
    desk = AskedInBetween(InferenceServer({"act": twice}, max_batch=8, max_wait_s=0.01))
    until = time.monotonic() + 5
    while not getattr(desk, "asked", None) and time.monotonic() < until:
        time.sleep(0.01)
    assert [reply.columns["action"].tolist() for reply in desk.asked] == [[2.0]]
    desk.close()


def test_nothing_is_computed_while_the_desk_is_still() -> None:
    desk = Desk(InferenceServer({"act": twice}, max_batch=1, max_wait_s=None))
    found: list[Reply] = []
    with desk.still():
        desk.submit({"obs": np.ones(1)}, 1, "act", found.append)
        assert found == []
    assert len(found) == 1, "what came meanwhile is answered then"
    desk.close()


def test_who_is_alone_waits_for_nobody() -> None:
    desk = Desk(InferenceServer({"act": twice}, max_batch=8, max_wait_s=None))
    reply = desk.ask({"obs": np.ones(2)}, 2, timeout=5, alone=True)
    assert reply is not None and reply.columns["action"].tolist() == [2.0, 2.0]
    desk.close()
