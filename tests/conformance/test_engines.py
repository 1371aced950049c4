"""Every engine gives the same: values, errors, order, deaths and sums, whichever place the objects live in."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from podium.core.errors import ArgumentLost, CallTimedOut, GroupBroken, MissingExtra, WorkerDied
from podium.engine.base import Engine, Handle, Resources
from podium.engine.local import LocalEngine
from tests.conformance.players import Conductor, Keeper, Odd, Table, Unsendable, errors
from tests.processes import descendants, left, listening, listening_beyond_loopback

SIZES = {"small": 99, "64 KiB": 1 << 14, "large": 50_001}  # float32: above 64 KiB each member adds up a part


@pytest.fixture
def keeper(engine: Engine) -> Any:
    handle = engine.spawn(Keeper, 1, name="keeper-1")
    yield handle
    engine.kill(handle)


@pytest.fixture(scope="module")
def trio(engine: Engine) -> Any:
    """Three that go into one group after another."""
    handles = [engine.spawn(Keeper, name=f"member-{rank}") for rank in range(3)]
    yield handles
    for handle in handles:
        engine.kill(handle)


def here(engine: Engine) -> bool:
    return isinstance(engine, LocalEngine)


def die(engine: Engine, handle: Handle) -> None:
    """End an object without its doing: its process where it has one."""
    if here(engine):
        engine.kill(handle)
    else:
        os.kill(engine.get(handle.call("pid")), signal.SIGKILL)


def raised(engine: Engine, ref: Any) -> Exception:
    with pytest.raises(Exception) as caught:
        engine.get(ref)
    return caught.value


# --- values ---


def test_spawn_call_and_get(engine: Engine, keeper: Handle) -> None:
    engine.check(keeper.ready)
    assert keeper.name == "keeper-1"
    assert engine.get(keeper.call("keep", 2, times=2)) == [1, 2, 2]
    refs = [keeper.call("show"), engine.put({"a": 1})]
    assert engine.get(refs) == [[1, 2, 2], {"a": 1}]
    assert engine.get([]) == []


def test_refs_in_arguments_arrive_as_values(engine: Engine, keeper: Handle) -> None:
    five, shown = engine.put(5), keeper.call("show")
    assert engine.get(keeper.call("give_back", five)) == 5
    assert engine.get(keeper.call("keep", five, times=engine.put(2))) == [1, 5, 5]
    assert engine.get(keeper.call("give_back", [five, (shown, 2), []])) == [5, ([1], 2), []]
    assert engine.get(keeper.call("give_back", value=(five,))) == (5,)


def test_a_factory_takes_refs_too(engine: Engine) -> None:
    spawned = engine.spawn(Keeper, engine.put("one"), [engine.put("two")], name="fed")
    assert engine.get(spawned.call("show")) == ["one", ["two"]]
    engine.kill(spawned)


def test_what_one_returns_goes_to_another(engine: Engine, keeper: Handle) -> None:
    other = engine.spawn(Keeper)
    parts = [keeper.call("give_back", np.full(100_000, i, np.float32)) for i in (1, 2)]
    assert engine.get(other.call("total", parts)) == 300_000
    engine.kill(other)


def test_split_gives_a_ref_for_each_value(engine: Engine, keeper: Handle) -> None:
    other = engine.spawn(Keeper)
    for size in (1, 50_000):
        parts = keeper.split(3, "parts", 3, size)
        assert len(parts) == 3
        assert [float(value[0]) for value in engine.get(parts)] == [0.0, 1.0, 2.0]
        assert engine.get(other.call("total", parts[2])) == 2 * size
        assert engine.get(other.call("total", list(parts[1:]))) == 3 * size
    for part in keeper.split(2, "fail", "odd"):
        assert type(raised(engine, part)) is Odd
    engine.kill(other)


def test_large_arrays_can_be_used(engine: Engine, keeper: Handle) -> None:
    array = np.arange(300_000, dtype=np.float64).reshape(3, -1)
    back = engine.get(keeper.call("give_back", {"array": array}))["array"]
    assert back.dtype == array.dtype and np.array_equal(back, array)
    assert (back.copy() + 1).sum() == (array + 1).sum()
    again = engine.get(engine.put(back))
    assert np.array_equal(again, array)


def test_calls_of_one_object_run_in_order(engine: Engine) -> None:
    one = engine.spawn(Keeper)
    refs = [one.call("keep", one.call("sleep", 0.05 * (3 - i), i) if i < 3 else i) for i in range(12)]
    assert engine.get(refs[-1]) == list(range(12))
    assert [len(kept) for kept in engine.get(refs)] == list(range(1, 13))
    engine.kill(one)


# --- several callers ---


def at_once(engine: Engine, handle: Handle, names: list[str]) -> list[str]:
    """What the calls of several threads give, each of which waits for the others."""
    with ThreadPoolExecutor(len(names)) as pool:
        return list(pool.map(lambda name: engine.get(handle.call("sit", name), 30.0), names))


def test_one_with_several_callers_takes_their_calls_at_once(engine: Engine) -> None:
    table = engine.spawn(Table, 3, name="table-1", callers=3)
    for _ in range(3):
        assert at_once(engine, table, ["ann", "bob", "cy"]) == ["ann", "bob", "cy"]
    assert engine.processes()[-1]["pid"] == engine.get(table.call("pid"))
    engine.kill(table)
    assert isinstance(raised(engine, table.call("pid")), WorkerDied)


def test_a_call_for_its_value_alone_gives_value_and_error(engine: Engine) -> None:
    table = engine.spawn(Table, 1, name="table-2", callers=2)
    assert engine.get(table.brief("sit", "ann"), 20.0) == "ann"
    with pytest.raises(Odd, match="broken with code 3"):
        engine.get(table.brief("gone"), 20.0)
    with pytest.raises(Odd, match="broken with code 3"):
        engine.get(table.call("gone"), 20.0)
    engine.kill(table)
    with pytest.raises(WorkerDied, match="table-2 is gone"):
        for _ in range(100):  # it may have answered before it ended
            engine.get(table.brief("sit", "bob"), 20.0)
            time.sleep(0.05)


def test_calls_of_several_callers_wait_for_the_start(engine: Engine) -> None:
    table = engine.spawn(Table, engine.put(2), 0.5, callers=2)
    assert at_once(engine, table, ["ann", "bob"]) == ["ann", "bob"]
    engine.kill(table)


def test_a_start_that_fails_fails_every_call_of_several_callers(engine: Engine) -> None:
    with pytest.raises(Odd, match="broken with code 3"):
        table = engine.spawn(Table, 2, fail="odd", callers=2)
        calls = [table.call("sit", name) for name in ("ann", "bob", "cy")]
        assert {type(raised(engine, call)) for call in calls} == {Odd}
        engine.check(table.ready)


def test_one_with_several_callers_can_be_called_from_elsewhere(engine: Engine) -> None:
    """By others that were spawned, at the same time as by this process."""
    table = engine.spawn(Table, 1 if here(engine) else 3, callers=3)
    guests = [engine.spawn(Guest, engine, table) for _ in range(2)]
    calls = [guest.call("sit_down", name) for guest, name in zip(guests, ("ann", "bob"), strict=True)]
    assert engine.get([*calls, table.call("sit", "cy")]) == ["ann", "bob", "cy"]
    for handle in (*guests, table):
        engine.kill(handle)


class Guest:
    """Sits down at somebody's table."""

    def __init__(self, engine: Engine, table: Handle) -> None:
        self.engine, self.table = engine, table

    def sit_down(self, name: str) -> Any:
        return self.engine.get(self.table.call("sit", name))


