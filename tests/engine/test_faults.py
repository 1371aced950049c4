"""What goes wrong on a cluster: killed, hanging and failing workers, a dead learner, signals, and an address where nothing
is. Runs go on or end in time with one line, count whole episodes only, and leave no process behind."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ray

import podium
from podium.core import checkpoint
from podium.core.errors import EnvDataError, UsageError
from podium.engine.address import check_listening
from podium.run.folder import RunFolder
from tests.engine.trouble import LENGTH
from tests.processes import descendants, left, listening, listening_beyond_loopback, process
from tests.resume_tools import ROOT, environment, run, start, steps_done

TROUBLED = "tests.engine.trouble:Troubled"
SMALL = {"workers": 2, "envs": 2, "fragment": 16, "hidden": "8", "checkpoint_every": 2000}
START_S = 90.0


def flags(**settings: Any) -> list[str]:
    return [f"--{name.replace('_', '-')}={value}" for name, value in {**SMALL, "engine": "ray", **settings}.items()]


class Running:
    """A `podium train` of its own process group, its folder, and what it has started."""

    def __init__(self, algo: str, folder: Path, kind: str, steps: int, **settings: Any) -> None:
        self.folder, self.flag = folder / "run", folder / "flag"
        env = ["--env-arg", f"flag={self.flag}", "--env-arg", f"kind={kind}"]
        words = [algo, TROUBLED, *env, *flags(steps=steps, **settings), "--quiet", "--out", self.folder]
        self.process: subprocess.Popen[str] = start("train", *words, cwd=ROOT)
        self.started: list[tuple[int, str]] = []

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: Any) -> None:
        if self.process.poll() is None:
            started = descendants(self.process.pid)
            self.process.kill()
            self.process.communicate()
            for pid, _since in started:
                if process(pid) is not None:
                    os.kill(pid, signal.SIGKILL)

    def until(self, reached: Callable[[], Any], seconds: float = START_S) -> Any:
        """What `reached` gives once it gives something; the run must not end before."""
        limit = time.monotonic() + seconds
        while not (found := reached()):
            assert self.process.poll() is None, f"ended with {self.process.returncode}: {self.process.communicate()[1]}"
            assert time.monotonic() < limit, "the moment never came"
            time.sleep(0.02)
        return found

    def until_steps(self, steps: int) -> None:
        self.until(lambda: steps_done(self.folder) >= steps)
        self.started = descendants(self.process.pid)

    def pids(self, role: str) -> list[int]:
        """Those that processes.json names."""
        try:
            told = json.loads((self.folder / "processes.json").read_text())
        except (OSError, ValueError):
            return []
        return [one["pid"] for one in told if one["role"] == role]

    def end(self, seconds: float) -> tuple[int, str, float]:
        """Wait for the end: the exit code, what stderr says, and how long it took; nothing may be left of it."""
        began = time.monotonic()
        out, err = self.process.communicate(timeout=seconds)
        took = time.monotonic() - began
        assert (out == "" or self.process.returncode == 0) and err.count("\n") <= 1 and "Traceback" not in err, (
            out,
            err,
        )
        assert left(self.started) == []
        return self.process.returncode, err, took

    def result(self) -> dict[str, Any]:
        return RunFolder.open(self.folder).read_result() or {}


def assert_whole_episodes(folder: Path) -> None:
    """Every episode that was counted has its whole length, and there are no more than fit into the steps."""
    rows = list(RunFolder.open(folder).read_metrics())
    assert rows
    for row in rows:
        assert row["return_mean"] in (None, LENGTH) and row["length_mean"] in (None, LENGTH), row
        assert row["episodes"] * LENGTH <= row["env_steps"]
    assert rows[-1]["episodes"] * LENGTH > rows[-1]["env_steps"] / 2


def kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


# --- workers ---


def test_a_run_outlives_twenty_kills_of_a_worker(tmp_path: Path) -> None:
    rng = random.Random(0)
    killed: list[int] = []
    (tmp_path / "flag").touch()  # until it is gone nobody plays so fast that the run could end
    with Running("a2c", tmp_path, "slow", 60_000) as running:
        running.until_steps(200)
        running.until(lambda: len(running.pids("worker")) == 2 and len(running.pids("learner")) == 1, 5)
        for _ in range(20):
            pid = running.until(lambda: [pid for pid in running.pids("worker") if pid not in killed])[0]
            time.sleep(rng.uniform(0, 0.2))
            kill(pid)
            killed.append(pid)
        running.until(lambda: len(set(running.pids("worker")) - set(killed)) == 2)
        done = steps_done(running.folder)
        running.flag.unlink()
        running.started = descendants(running.process.pid)
        code, err, _ = running.end(90)
    assert (code, err) == (0, "") and done < 60_000
    result = running.result()
    assert result["status"] == "finished" and result["stopped_by"] == "steps" and result["env_steps"] >= 60_000
    last = list(RunFolder.open(running.folder).read_metrics())[-1]
    assert last["workers_replaced"] == 20 and last["workers_up"] == 2
    assert_whole_episodes(running.folder)
    assert checkpoint.load(running.folder / "checkpoints" / "latest")[1]["env_steps"] == result["env_steps"]


def test_a_run_outlives_the_loss_of_a_machine() -> None:
    """The other optimizer's is in `make verify`."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.ray_node_loss", "sync_samples"],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert "sync_samples: next iteration " in done.stdout


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A cluster of this process, in which the runs that the API starts here find themselves."""
    from podium.engine.ray import RayEngine

    others = descendants(os.getpid())
    engine = RayEngine(num_cpus=4)
    started = [one for one in descendants(os.getpid()) if one not in others]
    assert len(started) > 4
    yield engine
    engine.close()
    assert left(started) == []


class Begin(podium.Callback):
    """Lets the trouble begin after some env steps, or does something else then."""

    def __init__(self, after: int, begin: Callable[[Any], None]) -> None:
        self.after, self.begin, self.rows = after, begin, list[dict[str, Any]]()

    def on_iteration(self, run: Any, row: Any) -> None:
        self.rows.append(dict(row))
        if row["env_steps"] >= self.after:
            self.after = 10**9
            self.begin(run)


def train_here(algo: str, folder: Path, kind: str, callback: Begin, **settings: Any) -> Any:
    return podium.train(
        algo,
        TROUBLED,
        env_args={"flag": str(folder / "flag"), "kind": kind},
        out=folder / "run",
        progress=False,
        callbacks=[callback],
        **{**SMALL, "engine": "ray", **settings},
    )


def test_a_hanging_worker_is_replaced_when_its_time_is_over(cluster: Any, tmp_path: Path) -> None:
    watch = Begin(500, lambda run: (tmp_path / "flag").touch())
    result = train_here("a2c", tmp_path, "hang", watch, worker_timeout=2.0, steps=1500)
    assert result["status"] == "finished" and result["env_steps"] >= 1500
    assert (tmp_path / "flag.taken").exists() and watch.rows[-1]["workers_replaced"] == 1
    assert_whole_episodes(tmp_path / "run")


def test_an_allreduce_run_outlives_members_that_die_or_hang(cluster: Any, tmp_path: Path) -> None:
    """The others break off at once, form a group without it, and take the replacement in."""
    moments = iter([500, 3000])

    def kill_one(run: Any) -> None:
        kill(run.engine.processes()[-1]["pid"])
        watch.after = next(moments, 10**9)

    watch = Begin(next(moments), kill_one)
    train_here("a2c", tmp_path, "slow", watch, optimizer="allreduce", workers=3, steps=6000)
    rows = watch.rows
    assert rows[-1]["workers_replaced"] == 2 and rows[-1]["env_steps"] >= 6000
    assert_whole_episodes(tmp_path / "run")
    policies = [one for one in checkpoint.load(tmp_path / "run" / "checkpoints" / "latest")[0] if one == "policy"]
    assert policies == ["policy"]


def test_nan_from_a_workers_env_ends_the_run_by_its_name(cluster: Any, tmp_path: Path) -> None:
    watch = Begin(500, lambda run: (tmp_path / "flag").touch())
    began = time.monotonic()
    with pytest.raises(EnvDataError, match=r"obs is NaN in env \d at step \d+"):
        train_here("a2c", tmp_path, "nan", watch, steps=10**6)
    assert time.monotonic() - began < 60
    result = RunFolder.open(tmp_path / "run").read_result()
    assert (
        result is not None and result["status"] == "failed" and result["error"].startswith("EnvDataError: obs is NaN")
    )
    assert checkpoint.load(tmp_path / "run" / "checkpoints" / "latest")[1]["env_steps"] <= result["env_steps"]


def test_an_env_that_always_raises_ends_the_run_with_its_error(tmp_path: Path) -> None:
    with Running("impala", tmp_path, "raise", 10**7) as running:
        running.until_steps(1000)
        running.flag.touch()
        code, err, took = running.end(60)
    assert code == 1 and took < 45
    assert err.startswith("podium: LookupError: the dice are gone (")
    assert "4 workers failed with nothing finished between them" in err
    assert running.result()["status"] == "failed"


def test_a_dead_learner_ends_the_run_within_seconds(tmp_path: Path) -> None:
    with Running("a2c", tmp_path, "slow", 10**7) as running:
        running.until_steps(3000)
        (learner,) = running.until(lambda: running.pids("learner"), 5)
        kill(learner)
        code, err, took = running.end(30)
    assert code == 1 and took < 30
    assert err.startswith("podium: ") and "gone" in err and err.count("\n") == 1
    _, info = checkpoint.load(running.folder / "checkpoints" / "latest")
    assert info["env_steps"] >= 2000 and running.result()["status"] == "failed"


# --- signals ---


@pytest.mark.parametrize(
    ("number", "code", "whole_group"),
    [(signal.SIGINT, 130, True), (signal.SIGTERM, 143, True), (signal.SIGTERM, 143, False)],
)
def test_a_signal_ends_the_run_its_workers_and_its_cluster(
    tmp_path: Path, number: int, code: int, whole_group: bool
) -> None:
    """As Ctrl-C in a terminal does it, a batch system, and `kill`."""
    with Running("impala", tmp_path, "slow", 10**7) as running:
        running.until_steps(1000)
        assert len(listening(running.started)) > 3, "a cluster that listens nowhere: this would see nothing"
        assert listening_beyond_loopback([*running.started, process(running.process.pid) or (0, "")]) == []
        assert len(running.started) > 6, "its cluster, a learner and two workers"
        (os.killpg if whole_group else os.kill)(running.process.pid, number)
        returned, err, took = running.end(20)
    assert returned == code and took < 10
    assert err == f"podium: interrupted by {signal.Signals(number).name} (podium resume {running.folder} goes on)\n"
    result = running.result()
    assert (result["status"], result["stopped_by"]) == ("interrupted", "signal")
    _, info = checkpoint.load(running.folder / "checkpoints" / "latest")
    assert info["env_steps"] == result["env_steps"] >= 1000
    if whole_group and number == signal.SIGINT:
        done = run("resume", running.folder, "--steps", info["env_steps"] + 500, "--quiet", "--json", cwd=ROOT)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["resumed_from"] == info["env_steps"]


def test_a_killed_controller_takes_its_workers_and_its_cluster_along(tmp_path: Path) -> None:
    with Running("impala", tmp_path, "slow", 10**7) as running:
        running.until_steps(100)
        running.process.kill()
        running.process.communicate()
        assert left(running.started, 10.0) == []


@pytest.mark.parametrize("processes", [1, 4, 8, 10])
def test_a_signal_while_the_cluster_starts_leaves_nothing(tmp_path: Path, processes: int) -> None:
    """The moments: a first process of Ray's; most; this process joins; actors start."""
    with Running("impala", tmp_path, "slow", 10**7) as running:
        running.until(lambda: len(descendants(running.process.pid)) >= processes)
        running.started = descendants(running.process.pid)
        os.killpg(running.process.pid, signal.SIGTERM)
        code, err, took = running.end(20)
    assert (code, err) == (143, "podium: interrupted by SIGTERM\n") and took < 10
    assert not running.folder.exists()


