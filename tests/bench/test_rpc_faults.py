"""Whoever is killed, stopped or missing in the RPC benchmark: it is named, the others end in time, and nothing is left."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from podium.bench.rpc.carriers import CARRIERS
from tests.processes import Process, descendants, left

ROOT = Path(__file__).parents[2]
FORKED = sorted(CARRIERS)
LONG = ("--world_size", "5", "--episodes", "100000", "--state_size", "4")


class Run:
    """The launcher, with the processes that it has started."""

    def __init__(self, folder: Path, *words: str) -> None:
        port = str(free_port())
        self.out = folder / "report.json"
        command = [sys.executable, str(ROOT / "launcher.py"), *LONG, "--master_port", port, *words]
        self.process = subprocess.Popen(
            [*command, "--output_file_path", str(self.out)], cwd=ROOT, stderr=subprocess.PIPE, text=True
        )
        self.seen: set[Process] = set()

    def named(self, name: str, patience_s: float = 60.0) -> int:
        """The pid of the one that is called so, once it is there."""
        limit = time.monotonic() + patience_s
        while time.monotonic() < limit and self.process.poll() is None:
            self.look()
            for pid, _ in self.seen:
                if comm(pid) == name:
                    return pid
            time.sleep(0.02)
        raise AssertionError(f"no {name} among {[comm(pid) for pid, _ in self.seen]}")

    def look(self) -> None:
        self.seen.update(descendants(self.process.pid))

    def playing(self) -> None:
        """Until every observer has come so far that the agent's CPU time grows."""
        agent = self.named("agent")
        self.named("observer-2")
        before, limit = ticks(agent), time.monotonic() + 60
        while ticks(agent) < before + 20 and time.monotonic() < limit:
            time.sleep(0.05)
        self.look()

    def ends(self, within_s: float) -> tuple[int, str, float]:
        began = time.monotonic()
        _, error = self.process.communicate(timeout=within_s)
        return self.process.returncode, error, time.monotonic() - began

    def stop(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def runs() -> Iterator[list[Run]]:
    """Those that a test starts; whatever happens, they end with it."""
    started: list[Run] = []
    yield started
    for run in started:
        run.stop()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def comm(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def named_memory(processes: set[Process]) -> set[str]:
    """Files in shared memory that have a name, and would stay if nobody removed them."""
    found = set()
    for pid, _ in processes:
        try:
            lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
        except OSError:
            continue
        names = {line.partition("/dev/shm/")[2] for line in lines if "/dev/shm/" in line}
        found |= {name for name in names if not name.endswith("(deleted)")}
    return found


def assert_nothing_is_left(run: Run, memory: set[str]) -> None:
    assert left(sorted(run.seen)) == []
    assert not [name for name in memory if Path("/dev/shm", name).exists()]


@pytest.mark.parametrize("victim", ["agent", "observer-1"])
@pytest.mark.parametrize("transport", FORKED)
def test_one_that_is_killed_is_named_and_the_others_end(
    transport: str, victim: str, tmp_path: Path, runs: list[Run]
) -> None:
    run = Run(tmp_path, "--transport", transport)
    runs.append(run)
    run.playing()
    memory = named_memory(run.seen)
    pid = run.named(victim)
    os.kill(pid, signal.SIGKILL)
    code, error, _ = run.ends(15)
    assert code == 1
    assert error == f"podium: {victim} (pid {pid}) was killed by SIGKILL\n"
    assert f"{victim} (pid {pid}) was killed by SIGKILL" in run.out.read_text()
    assert_nothing_is_left(run, memory)


@pytest.mark.parametrize("transport", FORKED)
def test_when_the_coordinator_is_killed_nothing_stays(transport: str, tmp_path: Path, runs: list[Run]) -> None:
    run = Run(tmp_path, "--transport", transport)
    runs.append(run)
    run.playing()
    memory = named_memory(run.seen)
    run.process.kill()
    assert_nothing_is_left(run, memory)


@pytest.mark.parametrize("transport", FORKED)
def test_one_that_never_joins_is_named_with_the_limit(transport: str, tmp_path: Path, runs: list[Run]) -> None:
    run = Run(tmp_path, "--transport", transport, "--timeout", "3")
    runs.append(run)
    os.kill(run.named("observer-1"), signal.SIGSTOP)
    run.look()
    code, error, _ = run.ends(30)
    assert code == 1 and error.count("\n") == 1
    assert "observer-1 has" in error and "not joined within 3 s" in error
    assert_nothing_is_left(run, set())


@pytest.mark.parametrize("transport", FORKED)
def test_one_that_says_nothing_more_is_named(transport: str, tmp_path: Path, runs: list[Run]) -> None:
    run = Run(tmp_path, "--transport", transport, "--timeout", "2")
    runs.append(run)
    run.playing()
    os.kill(run.named("observer-2"), signal.SIGSTOP)
    code, error, _ = run.ends(20)
    assert code == 1 and error.startswith("podium: observer-2 has said nothing while observer-")
    assert_nothing_is_left(run, set())


def test_ctrl_c_ends_all_of_them(tmp_path: Path, runs: list[Run]) -> None:
    run = Run(tmp_path, "--transport", "shm")
    runs.append(run)
    run.playing()
    for pid in (run.process.pid, run.named("observer-0")):
        os.kill(pid, signal.SIGINT)
    code, error, _ = run.ends(15)
    assert code == 130 and error == "podium: interrupted\n"
    assert_nothing_is_left(run, set())


def test_a_port_that_is_taken_is_named_before_anything_starts(tmp_path: Path, runs: list[Run]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        run = Run(tmp_path, "--transport", "torch_rpc,shm", "--master_port", str(port))
        runs.append(run)
        code, error, _ = run.ends(30)
    assert code == 2
    assert error == f"podium: --master_port {port} is taken on 127.0.0.1, expected a free port\n"
    assert not run.out.exists()
