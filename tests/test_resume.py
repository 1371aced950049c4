"""Exact resume: a run that was killed and resumed equals, bit for bit, one that ran through."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import podium
from podium.cli import main
from podium.core import checkpoint
from podium.core.errors import CheckpointError, UsageError
from podium.run.folder import RunFolder
from tests.resume_tools import CASES, ROOT, differences, environment, kill_and_resume, train_words

SEED = 3
SMALL: dict[str, Any] = {
    "steps": 3000,
    "checkpoint_every": 1000,
    "fragment": 32,
    "epochs": 2,
    "lr": 1e-3,
    "seed": SEED,
    "progress": False,
}


class CopyAt(podium.Callback):
    """Copies the run's folder once, as a kill right then would leave it."""

    def __init__(self, env_steps: int, to: Path) -> None:
        self.env_steps, self.to = env_steps, to

    def on_iteration(self, run: Any, row: Any) -> None:
        if row["env_steps"] >= self.env_steps and not self.to.exists():
            shutil.copytree(run.folder.path, self.to, symlinks=True)


def called(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = main([*map(str, words)])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def checkpoint_steps(folder: Path) -> list[int]:
    return sorted(int(path.name.removeprefix("step-")) for path in (folder / "checkpoints").glob("step-*"))


@pytest.fixture(scope="module")
def whole_runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    """A run of each case that goes through, made when it is first asked for, and a copy of it from a random moment."""
    root = tmp_path_factory.mktemp("whole")

    class Runs(dict[str, Path]):
        def __missing__(self, case: str) -> Path:
            self[case] = root / case
            steps = int(CASES[case][CASES[case].index("--steps") + 1])
            moment = int(random.Random(f"copy {case}").uniform(0.3, 0.9) * steps)
            algo, env, *flags = CASES[case]
            settings: dict[str, Any] = {name[2:].replace("-", "_"): text for name, text in settings_of(flags)}
            podium.train(
                algo,
                env,
                out=self[case],
                seed=SEED,
                checkpoint_every=2000,
                progress=False,
                callbacks=[CopyAt(moment, root / f"{case}-copy")],
                **settings,
            )
            return self[case]

    yield Runs()


def settings_of(flags: list[str]) -> Iterator[tuple[str, str]]:
    """`--name value` and a bare `--name`, as pairs."""
    for i, word in enumerate(flags):
        if word.startswith("--"):
            yield word, "true" if i + 1 == len(flags) or flags[i + 1].startswith("--") else flags[i + 1]


@pytest.mark.parametrize("case", CASES)
def test_a_run_left_at_a_random_moment_goes_on_bit_equal(case: str, whole_runs: dict[str, Path]) -> None:
    whole = whole_runs[case]
    left = whole.with_name(f"{case}-copy")
    last = checkpoint_steps(left)[-1]
    result = podium.resume(left, progress=False)
    assert result["resumed_from"] == last and 2000 <= last < result["env_steps"]
    assert differences(whole, left) == []


@pytest.mark.parametrize(("case", "kills"), [("vector", 2), ("processes", 1), ("replay", 1)])
def test_a_killed_run_goes_on_bit_equal(case: str, kills: int, whole_runs: dict[str, Path], tmp_path: Path) -> None:
    killed = kill_and_resume(case, tmp_path / "run", SEED, random.Random(f"kill {case}"), kills)
    assert len(killed) == kills
    assert differences(whole_runs[case], tmp_path / "run") == []


def test_the_comparison_sees_what_differs(whole_runs: dict[str, Path], tmp_path: Path) -> None:
    whole = whole_runs["vector"]
    changed = shutil.copytree(whole, tmp_path / "changed", symlinks=True)
    assert differences(whole, changed) == []
    latest = (changed / "checkpoints" / "latest").resolve()
    parts, info = checkpoint.load(latest)
    name = next(iter(parts["policy"]["model"]))
    parts["policy"]["model"][name] = parts["policy"]["model"][name].copy()
    parts["policy"]["model"][name].reshape(-1)[0] += 1e-6
    checkpoint.save(latest, parts, info)
    assert len(differences(whole, changed)) == 1 and name in differences(whole, changed)[0]


DYING = """
import os, signal, sys
from podium.core import checkpoint
from podium.cli import main
name, times, *words = sys.argv[1:]
going, calls = getattr(checkpoint, name), 0
def die(*args):
    global calls
    calls += 1
    if calls == int(times):
        os.kill(os.getpid(), signal.SIGKILL)
    return going(*args)
setattr(checkpoint, name, die)
main(words)
"""


@pytest.mark.parametrize(
    ("function", "call", "resumed_from"),
    [("_put_in_place", 1, None), ("_put_in_place", 2, 2048), ("link", 2, 2048)],
    ids=["in the first checkpoint", "in the second", "before the second is the latest"],
)
def test_killed_while_it_writes_a_checkpoint(
    function: str, call: int, resumed_from: int | None, whole_runs: dict[str, Path], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    words = [str(word) for word in train_words("normalized", folder, SEED)]
    died = subprocess.run(
        [sys.executable, "-c", DYING, function, str(call), *words], env=environment(), capture_output=True, cwd=ROOT
    )
    assert died.returncode == -9
    with open(folder / "metrics.jsonl", "ab") as file:
        file.write(b'{"env_steps": 41')  # and in the midst of a row
    assert RunFolder.open(folder).read_result() is None
    assert podium.resume(folder, progress=False)["resumed_from"] == resumed_from
    assert differences(whole_runs["normalized"], folder) == []
    assert not list((folder / "checkpoints").glob(".*")), "what the killed run left is cleared"


def test_killed_between_its_last_iteration_and_its_result_it_plays_no_more(
    whole_runs: dict[str, Path], tmp_path: Path
) -> None:
    for case in ("vector", "restarting"):
        folder = shutil.copytree(whole_runs[case], tmp_path / case, symlinks=True)
        (folder / "result.json").unlink()
        result = podium.resume(folder, progress=False)
        assert result["resumed_from"] == result["env_steps"] and result["stopped_by"] == "steps"
        assert differences(whole_runs[case], folder) == []


def test_a_finished_run_says_so(
    capsys: pytest.CaptureFixture[str], whole_runs: dict[str, Path], tmp_path: Path
) -> None:
    folder = shutil.copytree(whole_runs["stacked"], tmp_path / "run", symlinks=True)
    files = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.suffix != ".png"}
    for words in (["resume", folder], ["resume", folder, "--steps", 10]):
        code, out, err = called(capsys, *words)
        assert code == 0 and "stopped by steps" in out
        assert err == f"{folder} is finished: add --steps N to go on\n"
    assert {path: path.read_bytes() for path in files} == files


def test_more_steps_extend_a_run_as_if_they_had_been_asked_for_at_once(tmp_path: Path) -> None:
    podium.train("ppo", "CartPole-v1", out=tmp_path / "once", **SMALL)
    podium.train("ppo", "CartPole-v1", out=tmp_path / "extended", **{**SMALL, "steps": 1500})
    result = podium.resume(tmp_path / "extended", 3000, progress=False)
    assert 1500 <= result["resumed_from"] < 1500 + 256
    assert differences(tmp_path / "once", tmp_path / "extended") == [
        f"checkpoints: {names(tmp_path / 'once')} and {names(tmp_path / 'extended')}"
    ], "the checkpoint of the first end is there beside the others, and all else is equal"
    assert RunFolder.open(tmp_path / "extended").config == RunFolder.open(tmp_path / "once").config


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "checkpoints").iterdir())


