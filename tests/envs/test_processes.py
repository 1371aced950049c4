"""Envs in worker processes: the same data, errors that travel whole, and nothing left behind whatever happens."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from sample_envs import Counting, OddError

from podium.core.errors import EnvDataError, UsageError, WorkerDied
from podium.envs.make import EnvSpec, make
from podium.envs.processes import ProcessVector

HERE = Path(__file__).parent


def alive(pid: int) -> bool:
    """Whether a process runs; a dead one that nobody has waited for doesn't."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def eventually(condition: Callable[[], bool], seconds: float = 5.0) -> bool:
    until = time.monotonic() + seconds
    while not condition() and time.monotonic() < until:
        time.sleep(0.02)
    return condition()


def segments() -> set[str]:
    return set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()


@pytest.fixture(autouse=True)
def nothing_left_in_shared_memory() -> Iterator[None]:
    before = segments()
    yield
    assert segments() <= before


def started(args: dict, n: int = 4, processes: int = 2) -> tuple[ProcessVector, list[int]]:
    env = make(EnvSpec("sample_envs:Faulty", args, processes=processes), n)
    assert isinstance(env, ProcessVector)
    env.reset(range(20, 20 + n))
    return env, env.processes()


def test_processes_give_what_one_process_gives() -> None:
    many, one = (
        make(EnvSpec("Pendulum-v1", time_limit=9, processes=2), 5),
        make(EnvSpec("Pendulum-v1", time_limit=9), 5),
    )
    rng = np.random.default_rng(0)
    try:
        assert many.observation_space == one.observation_space and many.action_space == one.action_space
        seeds = [5, 6, 7, 8, 9]
        np.testing.assert_array_equal(many.reset(seeds)["obs"], one.reset(seeds)["obs"])
        for _ in range(20):
            actions = many.action_space.sample(rng, 5) * 3
            a, b = many.step(actions), one.step(actions)
            np.testing.assert_array_equal(a.obs["obs"], b.obs["obs"])
            np.testing.assert_array_equal(a.reward, b.reward)
            np.testing.assert_array_equal(a.truncated, b.truncated)
            assert (a.final_rows is None) == (b.final_rows is None)
            if a.finals is not None and b.finals is not None:
                np.testing.assert_array_equal(a.finals["obs"], b.finals["obs"])
    finally:
        many.close()


def test_masks_travel_and_more_processes_than_envs_are_not_started() -> None:
    env = make(EnvSpec("sample_envs:MaskInObservation", processes=5), 2)
    assert isinstance(env, ProcessVector)
    try:
        assert env.masked and len(env.processes()) == 2
        assert env.reset([0, 1])["mask"].tolist() == [[True, False, False]] * 2
    finally:
        env.close()


def test_closing_ends_every_worker() -> None:
    env, pids = started({})
    assert len(pids) == 2 and all(map(alive, pids))
    env.close()
    assert not any(map(alive, pids))
    env.close()


def test_an_envs_own_error_travels_with_type_message_and_note() -> None:
    env, pids = started({"fault": "raise", "at": 3, "victim": 23})
    env.step(np.zeros(4, np.int64))
    env.step(np.zeros(4, np.int64))
    with pytest.raises(ZeroDivisionError, match="the motor broke") as caught:
        env.step(np.zeros(4, np.int64))
    assert str(caught.value) == "the motor broke"
    assert caught.value.__notes__ == ["env 3, step 3"]
    assert "do_raise" in str(caught.value.__cause__)
    assert eventually(lambda: not any(map(alive, pids)))


def test_an_error_that_cannot_be_pickled_keeps_its_type() -> None:
    env, _ = started({"fault": "raise odd", "victim": 21})
    with pytest.raises(OddError, match="code 7 at the gate") as caught:
        env.step(np.zeros(4, np.int64))
    assert str(caught.value) == "code 7 at the gate"
    assert caught.value.__notes__ == ["env 1, step 1"]


def test_an_operating_system_error_of_an_env_is_no_dead_worker() -> None:
    env, _ = started({"fault": "file missing", "victim": 21})
    with pytest.raises(FileNotFoundError, match="no such map") as caught:
        env.step(np.zeros(4, np.int64))
    assert caught.value.filename == "map.txt"


def test_bad_data_is_named_by_the_number_among_all_envs() -> None:
    env, _ = started({"fault": "nan", "victim": 22})
    with pytest.raises(EnvDataError, match="obs/camera is NaN in env 2 at step 1"):
        env.step(np.zeros(4, np.int64))


@pytest.mark.parametrize("when", ["in a step", "between steps"])
def test_a_killed_worker_is_named_at_once(when: str) -> None:
    env, pids = started({"fault": "die", "victim": 22} if when == "in a step" else {})
    if when == "between steps":
        os.kill(pids[1], signal.SIGKILL)
    began = time.monotonic()
    with pytest.raises(
        WorkerDied, match=rf"env process 1 \(envs 2 to 3, pid {pids[1]}\) .* died \(killed by SIGKILL\)"
    ):
        env.step(np.zeros(4, np.int64))
    assert time.monotonic() - began < 10
    assert not any(map(alive, pids))


def test_a_silent_worker_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    env, pids = started({"fault": "hang", "victim": 20}, n=2)
    monkeypatch.setattr("podium.envs.processes.SILENT_S", 1.0)
    with pytest.raises(WorkerDied, match=r"env process 0 \(env.* said nothing for 1 s"):
        env.step(np.zeros(2, np.int64))
    assert not any(map(alive, pids))


def test_an_env_that_cannot_be_made_fails_in_the_caller() -> None:
    with pytest.raises(UsageError, match="has no argument 'gg'; did you mean 'g'"):
        make(EnvSpec("Pendulum-v1", {"gg": 1}, processes=2), 2)
    with pytest.raises(UsageError, match="can't be sent to env processes; define it at a module's top level"):
        make(EnvSpec(lambda: Counting(), processes=2), 2)


def test_a_callable_of_a_module_runs_in_processes() -> None:
    env = make(EnvSpec(Counting, processes=1), 1)
    try:
        assert env.reset([4])["obs"].tolist() == [[0, 0]]
    finally:
        env.close()


@pytest.mark.parametrize("fault", ["", "hang"])
def test_workers_end_when_their_parent_is_killed(fault: str) -> None:
    """Also one that is in the midst of a step that never returns."""
    code = f"""
import sys; sys.path.insert(0, {str(HERE)!r})
import threading, time
import numpy as np
from podium.envs.make import EnvSpec, make
if __name__ == "__main__":
    env = make(EnvSpec("sample_envs:Faulty", {{"fault": {fault!r}, "at": 1000 if not {fault!r} else 1}}, processes=2), 2)
    env.reset([0, 1])
    threading.Thread(target=lambda: env.step(np.zeros(2, np.int64)), daemon=True).start()
    time.sleep(0.2)
    print(*env.processes(), flush=True)
    time.sleep(60)
"""
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=HERE.parents[1])
    assert parent.stdout is not None
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(pids) == 2 and all(map(alive, pids))
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert eventually(lambda: not any(map(alive, pids)))


def test_workers_leave_an_interrupt_to_their_parent() -> None:
    env, pids = started({})
    for pid in pids:
        os.kill(pid, signal.SIGINT)
    env.step(np.zeros(4, np.int64))
    assert all(map(alive, pids))
    env.close()