def test_a_worker_that_hangs_does_not_keep_a_run_from_its_end(tmp_path: Path) -> None:
    """The controller waits in Ray's own code then, which knows a signal by nothing but that there was one."""
    with Running("a2c", tmp_path, "hang", 10**7) as running:
        running.until_steps(3000)
        running.flag.touch()
        running.until(lambda: Path(f"{running.flag}.taken").exists())
        os.kill(running.process.pid, signal.SIGTERM)
        code, err, took = running.end(30)
    assert (code, took < 15) == (143, True)
    assert err.startswith("podium: interrupted by SIGTERM (podium resume ")
    result = running.result()
    _, info = checkpoint.load(running.folder / "checkpoints" / "latest")
    assert result["status"] == "interrupted" and 2000 <= info["env_steps"] <= result["env_steps"]


def test_signals_stay_the_callers_own() -> None:
    """Ray's code takes SIGTERM for itself when it comes up, and drops it when it ends."""
    code = (
        "import os, signal\nfrom podium.engine.ray import RayEngine\nseen = []\n"
        "signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))\n"
        "engine = RayEngine()\nos.kill(os.getpid(), signal.SIGTERM)\nassert seen == [15]\n"
        "engine.close()\nos.kill(os.getpid(), signal.SIGTERM)\nassert seen == [15, 15]\n"
        "assert not signal.pthread_sigmask(signal.SIG_BLOCK, set())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment(), capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


# --- addresses ---


REFUSED = {
    ("--workers", "1", "--cpus-per-worker", "800"): "--workers 1 with --cpus-per-worker 800 asks for 800 CPUs, there ",
    ("--workers", "64", "--gpus-per-worker", "1"): "--workers 64 with --gpus-per-worker 1 asks for 64 GPUs, there ",
    ("--workers", "2", "--device", "cuda:63"): "--device cuda:63 is not available here, expected cpu, auto or ",
    ("--workers", "2", "--address", "127.0.0.1:1"): "--address 127.0.0.1:1: nothing listens there (",
}


@pytest.mark.parametrize("words", REFUSED, ids=lambda words: words[2])
def test_what_is_not_there_is_refused_at_once(words: tuple[str, ...], tmp_path: Path) -> None:
    """Before a cluster is looked for or started; an idle machine takes little more than a second."""
    began = os.times()
    done = run("train", "a2c", "CartPole-v1", "--engine", "ray", *words, "--out", tmp_path / "run", "--quiet", cwd=ROOT)
    ended = os.times()
    assert done.returncode == 2 and done.stderr.startswith(f"podium: {REFUSED[words]}"), done.stderr
    assert done.stderr.count("\n") == 1 and not (tmp_path / "run").exists()
    assert ended.children_user + ended.children_system - began.children_user - began.children_system < 2


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_an_address_where_something_else_listens_is_refused(monkeypatch: pytest.MonkeyPatch, answer: bytes) -> None:
    monkeypatch.setattr("podium.engine.address.ANSWER_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def reply() -> None:
            connection, _ = server.accept()
            connection.sendall(answer)
            time.sleep(0.6)
            connection.close()

        thread = threading.Thread(target=reply)
        thread.start()
        with pytest.raises(UsageError, match=r"what listens there is no Ray cluster"):
            check_listening(f"127.0.0.1:{server.getsockname()[1]}")
        thread.join()


OWN_ENV = """
import gymnasium
from beside import STEPS

class Own(gymnasium.Wrapper):
    def __init__(self):
        super().__init__(gymnasium.make("CartPole-v1", max_episode_steps=STEPS))
"""


@pytest.mark.parametrize("attached", [False, True], ids=["started", "attached"])
def test_the_code_of_the_current_folder_goes_along(cluster: Any, tmp_path: Path, attached: bool) -> None:
    """The env, and what it imports; also to a cluster that was started in another folder."""
    (tmp_path / "own.py").write_text(OWN_ENV)
    (tmp_path / "beside.py").write_text("STEPS = 7\n")
    address = ["--address", ray.get_runtime_context().gcs_address] if attached else []
    words = ["a2c", "own:Own", *flags(workers=1, steps=300), *address, "--out", "run", "--quiet"]
    done = run("train", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = list(RunFolder.open(tmp_path / "run").read_metrics())
    assert rows[-1]["env_steps"] >= 300 and rows[-1]["length_mean"] == 7
