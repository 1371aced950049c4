"""The pool: first-come results, bounded calls, the failed replaced, and an end with the first cause where nothing works."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from podium.core.errors import ArgumentLost, CallTimedOut, WorkerDied
from podium.engine import pool as pool_module
from podium.engine.base import Engine, Handle
from podium.engine.local import LocalEngine
from podium.engine.pool import Finished, Pool


class Slow:
    """A call that ends when the test says so; until then a LocalEngine that knows of it does not find it ready."""

    def __init__(self, value: Any = None) -> None:
        self.ended, self._value, self._error = False, value, None

    def end(self, value: Any = None, error: Exception | None = None) -> None:
        self.ended, self._value, self._error = True, value, error

    def value(self) -> Any:
        assert self.ended, "somebody asked for a value that isn't there yet"
        if self._error is not None:
            raise self._error
        return self._value


class Hand:
    """A handle whose calls end by hand, and which tells what it was asked."""

    def __init__(self, name: str, up: bool = True) -> None:
        self.name, self.killed = name, False
        self.ready = Slow()
        self.ready.ended = up
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.refs: list[Slow] = []
        self.answers = True

    def call(self, method: str, *args: Any) -> Slow:
        ref = Slow()
        if method == "processes":
            ref.ended = self.answers
            return ref
        assert not self.killed, f"{self.name} is gone, and was called"
        self.calls.append((method, args))
        self.refs.append(ref)
        return ref

    def split(self, n: int, method: str, *args: Any) -> list[Slow]:
        return [self.call(method, *args), *(Slow(part) for part in range(n - 1))]


class ByHand:
    """An engine over such handles. Where nothing is ready it lets the next of the planned events happen, or time pass."""

    def __init__(self) -> None:
        self.hands: list[Hand] = []
        self.plan: list[Callable[[], None]] = []
        self.starts_up = True
        self.now = 100.0

    def spawn(self, index: int, replaced: int) -> Hand:
        hand = Hand(f"worker-{index}.{replaced}", self.starts_up)
        self.hands.append(hand)
        return hand

    def wait(self, refs: Any, n: int = 1, timeout: float | None = None) -> Any:
        limit = None if timeout is None else self.now + timeout
        while True:
            ready = [ref for ref in refs if ref.ended]
            if len(ready) >= n or timeout == 0:
                break
            if self.plan:
                self.plan.pop(0)()
                continue
            assert limit is not None, "this would wait forever"
            self.now = max(self.now, limit)
            break
        ready = ready[:n]
        return ready, [ref for ref in refs if ref not in ready]

    def check(self, ref: Slow, timeout: float | None = None) -> None:
        ref.value()

    def kill(self, hand: Hand) -> None:
        hand.killed = True


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> ByHand:
    made = ByHand()
    monkeypatch.setattr(pool_module, "monotonic", lambda: made.now)
    return made


def make(engine: ByHand, count: int, **options: Any) -> Pool:
    return Pool(engine, engine.spawn, count, **options)  # type: ignore[arg-type]


def indexes(finished: list[Finished]) -> list[int]:
    return [one.index for one in finished]


# --- calls ---


def test_results_come_first_come_first_with_their_tags(engine: ByHand) -> None:
    pool = make(engine, 3)
    assert len(pool) == 3 and pool.up == pool.free == [1, 2, 3]
    for index in pool.free:
        pool.call(index, "play", index, tag=f"tag {index}")
    assert pool.in_flight == 3 and pool.free == []
    assert [hand.calls for hand in engine.hands] == [[("play", (index,))] for index in (1, 2, 3)]
    engine.plan = [lambda: engine.hands[2].refs[0].end("c"), lambda: engine.hands[0].refs[0].end("a")]
    (first,) = pool.wait()
    assert (first.index, first.tag, first.ref.value()) == (3, "tag 3", "c")  # type: ignore[attr-defined]
    assert pool.free == [3] and pool.in_flight == 2
    assert indexes(pool.wait()) == [1]
    engine.hands[1].refs[0].end("b")
    assert indexes(pool.wait()) == [2]
    assert pool.wait() == [] and pool.lost == pool.replaced == 0


def test_all_that_has_ended_comes_at_once(engine: ByHand) -> None:
    pool = make(engine, 3)
    for index in pool.free:
        pool.call(index, "play")
    for hand in engine.hands[:2]:
        hand.refs[0].end()
    assert indexes(pool.wait()) == [1, 2] and pool.in_flight == 1


def test_no_more_calls_than_the_depth(engine: ByHand) -> None:
    pool = make(engine, 2, depth=2)
    pool.call(1, "play", tag="first")
    assert pool.free == [1, 2]
    pool.call(1, "play", tag="second")
    assert pool.free == [2] and pool.in_flight == 2
    engine.hands[0].refs[0].end()
    assert [one.tag for one in pool.wait()] == ["first"] and pool.free == [1, 2]
    engine.hands[0].refs[1].end()
    assert [one.tag for one in pool.wait()] == ["second"]


def test_a_call_in_parts_gives_a_ref_for_each(engine: ByHand) -> None:
    pool = make(engine, 1)
    pool.call(1, "push", parts=3)
    engine.hands[0].refs[0].end("report")
    (one,) = pool.wait()
    assert one.ref.value() == "report" and len(one.parts) == 3  # type: ignore[attr-defined]


def test_waiting_ends_with_the_other_call(engine: ByHand) -> None:
    pool = make(engine, 1)
    pool.call(1, "play")
    learning: Any = Slow()
    engine.plan = [learning.end]
    assert pool.wait(until=learning) == [] and pool.until_ended and pool.in_flight == 1
    engine.hands[0].refs[0].end()
    assert indexes(pool.wait(until=Slow())) == [1] and not pool.until_ended  # type: ignore[arg-type]


# --- failures ---


def test_one_that_raises_is_replaced_and_its_calls_are_lost(engine: ByHand) -> None:
    pool = make(engine, 2, depth=2)
    for _ in range(2):
        pool.call(1, "play")
    pool.call(2, "play")
    engine.hands[0].refs[0].end(error=LookupError("broken"))
    engine.hands[1].refs[0].end()
    assert indexes(pool.wait()) == [2]
    assert (pool.replaced, pool.lost, pool.in_flight) == (1, 2, 0)
    assert engine.hands[0].killed and not engine.hands[1].killed
    assert engine.hands[2].name == "worker-1.1" and pool.handle(1) is engine.hands[2]
    assert pool.generation(1) == 1 and pool.generation(2) == 0


def test_a_replacement_is_called_once_it_is_up(engine: ByHand) -> None:
    pool = make(engine, 2)
    engine.starts_up = False
    pool.fail(1, WorkerDied("gone"))
    assert pool.up == pool.free == [2]
    pool.call(2, "play")
    engine.hands[2].ready.end()
    pool.poll()
    assert pool.up == [1, 2] and pool.free == [1] and pool.in_flight == 1


def test_one_that_hangs_is_replaced_when_its_time_is_over(engine: ByHand) -> None:
    pool = make(engine, 2, time_limit=30.0)
    for index in (1, 2):
        pool.call(index, "play")
    began = engine.now

    def quick_one_ends() -> None:
        engine.now += 10
        engine.hands[1].refs[-1].end()

    engine.plan = [quick_one_ends]
    assert indexes(pool.wait()) == [2]
    assert pool.wait() == [], "nothing but the limit ends this wait"
    assert engine.hands[0].killed and began + 30 <= engine.now < began + 45
    assert (pool.replaced, pool.lost) == (1, 1) and pool.handle(1) is engine.hands[2]


def test_one_that_hangs_is_found_though_others_never_stop(engine: ByHand) -> None:
    pool = make(engine, 3, time_limit=30.0)
    for index in (1, 2, 3):
        pool.call(index, "play")
    for _ in range(20):
        engine.now += 5
        for hand in engine.hands[1:3]:
            hand.refs[-1].end()
        assert set(indexes(pool.wait())) >= {2, 3}
        for index in (2, 3):
            pool.call(index, "play")
        if pool.replaced:
            break
    assert pool.replaced == 1 and engine.hands[0].killed and engine.now <= 100 + 40


def test_time_runs_from_when_a_worker_could_begin(engine: ByHand) -> None:
    pool = make(engine, 1, depth=2, time_limit=30.0)
    for _ in range(2):
        pool.call(1, "play")

    def first_ends() -> None:
        engine.now += 25
        engine.hands[0].refs[0].end()

    def second_ends() -> None:
        engine.now += 25
        engine.hands[0].refs[1].end()

    engine.plan = [first_ends, second_ends]
    assert indexes(pool.wait()) == [1] and indexes(pool.wait()) == [1]
    assert pool.replaced == 0


def test_a_replacement_that_does_not_start_is_replaced(engine: ByHand) -> None:
    pool = make(engine, 2, time_limit=10_000.0)
    engine.starts_up = False
    pool.fail(1, WorkerDied("gone"))
    pool.call(2, "play")
    engine.starts_up = True

    def still_playing() -> None:
        engine.now += pool_module.START_S + 1

    engine.plan = [still_playing, lambda: engine.hands[1].refs[0].end()]
    assert indexes(pool.wait()) == [2]
    pool.poll()
    assert pool.replaced == 2 and engine.hands[2].killed and pool.generation(1) == 2
    pool.poll()
    assert pool.up == [1, 2]


def test_all_that_fail_at_the_beginning_are_an_error_at_once(engine: ByHand) -> None:
    def spawn(index: int, replaced: int) -> Hand:
        hand = engine.spawn(index, replaced)
        if index == 2:
            hand.ready.end(error=FileNotFoundError("no rom"))
        return hand

    with pytest.raises(FileNotFoundError, match="no rom"):
        Pool(engine, spawn, 3)  # type: ignore[arg-type]
    assert len(engine.hands) == 3 and all(hand.killed for hand in engine.hands)


def test_one_that_never_starts_is_told_by_name(engine: ByHand) -> None:
    engine.starts_up = False
    with pytest.raises(CallTimedOut, match=r"worker-1\.0 did not start within 120 s"):
        make(engine, 2)
    assert all(hand.killed for hand in engine.hands)


def test_what_an_argument_misses_is_no_workers_fault(engine: ByHand) -> None:
    pool = make(engine, 2)
    for index in (1, 2):
        pool.call(index, "play")
    engine.hands[0].refs[0].end(error=ArgumentLost("the learner is gone"))
    with pytest.raises(ArgumentLost, match="the learner is gone"):
        pool.wait()
    assert pool.replaced == 0


# --- the budget ---


def fail_next(engine: ByHand, pool: Pool, index: int, error: Exception) -> None:
    pool.poll()
    assert index in pool.free
    pool.call(index, "play")
    pool.handle(index).refs[-1].end(error=error)  # type: ignore[attr-defined]


def test_too_many_failures_with_nothing_between_end_it_with_the_first_cause(engine: ByHand) -> None:
    pool = make(engine, 2, max_failures=3)
    causes = [KeyError("first"), WorkerDied("second"), ValueError("third"), TypeError("fourth")]
    for cause in causes[:3]:
        fail_next(engine, pool, 1, cause)
        pool.poll()
    assert pool.replaced == 3
    fail_next(engine, pool, 2, causes[3])
    with pytest.raises(KeyError, match="first") as caught:
        pool.wait()
    assert caught.value is causes[0]
    assert caught.value.__notes__ == ["4 workers failed with nothing finished between them"]


def test_a_finished_call_between_them_resets_the_count(engine: ByHand) -> None:
    pool = make(engine, 2, max_failures=2)
    for _ in range(5):
        for _ in range(2):
            fail_next(engine, pool, 1, ValueError("again"))
            pool.poll()
        pool.call(2, "play")
        engine.hands[1].refs[-1].end()
        assert indexes(pool.wait()) == [2]
    assert pool.replaced == 10
    pool.note_success()
    for _ in range(2):
        pool.fail(1, ValueError("again"))
    pool.note_success()
    pool.fail(1, ValueError("again"))
    assert pool.replaced == 13


def test_a_start_alone_resets_nothing(engine: ByHand) -> None:
    pool = make(engine, 1, max_failures=2)
    for _ in range(2):
        pool.fail(1, LookupError("why"))
        pool.poll()
        assert pool.up == [1]
    with pytest.raises(LookupError, match="why"):
        pool.fail(1, ValueError("late"))


def test_without_a_budget_the_first_failure_is_the_end(engine: ByHand) -> None:
    pool = make(engine, 1, max_failures=0)
    with pytest.raises(ValueError, match="no") as caught:
        pool.fail(1, ValueError("no"))
    assert not hasattr(caught.value, "__notes__") and pool.replaced == 0


def test_nobody_up_for_too_long_is_the_first_cause(engine: ByHand) -> None:
    pool = make(engine, 1, max_failures=100)
    engine.starts_up = False
    pool.fail(1, LookupError("why"))
    with pytest.raises(LookupError, match="why"):
        pool.wait()
    assert engine.now >= 100 + pool_module.START_S


# --- all of them ---


def test_each_gives_everyones_result_in_their_order(engine: ByHand) -> None:
    pool = make(engine, 3)
    engine.plan = [lambda i=i: engine.hands[i].refs[0].end(i) for i in (2, 0, 1)]  # type: ignore[misc]
    found = pool.each("sample", 8)
    assert indexes(found) == [1, 2, 3] and [hand.calls for hand in engine.hands] == [[("sample", (8,))]] * 3


def test_each_leaves_a_failed_one_out_and_gets_it_back(engine: ByHand) -> None:
    pool = make(engine, 2)
    engine.starts_up = False
    engine.plan = [
        lambda: engine.hands[0].refs[0].end(error=WorkerDied("gone")),
        lambda: engine.hands[1].refs[0].end(),
    ]
    assert indexes(pool.each("sample")) == [2]
    engine.plan = [lambda: engine.hands[1].refs[1].end()]
    assert indexes(pool.each("sample")) == [2], "it goes on while the other one is starting"
    engine.hands[2].ready.end()
    engine.plan = [lambda: engine.hands[1].refs[2].end(), lambda: engine.hands[2].refs[0].end()]
    pool.poll()
    assert indexes(pool.each("sample")) == [1, 2]


def test_each_waits_where_all_have_failed(engine: ByHand) -> None:
    pool = make(engine, 2)
    engine.starts_up = False
    engine.plan = [
        lambda: engine.hands[0].refs[0].end(error=WorkerDied("gone")),
        lambda: engine.hands[1].refs[0].end(error=WorkerDied("gone")),
        lambda: engine.hands[3].ready.end(),
        lambda: engine.hands[3].refs[0].end("back"),
    ]
    (one,) = pool.each("sample")
    assert one.index == 2 and pool.replaced == 2 and pool.up == [2]


def test_check_alive_replaces_those_that_do_not_answer(engine: ByHand) -> None:
    pool = make(engine, 3)
    engine.hands[1].answers = False
    pool.check_alive(within=5.0)
    assert pool.generation(2) == 1 and pool.replaced == 1 and engine.now == 105
    pool.check_alive(within=5.0)
    assert pool.replaced == 1 and engine.now == 105


def test_wait_for_all_gives_replacements_their_time(engine: ByHand) -> None:
    pool = make(engine, 2)
    engine.starts_up = False
    pool.fail(1, WorkerDied("gone"))
    pool.wait_for_all(10.0)
    assert pool.up == [2] and 110 <= engine.now < 112
    engine.plan = [engine.hands[2].ready.end]
    pool.wait_for_all(10.0)
    assert pool.up == [1, 2] and engine.now < 112


def test_close_kills_everyone_once(engine: ByHand) -> None:
    pool = make(engine, 2)
    pool.close()
    assert all(hand.killed for hand in engine.hands) and len(pool) == 0
    pool.close()


# --- on engines ---


class Player:
    """Plays, or fails as it is told."""

    def __init__(self, index: int, replaced: int = 0) -> None:
        self.index, self.replaced = index, replaced

    def play(self, value: int = 0) -> tuple[int, int, int]:
        return self.index, self.replaced, value

    def fail_first(self) -> int:
        """All but the replacements fail."""
        if not self.replaced:
            raise LookupError(f"player {self.index}")
        return self.index

    def fail(self) -> None:
        raise LookupError(f"player {self.index}")

    def hang_first(self) -> int:
        if self.index == 1 and not self.replaced:
            time.sleep(600)
        return self.index

    def pid(self) -> int:
        return os.getpid()

    def processes(self) -> list[Any]:
        return []


@pytest.fixture(scope="module", params=["local", "strict", "ray"])
def real(request: pytest.FixtureRequest) -> Iterator[Engine]:
    made: Any
    if request.param == "ray":
        from podium.engine.ray import RayEngine

        made = RayEngine(num_cpus=4)
    else:
        made = LocalEngine(request.param == "strict")
    yield made
    made.close()


def pool_on(engine: Engine, count: int = 2, **options: Any) -> Pool:
    def spawn(index: int, replaced: int) -> Handle:
        return engine.spawn(Player, index, replaced, name=f"player-{index}")

    return Pool(engine, spawn, count, **options)


def test_a_pool_of_players(real: Engine) -> None:
    pool = pool_on(real)
    for index in pool.free:
        pool.call(index, "play", 7, tag=index)
    finished = []
    while pool.in_flight:
        finished += pool.wait()
    assert sorted(real.get([one.ref for one in finished])) == [(1, 0, 7), (2, 0, 7)]
    assert real.get([one.ref for one in pool.each("play", 8)]) == [(1, 0, 8), (2, 0, 8)]
    pool.close()


def test_players_that_raise_are_replaced_by_such_as_know_it(real: Engine) -> None:
    pool = pool_on(real)
    found = pool.each("fail_first")
    while len(found) < 2:
        pool.wait_for_all(60.0)
        found = pool.each("fail_first")
    assert real.get([one.ref for one in found]) == [1, 2] and pool.replaced == 2
    pool.close()


def test_players_that_always_raise_end_it_with_their_error(real: Engine) -> None:
    pool = pool_on(real, max_failures=2)
    with pytest.raises(LookupError, match="player") as caught:
        pool.each("fail")
    assert type(caught.value) is LookupError
    assert caught.value.__notes__ == ["3 workers failed with nothing finished between them"]
    pool.close()


def test_players_that_die_or_hang_are_replaced(real: Engine) -> None:
    """Only where they have processes of their own."""
    if isinstance(real, LocalEngine):
        return
    pool = pool_on(real, time_limit=1.5)
    _, second = real.get([one.ref for one in pool.each("pid")])
    os.kill(second, signal.SIGKILL)
    assert indexes(pool.each("play")) == [1]
    pool.wait_for_all(60.0)
    assert indexes(pool.each("play")) == [1, 2] and pool.generation(2) == 1
    began = time.monotonic()
    assert indexes(pool.each("hang_first")) == [2]
    assert 1.4 < time.monotonic() - began < 10 and pool.replaced == 2
    pool.wait_for_all(60.0)
    assert real.get([one.ref for one in pool.each("hang_first")]) == [1, 2]
    os.kill(real.get([one.ref for one in pool.each("pid")])[0], signal.SIGKILL)
    time.sleep(0.5)
    pool.check_alive()
    assert pool.generation(1) == 2 and pool.generation(2) == 1
    pool.close()