def test_an_extended_run_that_is_killed_still_goes_to_its_new_end(tmp_path: Path) -> None:
    podium.train("ppo", "CartPole-v1", out=tmp_path / "run", **{**SMALL, "steps": 1500})
    podium.resume(tmp_path / "run", 3000, progress=False, callbacks=[CopyAt(2300, tmp_path / "killed")])
    assert RunFolder.open(tmp_path / "killed").read_result() is None, "the first end's result is past"
    assert podium.resume(tmp_path / "killed", progress=False)["env_steps"] >= 3000
    assert differences(tmp_path / "run", tmp_path / "killed") == []


def test_a_run_that_reached_its_return_goes_on_when_more_steps_are_asked_for(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    first = podium.train(
        "ppo", "toy:constant", out=folder, stop_return=10, env_args={"length": 5}, **{**SMALL, "fragment": 8}
    )
    assert first["stopped_by"] == "steps", "the best return is 5"
    shutil.rmtree(folder)
    first = podium.train(
        "ppo", "toy:constant", out=folder, stop_return=5, env_args={"length": 5}, **{**SMALL, "fragment": 8}
    )
    assert first["stopped_by"] == "stop_return" and first["env_steps"] < 1000
    assert podium.resume(folder, progress=False).figures == first.figures
    longer = podium.resume(folder, 1500, progress=False)
    assert longer["stopped_by"] == "steps" and longer["env_steps"] >= 1500


def test_a_run_that_runs_is_not_resumed_beside_it(tmp_path: Path) -> None:
    class Impatient(podium.Callback):
        refused = 0

        def on_iteration(self, run: Any, row: Any) -> None:
            for again in (
                lambda: podium.resume(tmp_path / "run", progress=False),
                lambda: podium.train("ppo", "CartPole-v1", out=tmp_path / "run", overwrite=True, **SMALL),
            ):
                with pytest.raises(UsageError, match=f"in use: process {os.getpid()} trains in it"):
                    again()
                self.refused += 1

    impatient = Impatient()
    rows = podium.train("ppo", "CartPole-v1", out=tmp_path / "run", callbacks=[impatient], **SMALL)["updates"]
    assert impatient.refused == 2 * rows > 0
    assert len(RunFolder.open(tmp_path / "run").read_metrics()) == rows


def damage_truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def damage_alter(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(bytes(content))


@pytest.mark.parametrize("damage", [damage_truncate, damage_alter])
@pytest.mark.parametrize("part", ["policy.safetensors", "optimizer.safetensors", "counters.json", "manifest.json"])
def test_a_damaged_checkpoint_is_told_and_nothing_is_touched(
    capsys: pytest.CaptureFixture[str], whole_runs: dict[str, Path], tmp_path: Path, damage: Any, part: str
) -> None:
    folder = shutil.copytree(whole_runs["vector"], tmp_path / "run", symlinks=True)
    damage((folder / "checkpoints" / "latest" / part).resolve())
    files = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    code, out, err = called(capsys, "resume", folder, "--steps", 20_000, "--json")
    assert (code, out) == (1, "") and err.count("\n") == 1
    assert part in err and ("checksum" in err or part == "manifest.json")
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == files
    if part.startswith("policy"):
        with pytest.raises(CheckpointError, match="checksum"):
            podium.load(folder)
        assert called(capsys, "evaluate", folder)[0] == 1


def test_a_latest_that_points_nowhere_is_no_reason_to_start_over(
    capsys: pytest.CaptureFixture[str], whole_runs: dict[str, Path], tmp_path: Path
) -> None:
    folder = shutil.copytree(whole_runs["vector"], tmp_path / "run", symlinks=True)
    shutil.rmtree((folder / "checkpoints" / "latest").resolve())
    rows = (folder / "metrics.jsonl").read_bytes()
    (folder / "result.json").unlink()
    code, _, err = called(capsys, "resume", folder)
    assert code == 2 and "no checkpoint at" in err
    assert (folder / "metrics.jsonl").read_bytes() == rows


def test_resume_prints_what_train_does(
    capsys: pytest.CaptureFixture[str], whole_runs: dict[str, Path], tmp_path: Path
) -> None:
    folder = shutil.copytree(whole_runs["stacked"].with_name("stacked-copy"), tmp_path / "run", symlinks=True)
    last = checkpoint_steps(folder)[-1]
    code, out, err = called(capsys, "resume", folder, "--json", "--quiet", "--steps", last + 300)
    assert (code, err) == (0, "")
    printed = json.loads(out)
    assert printed["plot"] == str(folder / "plot.png") and (folder / "plot.png").stat().st_size > 1000
    stored = json.loads((folder / "result.json").read_text())
    assert {name: printed[name] for name in stored} == stored