# --- waiting ---


def test_wait_gives_so_many_and_the_rest(engine: Engine, keeper: Handle) -> None:
    refs = [keeper.call("give_back", i) for i in range(4)]
    ready, rest = engine.wait(refs, 3, 20.0)
    assert len(ready) == 3 and len(rest) == 1
    assert {id(ref) for ref in (*ready, *rest)} == {id(ref) for ref in refs}
    ready, rest = engine.wait(refs, 4, 20.0)
    assert engine.get(list(ready)) == [0, 1, 2, 3] and list(rest) == []


def test_wait_with_a_timeout_comes_back(engine: Engine, keeper: Handle) -> None:
    began = time.monotonic()
    slow = keeper.call("sleep", 0.5)
    ready, rest = engine.wait([slow], 1, 0.1)
    if here(engine):
        assert ready == [slow] and rest == []
    else:
        assert ready == [] and rest == [slow] and time.monotonic() - began < 0.45
        assert engine.wait([slow], 1, 10.0)[0] == [slow]


def test_a_failed_call_has_ended_too(engine: Engine, keeper: Handle) -> None:
    refs = [keeper.call("fail", "plain"), keeper.call("show")]
    assert len(engine.wait(refs, 2, 20.0)[0]) == 2


def test_get_and_check_with_a_timeout_raise(engine: Engine) -> None:
    """Where calls run elsewhere. Here every call has ended when it is asked for."""
    sleeper = engine.spawn(Keeper, name="sleeper-1")
    engine.check(sleeper.ready, 20.0)
    slow = sleeper.call("sleep", 0.3 if here(engine) else 60.0, "done")
    began = time.monotonic()
    if here(engine):
        assert engine.get(slow, 0.2) == "done"
    else:
        for ask in (engine.get, engine.check):
            with pytest.raises(CallTimedOut, match="sleeper-1 did not answer"):
                ask(slow, 0.2)
        assert time.monotonic() - began < 5
    engine.kill(sleeper)


