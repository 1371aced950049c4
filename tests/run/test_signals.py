"""Signals: what they leave behind, how fast a run ends, and that nothing else of the process is disturbed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import podium
from podium.core import checkpoint
from podium.run import signals as signals_module
from podium.run.folder import RunFolder
from podium.run.signals import Interrupted, Signals
from tests.resume_tools import ROOT, differences, start, steps_done, wait_until

LONG = ["--steps", "1000000", "--quiet", "--epochs", "1", "--fragment", "32"]


class Sleepy(gymnasium.Env):
    """Episodes of 20 steps; after `awake` steps each further one takes a minute."""

    observation_space = gymnasium.spaces.Box(0, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, awake: int = 10**9, hang_in_reset: bool = False) -> None:
        self.awake, self.hang_in_reset, self.steps = awake, hang_in_reset, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        if self.hang_in_reset:
            time.sleep(60)
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.t, self.steps = self.t + 1, self.steps + 1
        if self.steps > self.awake:
            time.sleep(60)
        return np.zeros(1, np.float32), 1.0, self.t == 20, False, {}


SLEEPY = f"{__name__}:Sleepy"


def parent(pid: int) -> int | None:
    """A process's parent; None for one that has ended, also where nobody has asked for its exit code yet."""
    try:
        state, number = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
    except OSError:
        return None
    return int(number) if state != "Z" else None


def children(pid: int) -> list[int]:
    """The processes that one has started and that still run."""
    return [other for other in map(int, filter(str.isdigit, os.listdir("/proc"))) if parent(other) == pid]


def alive(pids: list[int], patience_s: float = 2.0) -> list[int]:
    """Those that still run when they have had a moment to end."""
    limit = time.monotonic() + patience_s
    while (left := [pid for pid in pids if parent(pid) is not None]) and time.monotonic() < limit:
        time.sleep(0.02)
    return left


def interrupt(words: list[Any], folder: Path, steps: int, send: Any, pause: float = 0.0) -> tuple[Any, str, float]:
    """Start a run, wait for its env steps and `pause` seconds more, call `send(pid)`; its code, stderr and seconds."""
    process = start("train", *words, "--out", folder, cwd=ROOT)
    try:
        wait_until(lambda: steps_done(folder) >= steps, process)
        time.sleep(pause)
        began = time.monotonic()
        send(process.pid)
        out, err = process.communicate(timeout=30)
        seconds = time.monotonic() - began
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert out == ""
    return process.returncode, err, seconds


def one_line(err: str) -> str:
    assert err.count("\n") == 1 and "Traceback" not in err, err
    return err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_leaves_a_checkpoint_that_goes_on_bit_equal(tmp_path: Path, number: int, code: int) -> None:
    settings = {"steps": 200_000, "checkpoint_every": 500_000, "epochs": 1, "lr": 1e-3}
    words = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
    folder = tmp_path / "run"
    returned, err, seconds = interrupt(
        ["ppo", "CartPole-v1", *words, "--quiet"], folder, 2000, lambda pid: os.kill(pid, number)
    )
    assert returned == code and seconds < 10
    assert one_line(err) == f"podium: interrupted by {signal.Signals(number).name} (podium resume {folder} goes on)\n"
    result = RunFolder.open(folder).read_result()
    assert result is not None and (result["status"], result["stopped_by"]) == ("interrupted", "signal")
    _, info = checkpoint.load(folder / "checkpoints" / "latest")
    assert info["env_steps"] == result["env_steps"] >= 2000 and info["exact"] is True
    assert json.loads((folder / "processes.json").read_text()) == []

    end = result["env_steps"] + 3000
    resumed = podium.resume(folder, end, progress=False)
    assert resumed["resumed_from"] == result["env_steps"] and resumed["status"] == "finished"
    podium.train("ppo", "CartPole-v1", out=tmp_path / "whole", progress=False, **{**settings, "steps": end})
    found = differences(tmp_path / "whole", folder)
    assert [what for what in found if not what.startswith("checkpoints: ")] == []


def test_a_second_signal_ends_at_once(tmp_path: Path) -> None:
    def twice(pid: int) -> None:
        os.kill(pid, signal.SIGINT)
        time.sleep(0.5)
        os.kill(pid, signal.SIGINT)

    words = ["ppo", SLEEPY, "--env-arg", "awake=160", *LONG]
    code, err, seconds = interrupt(words, tmp_path / "run", 1280, twice, pause=0.3)
    assert code == 130 and seconds < 0.5 + 2 and "Traceback" not in err
    assert podium.resume(tmp_path / "run", 1, progress=False)["status"] == "finished"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_to_the_whole_group_ends_well_with_env_processes(tmp_path: Path, number: int, code: int) -> None:
    """Ctrl-C in a terminal, and a batch system that ends a job, reach the env processes too."""
    started: list[int] = []

    def send(pid: int) -> None:
        started.extend(children(pid))
        listed = json.loads((tmp_path / "run" / "processes.json").read_text())
        assert [(process["role"], process["index"]) for process in listed] == [
            ("controller", 0),
            ("env", 0),
            ("env", 1),
        ]
        assert listed[0]["pid"] == pid and {process["pid"] for process in listed[1:]} <= set(started)
        os.killpg(pid, number)

    words = ["ppo", "MountainCar-v0", "--env-processes", "2", *LONG]
    returned, err, seconds = interrupt(words, tmp_path / "run", 1000, send)
    assert (returned, one_line(err).split("(")[0]) == (code, f"podium: interrupted by {signal.Signals(number).name} ")
    assert seconds < 10
    assert len(started) >= 2 and alive(started) == []
    assert checkpoint.load(tmp_path / "run" / "checkpoints" / "latest")[1]["exact"] is True


