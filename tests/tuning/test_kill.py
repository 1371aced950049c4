"""A search that is killed, interrupted or shared: no finished trial is lost or run twice."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from podium.core.errors import UsageError
from podium.tuning import command
from podium.tuning.storage import KernelLock, cut_torn_line, owner_name, runs
from tests.resume_tools import ROOT, environment
from tests.tuning.tools import FLAGS, SEARCH, SMALL, lines, without_time

DEADLINE_S = 60.0
TRIALS = 10


def start(out: Path, *more: object) -> subprocess.Popen[bytes]:
    """The command, with its trials one after the other."""
    search = [word for text in SEARCH for word in ("--search", text)]
    words = [*("tune", "ppo", "toy:constant"), *search, *FLAGS, "--out", out, "--trials", TRIALS, *more]
    return subprocess.Popen(
        [sys.executable, "-m", "podium.cli", *map(str, words)],
        env=environment(),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def wait_for(folder: Path, count: int, process: subprocess.Popen[bytes]) -> None:
    limit = time.monotonic() + DEADLINE_S
    while len(lines(folder)) < count:
        assert process.poll() is None and time.monotonic() < limit, process.communicate()
        time.sleep(0.005)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The records of the same search, where nothing happened."""
    found = command.tune(
        "ppo", "toy:constant", search=SEARCH, trials=TRIALS, out=tmp_path_factory.mktemp("w") / "a", **SMALL
    )
    return list(map(without_time, lines(found.folder)))