def test_check_raises_what_the_call_raised_and_fetches_no_value(engine: Engine, keeper: Handle) -> None:
    assert engine.check(keeper.call("give_back", np.zeros(1_000_000))) is None
    with pytest.raises(LookupError, match="no coins"):
        engine.check(keeper.call("fail", "plain"))
    if not here(engine):
        ref: Any = keeper.call("give_back", Untouchable())
        engine.check(ref)
        assert "Touched" in str(raised(engine, ref))


class Touched(Exception):
    """Somebody has fetched what should have stayed where it was."""


class Untouchable:
    """Can be sent to an object once, and raises in the process of the one who asks for it back."""

    def __init__(self, home: int | None = None) -> None:
        self.home = home or os.getpid()

    def __reduce__(self) -> Any:
        return _untouchable, (self.home,)


def _untouchable(home: int) -> Untouchable:
    if os.getpid() == home:
        raise Touched
    return Untouchable(home)


# --- errors ---


@pytest.mark.parametrize("kind", ["plain", "system", "missing", "odd", "unsendable"])
def test_errors_keep_type_message_and_notes(engine: Engine, keeper: Handle, kind: str) -> None:
    expected = errors()[kind]
    ref = keeper.call("fail", kind)
    for _ in range(2):
        error = raised(engine, ref)
        assert type(error) is type(expected) and str(error) == str(expected)
        assert error.args == expected.args
        assert error.__notes__ == ["in env 3 at step 7"]
    if isinstance(error, Odd):
        assert error.code == 3
    if isinstance(error, Unsendable):
        assert error.kept == 7
    if isinstance(error, MissingExtra):
        assert error.exit_code == 2
    if isinstance(error, FileNotFoundError):
        assert (error.errno, error.filename) == (2, "there")
    assert engine.get(keeper.call("show")) == [1], "the object lives on"


def test_an_unknown_method_and_wrong_arguments_are_errors(engine: Engine, keeper: Handle) -> None:
    assert type(raised(engine, keeper.call("kep", 1))) is AttributeError
    assert type(raised(engine, keeper.call("keep"))) is TypeError


@pytest.mark.parametrize("kind", ["plain", "odd", "missing"])
def test_an_error_of_the_factory_is_that_of_the_start(engine: Engine, kind: str) -> None:
    with pytest.raises(type(errors()[kind])) as caught:
        spawned = engine.spawn(Keeper, fail=kind)  # the local engine raises here, others tell it by `ready`
        refs = [spawned.ready, spawned.call("show")]
        for ref in refs:
            assert str(raised(engine, ref)) == str(errors()[kind])
        engine.check(spawned.ready)
    assert str(caught.value) == str(errors()[kind])
    assert caught.value.__notes__ == ["in env 3 at step 7"]


@pytest.mark.parametrize("kind", ["plain", "odd", "missing", "unsendable"])
def test_a_failed_argument_fails_the_call_with_its_error(engine: Engine, keeper: Handle, kind: str) -> None:
    other = engine.spawn(Keeper, name="other-1")
    failed = keeper.call("fail", kind)
    for ref in (
        other.call("give_back", failed),
        other.call("give_back", value=failed),
        other.call("give_back", [1, [failed]]),
        other.call("give_back", other.call("give_back", failed)),
        *other.split(2, "give_back", failed),
    ):
        error = raised(engine, ref)
        assert type(error) is type(errors()[kind]) and str(error) == str(errors()[kind])
        assert error.__notes__ == ["in env 3 at step 7"]
    assert engine.get(other.call("show")) == []
    engine.kill(other)


# --- death ---


def test_the_calls_of_one_that_died_fail(engine: Engine) -> None:
    one, other = engine.spawn(Keeper, name="one-1"), engine.spawn(Keeper, name="other-2")
    assert engine.get([one.call("show"), other.call("show")]) == [[], []]
    die(engine, one)
    began = time.monotonic()
    for ref in (one.call("show"), one.call("show"), *one.split(2, "parts", 2)):
        with pytest.raises(WorkerDied, match="one-1 is gone"):
            engine.get(ref)
        with pytest.raises(WorkerDied, match="one-1 is gone"):
            engine.check(ref)
    assert time.monotonic() - began < 10
    assert engine.get(other.call("show")) == []
    engine.kill(one)
    engine.kill(other)
    with pytest.raises(WorkerDied, match="other-2"):
        engine.get(other.call("show"))