def test_an_iteration_of_a_minute_is_given_up_and_its_beginning_saved(tmp_path: Path) -> None:
    """Also where it is env processes that take the minute; they end with the run."""
    started: list[int] = []

    def send(pid: int) -> None:
        started.extend(children(pid))
        os.kill(pid, signal.SIGTERM)

    words = ["ppo", SLEEPY, "--env-arg", "awake=64", "--env-processes", "4", "--envs", "4", *LONG]
    code, err, seconds = interrupt(words, tmp_path / "run", 256, send, pause=0.3)
    assert code == 143 and one_line(err) and seconds < 10
    assert len(started) >= 4 and alive(started) == []
    _, info = checkpoint.load(tmp_path / "run" / "checkpoints" / "latest")
    result = RunFolder.open(tmp_path / "run").read_result()
    assert result is not None and result["env_steps"] == info["env_steps"] <= 256 and result["status"] == "interrupted"


@pytest.mark.parametrize("delay", [0.1, 2.5])
@pytest.mark.parametrize(("number", "codes"), [(signal.SIGINT, {130, -2}), (signal.SIGTERM, {143, -15})])
def test_a_signal_while_it_starts_is_quiet_and_leaves_nothing(
    tmp_path: Path, delay: float, number: int, codes: set[int]
) -> None:
    process = start(
        "train", "ppo", SLEEPY, "--env-arg", "hang_in_reset=true", *LONG, "--out", tmp_path / "run", cwd=ROOT
    )
    wait_until(
        lambda: "_json" in Path(f"/proc/{process.pid}/maps").read_text(), process
    )  # the interpreter itself is up
    time.sleep(delay)
    process.send_signal(number)
    out, err = process.communicate(timeout=10)
    assert process.returncode in codes
    assert out == "" and err in ("", "podium: interrupted\n")
    assert not (tmp_path / "run").exists()


def test_a_killed_run_leaves_no_env_process(tmp_path: Path) -> None:
    process = start(
        "train", "ppo", "MountainCar-v0", "--env-processes", "2", *LONG, "--out", tmp_path / "run", cwd=ROOT
    )
    wait_until(lambda: steps_done(tmp_path / "run") >= 256, process)
    started = children(process.pid)
    process.kill()
    process.communicate()
    assert len(started) >= 2 and alive(started) == []


def test_pending_is_the_first_signal_and_what_was_there_before_comes_back() -> None:
    seen: list[int] = []

    def own(number: int, frame: Any) -> None:
        seen.append(number)

    before = {number: signal.signal(number, own) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)}
    try:
        with Signals() as caught:
            signal.raise_signal(signal.SIGALRM)
            assert seen == [signal.SIGALRM], "an alarm is still the user's own"
            signal.raise_signal(signal.SIGTERM)
            assert caught.pending == signal.SIGTERM
        assert all(signal.getsignal(number) is own for number in before)
        assert seen == [signal.SIGALRM]
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_a_timer_of_the_users_own_keeps_running() -> None:
    rang = threading.Event()
    before = signal.signal(signal.SIGALRM, lambda number, frame: rang.set())
    try:
        with Signals() as caught:
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            for _ in range(3):
                with caught.interruptible():
                    time.sleep(0.001)
            assert rang.wait(2)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_work_is_given_up_when_the_grace_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals_module, "GRACE_S", 0.1)
    with Signals() as caught:
        began = time.monotonic()
        with pytest.raises(Interrupted, match="interrupted by SIGINT") as raised, caught.interruptible():
            signal.raise_signal(signal.SIGINT)
            time.sleep(10)
        assert 0.1 <= time.monotonic() - began < 2 and raised.value.exit_code == 130
        began = time.monotonic()
        with pytest.raises(Interrupted), caught.interruptible():  # what begins after the signal has the same grace
            time.sleep(10)
        assert 0.1 <= time.monotonic() - began < 2
        time.sleep(0.15)  # and nothing is given up outside


def test_work_that_ends_within_the_grace_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals_module, "GRACE_S", 0.2)
    with Signals() as caught:
        with caught.interruptible():
            signal.raise_signal(signal.SIGTERM)
            time.sleep(0.02)
        time.sleep(0.3)
        assert caught.pending == signal.SIGTERM


def test_a_second_signal_leaves_the_process() -> None:
    code = (
        "import signal, time\nfrom podium.run.signals import Signals\n"
        "with Signals():\n signal.raise_signal(signal.SIGINT)\n signal.raise_signal(signal.SIGTERM)\n time.sleep(9)\n"
    )
    begun = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True)
    assert (done.returncode, done.stderr) == (143, b"") and time.monotonic() - begun < 5


def test_another_thread_than_the_main_one_sees_no_signals() -> None:
    before = signal.getsignal(signal.SIGINT)
    seen: list[Any] = []

    def work() -> None:
        with Signals() as caught, caught.interruptible():
            seen.extend([caught.pending, signal.getsignal(signal.SIGINT)])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [None, before]