def test_killed_and_resumed_it_is_the_search_that_ran_through(tmp_path: Path, whole: list[dict[str, Any]]) -> None:
    folder = tmp_path / "a"
    process = start(folder)
    wait_for(folder, 3, process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = lines(folder)
    assert 3 <= len(before) < TRIALS
    with open(folder / "trials.jsonl", "ab") as file, open(folder / "journal.log", "ab") as journal:
        file.write(b'{"number": 9, "par')  # as a kill in the midst of a line leaves it
        journal.write(b'{"op_code": 6, "wor')
    command.resume(folder, progress=False)
    assert lines(folder)[: len(before)] == before
    assert list(map(without_time, lines(folder))) == whole, "each once, with what it had been anyway"


def test_a_trial_that_was_told_and_not_yet_written_is_written(tmp_path: Path, whole: list[dict[str, Any]]) -> None:
    folder = command.tune("ppo", "toy:constant", search=SEARCH, trials=4, out=tmp_path / "a", **SMALL).folder
    kept = (folder / "trials.jsonl").read_text().splitlines(keepends=True)[:2]
    (folder / "trials.jsonl").write_text("".join(kept))
    (folder / "result.json").unlink()
    command.resume(folder, progress=False)
    assert [record["number"] for record in lines(folder)] == [0, 1, 2, 3]
    assert [record["params"] for record in lines(folder)] == [record["params"] for record in whole[:4]]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_it_and_keeps_everything(
    tmp_path: Path, whole: list[dict[str, Any]], number: int, code: int
) -> None:
    folder = tmp_path / "a"
    process = start(folder, "--json")
    wait_for(folder, 2, process)
    began = time.monotonic()
    process.send_signal(number)
    out, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == code and time.monotonic() - began < 10
    assert out == b"" and b"resume" in err.splitlines()[-1] and err.count(b"Traceback") == 0
    assert json.loads((folder / "result.json").read_text())["status"] == "interrupted"
    command.resume(folder, progress=False)
    assert list(map(without_time, lines(folder))) == whole


@pytest.mark.parametrize("storage", ["{}/shared.log", "sqlite:///{}/shared.db"])
def test_two_controllers_share_a_search(tmp_path: Path, storage: str) -> None:
    where = storage.format(tmp_path)
    processes = [start(tmp_path / name, "--storage", where) for name in ("a", "b")]
    for process in processes:
        _, err = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 0, err
    # Whoever ended last has seen everything; the other one all that had finished when nothing was left for it to do.
    records = max((lines(tmp_path / name) for name in ("a", "b")), key=len)
    assert sorted(record["number"] for record in records) == list(range(TRIALS))
    assert len({record["params"]["lr"] for record in records}) == TRIALS, "they draw differently"
    ran = [{path.name for path in (tmp_path / name / "trials").glob("*")} for name in ("a", "b")]
    assert not ran[0] & ran[1] and len(ran[0] | ran[1]) == TRIALS, "no trial is run by both"


def test_a_controller_takes_over_what_a_dead_one_left(tmp_path: Path) -> None:
    where = str(tmp_path / "shared.log")
    process = start(tmp_path / "a", "--storage", where)
    wait_for(tmp_path / "a", 2, process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    found = command.tune(
        "ppo", "toy:constant", search=SEARCH, trials=TRIALS, out=tmp_path / "b", storage=where, **SMALL
    )
    assert sorted(record["number"] for record in lines(found.folder)) == list(range(TRIALS))


def test_another_search_of_that_name_is_refused(tmp_path: Path) -> None:
    words: dict[str, Any] = {**SMALL, "storage": f"sqlite:///{tmp_path}/shared.db", "trials": 1}
    command.tune("ppo", "toy:constant", search=SEARCH, out=tmp_path / "a", **words)
    with pytest.raises(UsageError, match=r"has another search 'ppo-toy:constant', whose search is .* add --study NAME"):
        command.tune("ppo", "toy:constant", search=SEARCH[:1], out=tmp_path / "b", **words)
    with pytest.raises(UsageError, match="whose direction is 'maximize' and not 'minimize'"):
        command.tune("ppo", "toy:constant", search=SEARCH, out=tmp_path / "c", direction="minimize", **words)
    command.tune("ppo", "toy:constant", search=SEARCH[:1], out=tmp_path / "d", study="other", **words)


def test_a_search_that_runs_is_not_resumed_beside_it(tmp_path: Path) -> None:
    process = start(tmp_path / "a")
    try:
        wait_for(tmp_path / "a", 1, process)
        with pytest.raises(UsageError, match=f"in use: process {process.pid} trains in it"):
            command.resume(tmp_path / "a", progress=False)
    finally:
        process.kill()
        process.communicate()


def test_a_population_that_is_killed_goes_on_as_if_it_had_not_been(tmp_path: Path) -> None:
    words: dict[str, Any] = {**SMALL, "env_args": None, "scheduler": "population", "population": 4, "steps": 960}
    words |= {"search": SEARCH, "exploit_every": 192}
    whole = command.tune("ppo", "CartPole-v1", out=tmp_path / "whole", **words).folder
    left = tmp_path / "left"

    def copy(name: str, of: Any) -> Any:
        def copying(*args: Any, **how: Any) -> Any:
            found = of(*args, **how)
            if len(lines(whole.parent / "again", "lineage.jsonl")) >= 6 and not left.exists():
                shutil.copytree(whole.parent / "again", left, symlinks=True)
            return found

        return copying

    from podium.tuning import members

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(members.Members, "_note", copy("_note", members.Members._note))
        command.tune("ppo", "CartPole-v1", out=tmp_path / "again", **words)
    assert len(lines(left, "lineage.jsonl")) == 6 and not lines(left)
    command.resume(left, progress=False)
    assert lines(left) == lines(whole) and lines(left, "lineage.jsonl") == lines(whole, "lineage.jsonl")
    for number in range(4):
        rows = [lines(folder / "trials" / f"{number:04d}", "metrics.jsonl") for folder in (left, whole)]
        assert [row["return_mean"] for row in rows[0]] == [row["return_mean"] for row in rows[1]]


def test_a_lock_is_free_once_who_had_it_is_dead(tmp_path: Path) -> None:
    journal = tmp_path / "journal.log"
    journal.write_bytes(b'{"a": 1}\n{"b')
    holding = (
        f"from podium.tuning.storage import KernelLock; from pathlib import Path; KernelLock(Path({str(journal)!r}))"
    )
    code = f"{holding}.acquire(); print('held', flush=True); import time; time.sleep(60)"
    holder = subprocess.Popen([sys.executable, "-c", code], env=environment(), cwd=ROOT, stdout=subprocess.PIPE)
    assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
    assert journal.read_bytes() == b'{"a": 1}\n', "what a kill tore is cut off"
    holder.kill()
    holder.communicate()
    lock = KernelLock(journal)
    began = time.monotonic()
    assert lock.acquire() and time.monotonic() - began < 5
    lock.release()


def test_torn_lines_are_cut_and_whole_ones_stay(tmp_path: Path) -> None:
    path = tmp_path / "x"
    for before, after in ((b"", b""), (b"a\nb\n", b"a\nb\n"), (b"a\nb", b"a\n"), (b"a", b"")):
        path.write_bytes(before)
        cut_torn_line(path)
        assert path.read_bytes() == after
    cut_torn_line(tmp_path / "none")


def test_who_runs_is_told_from_who_ran() -> None:
    assert runs(owner_name()) is True
    host, pid, began = owner_name().rsplit(":", 2)
    assert runs(f"{host}:{pid}:{began}9") is False, "the number came again"
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    assert runs(f"{host}:{done.pid}:{began}") is False
    assert runs(f"elsewhere:{os.getpid()}:{began}") is None