def test_an_argument_from_one_that_died_is_told_from_a_death(engine: Engine) -> None:
    one, other = engine.spawn(Keeper, name="one-1"), engine.spawn(Keeper, name="other-2")
    engine.check(one.ready)
    die(engine, one)
    lost = one.call("show")
    for ref in (other.call("keep", lost), other.call("keep", [lost]), other.call("keep", 1, times=lost)):
        with pytest.raises(ArgumentLost):
            engine.get(ref)
    assert engine.get(other.call("show")) == []
    engine.kill(other)


def test_a_call_of_one_that_is_killed_in_its_midst_fails(engine: Engine) -> None:
    if here(engine):
        return  # nothing is ever in its midst
    one = engine.spawn(Keeper, name="one-1")
    pid = engine.get(one.call("pid"))
    slow = one.call("sleep", 60.0)
    assert engine.wait([slow], 1, 0.2)[0] == []
    began = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(WorkerDied, match="one-1 is gone"):
        engine.get(slow, 20.0)
    assert time.monotonic() - began < 10


def test_one_that_calls_sys_exit_says_so(engine: Engine, keeper: Handle) -> None:
    if here(engine):
        with pytest.raises(SystemExit):
            keeper.call("leave")
    else:
        error = raised(engine, keeper.call("leave"))
        assert type(error) is RuntimeError and str(error) == "something called sys.exit(3)"
    assert engine.get(keeper.call("show")) == [1]


# --- engines within engines ---


def test_a_spawned_object_spawns_in_the_same_place(engine: Engine, keeper: Handle) -> None:
    conductor = engine.spawn(Conductor, engine.child(), 2, name="conductor-1")
    assert engine.get(conductor.call("ask", "tea")) == [[0, "tea"], [1, "tea"]]
    assert engine.get(conductor.call("ask", 2)) == [[0, "tea", 2], [1, "tea", 2]]
    assert engine.get(conductor.call("ask_one", keeper, 9)) == [1, 9]
    assert engine.get(keeper.call("show")) == [1, 9], "the very same object was called"
    pids = engine.get(conductor.call("pids"))
    assert len(set(pids)) == (1 if here(engine) else 3)
    engine.kill(conductor)
    if not here(engine):
        assert left([one for one in descendants(os.getpid()) if one[0] in pids]) == []


def test_a_child_reserves_what_it_will_spawn(engine: Engine) -> None:
    conductor = engine.spawn(Conductor, engine.child([Resources(cpus=1), Resources(cpus=1)]), 2)
    assert engine.get(conductor.call("ask", 1)) == [[0, 1], [1, 1]]
    engine.kill(conductor)


# --- groups ---


def arrays(members: int, size: int) -> list[np.ndarray]:
    """Numbers of many magnitudes, so that another order of adding rounds otherwise."""
    rng = np.random.default_rng(size)
    return [(rng.standard_normal(size) * 10.0 ** rng.integers(-4, 5, size)).astype(np.float32) for _ in range(members)]


def in_rank_order(values: list[np.ndarray]) -> np.ndarray:
    total = values[0].copy()
    for value in values[1:]:
        total = total + value
    return (total / np.float32(len(values))).astype(np.float32)


@pytest.mark.parametrize("size", list(SIZES))
@pytest.mark.parametrize("members", [1, 2, 3])
def test_a_group_gives_everyone_the_mean_summed_in_rank_order(
    engine: Engine, trio: list[Handle], members: int, size: str
) -> None:
    handles = trio[:members]
    given = arrays(members, SIZES[size])
    group = engine.group(handles)
    assert [handle.name for handle in group.handles] == [f"member-{rank}" for rank in range(members)]
    assert engine.get(group.call("who", [()] * members)) == [(rank, members) for rank in range(members)]
    results = engine.get(group.call("mean_of_mine", [(array, 3) for array in given]))
    for round_ in range(3):
        expected = in_rank_order([array * np.float32(round_ + 1) for array in given])
        for rank in range(members):
            assert results[rank][round_].dtype == np.float32
            assert results[rank][round_].tobytes() == expected.tobytes()
    if members == 3:
        backwards = in_rank_order(given[::-1])
        assert backwards.tobytes() != results[0][0].tobytes(), "these numbers would not show the order"
    group.close()


def test_a_group_takes_refs_and_other_shapes(engine: Engine, trio: list[Handle]) -> None:
    handles = trio[1:]
    group = engine.group(handles)
    square = np.arange(200 * 200, dtype=np.float64).reshape(200, 200)
    refs = group.call("mean_of_mine", [(engine.put(square),), (engine.put(3 * square),)])
    for (mean,) in engine.get(refs):
        assert mean.shape == square.shape and np.array_equal(mean, 2 * square)
    group.close()
    second = engine.group(handles[::-1])
    assert engine.get(second.call("who", [(), ()])) == [(0, 2), (1, 2)]
    second.close()


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_a_member_that_raises_breaks_the_group_at_once(engine: Engine, trio: list[Handle], failing: int) -> None:
    group = engine.group(trio)
    began = time.monotonic()
    refs = group.call("meet_unless", [(rank == failing,) for rank in range(3)])
    found = [type(raised(engine, ref)) for ref in refs]
    assert found == [Odd if rank == failing else GroupBroken for rank in range(3)]
    assert time.monotonic() - began < 5
    group.close()
    fresh = engine.group(trio)
    assert len(engine.get(fresh.call("meet_unless", [(False,)] * 3))) == 3
    fresh.close()


def test_a_member_that_dies_breaks_the_group_at_once(engine: Engine) -> None:
    if here(engine):
        return  # it would be this process that dies
    handles = [engine.spawn(Keeper, name=f"member-{rank}") for rank in range(3)]
    group = engine.group(handles)
    engine.get(group.call("who", [()] * 3))
    began = time.monotonic()
    refs = group.call("meet_and_die", [(rank == 1,) for rank in range(3)])
    errors_ = [raised(engine, ref) for ref in refs]
    assert [type(error) for error in errors_] == [GroupBroken, WorkerDied, GroupBroken]
    assert "member-1 is gone" in str(errors_[1]) and time.monotonic() - began < 10
    group.close()
    rest = engine.group([handles[0], handles[2]])
    assert len(engine.get(rest.call("meet_unless", [(False,)] * 2))) == 2
    rest.close()
    for handle in handles:
        engine.kill(handle)


def test_a_group_with_a_dead_member_is_refused(engine: Engine) -> None:
    handles = [engine.spawn(Keeper) for _ in range(2)]
    engine.get([handle.call("show") for handle in handles])
    die(engine, handles[1])
    began = time.monotonic()
    with pytest.raises((WorkerDied, GroupBroken)):
        group = engine.group(handles)
        for ref in group.call("meet_unless", [(False,), (False,)]):
            engine.get(ref)
    assert time.monotonic() - began < 10
    assert engine.get(handles[0].call("show"), 10.0) == [], "nobody is left waiting for it"
    engine.kill(handles[0])


def test_a_member_that_is_late_is_not_waited_for_beyond_the_patience(engine: Engine, trio: list[Handle]) -> None:
    if here(engine):
        return  # threads of one process: nobody can be given up
    group = engine.group(trio, patience=1.0)
    began = time.monotonic()
    refs = group.call("come_late", [(6.0 if rank == 2 else 0.0,) for rank in range(3)])
    for ref in refs[:2]:
        assert type(raised(engine, ref)) is GroupBroken
    assert 0.9 < time.monotonic() - began < 5
    assert type(raised(engine, refs[2])) is GroupBroken
    group.close()


# --- processes ---


def test_processes_tell_who_runs_where(engine: Engine) -> None:
    worker = engine.spawn(Keeper, name="worker-7")
    pid = engine.get(worker.call("pid"))
    told = engine.processes()
    assert told[0] == {"role": "controller", "index": 0, "pid": os.getpid()}
    if here(engine):
        assert pid == os.getpid()
    else:
        assert {"role": "worker", "index": 7, "pid": pid} in told and pid != os.getpid()
    engine.kill(worker)
    assert not [one for one in engine.processes() if one["role"] == "worker"]


def test_nothing_listens_beyond_loopback(engine: Engine, trio: list[Handle]) -> None:
    group = engine.group(trio[:2])
    engine.get(group.call("who", [(), ()]))
    started = descendants(os.getpid())
    if not here(engine):
        assert len(listening(started)) > 3, "a cluster that listens nowhere: this test would see nothing"
    assert listening_beyond_loopback(started) == []
    group.close()


def test_a_kill_ends_the_process(engine: Engine) -> None:
    one = engine.spawn(Keeper)
    pid = engine.get(one.call("pid"))
    engine.kill(one)
    if not here(engine):
        assert left([found for found in descendants(os.getpid()) if found[0] == pid]) == []
