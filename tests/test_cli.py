"""The command line: exit codes, one line for each mistake, JSON on stdout alone, and what each command prints."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import podium
from podium.cli import main
from podium.run.folder import RunFolder
from tests.resume_tools import ROOT, environment
from tests.resume_tools import run as command

ENV = f"{__name__}:Noisy"
QUICK = ["--fragment", 16, "--epochs", 1, "--steps", 200, "--quiet"]


class Noisy(gymnasium.Env):
    """Prints as it goes, as simulators do; `fault` happens in each step from the `at`th on."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, fault: str = "", at: int = 10**9) -> None:
        self.fault, self.at, self.total = fault, at, 0
        print("simulator ready")
        os.write(1, b"from below Python\n")

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: int) -> Any:
        self.t, self.total = self.t + 1, self.total + 1
        if self.total >= self.at and self.fault == "raise":
            raise ZeroDivisionError("the motor\nbroke")
        return np.full(2, 7 if self.total >= self.at else 0, np.float32), 1.0, self.t == 10, False, {}


class Called:
    """What a command that ran in this process gave back."""

    def __init__(self, capsys: pytest.CaptureFixture[str], *words: Any) -> None:
        capsys.readouterr()
        try:
            self.code = main([*map(str, words)])
        except SystemExit as end:
            self.code = int(end.code or 0)
        self.out, self.err = capsys.readouterr()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cli") / "run"
    podium.train("ppo", "CartPole-v1", out=folder, steps=3000, epochs=1, seed=2, progress=False, lr=1e-3)
    return folder


@pytest.fixture
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to stand in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


TRAIN = ("train", "ppo", "CartPole-v1")
MISTAKES: list[tuple[tuple[Any, ...], str]] = [
    (("trian", "ppo"), "unknown command 'trian'; did you mean 'train'?"),
    (("frobnicate",), "unknown command 'frobnicate'; there are train, resume, tune"),
    (("train",), "expected `podium train ALGO ENV`"),
    (("train", "ppo"), "expected `podium train ALGO ENV`"),
    (("train", "pp0", "CartPole-v1"), "unknown algorithm 'pp0'; did you mean 'ppo'?"),
    (("train", "ppo", "CartPol-v1"), "unknown env 'CartPol-v1'; did you mean 'CartPole-v1'?"),
    (("train", "ppo", "toy:chian"), "unknown env 'toy:chian'; did you mean 'chain'?"),
    (("train", "ppo", "envpool:CartPol-v1"), "unknown env 'envpool:CartPol-v1'; did you mean 'CartPole-v1'?"),
    (("train", "ppo", "no_such_module:Env"), "there is no module 'no_such_module' here"),
    (("train", "ppo", "json:lods"), "json has no 'lods'; did you mean 'loads'?"),
    (("train", "ppo", "json:decoder"), "json:decoder is a module, expected a function or a class"),
    (("train", "no_such_module:ALGO", "CartPole-v1"), "there is no module 'no_such_module' here"),
    ((*TRAIN, "extra"), "unexpected argument 'extra'"),
    ((*TRAIN, "--gama", 0.9), "unknown setting --gama; did you mean '--gamma'?"),
    ((*TRAIN, "--overwrit"), "unknown setting --overwrit; did you mean '--overwrite'?"),
    ((*TRAIN, "--start-from", "x"), "unknown setting --start-from; did you mean '--from'?"),
    ((*TRAIN, "--env-args", "x"), "unknown setting --env-args; did you mean '--env-arg'?"),
    ((*TRAIN, "--callbacks", "x"), "unknown setting --callbacks"),
    ((*TRAIN, "--gamma", 1.5), "--gamma is '1.5', expected a number from 0 to 1"),
    ((*TRAIN, "--envs", 0), "--envs is '0', expected a whole number from 1"),
    ((*TRAIN, "--steps", "many"), "--steps is 'many', expected a whole number from 1 (env steps)"),
    ((*TRAIN, "--lr"), "--lr is 'true', expected a number"),
    ((*TRAIN, "--lr", 1, "--lr=2"), "--lr is given twice"),
    ((*TRAIN, "--out", "a", "--out", "b"), "--out is given twice"),
    ((*TRAIN, "--env-arg", "a=1", "--env-arg", "a=2"), "--env-arg a is given twice"),
    ((*TRAIN, "--lr", "1e-3->"), "--lr is '1e-3->', expected a number from 0 to 10, or a schedule"),
    ((*TRAIN, "--lr", "1->0@0.5->1@0.2"), "--lr is '1->0@0.5->1@0.2', expected"),
    ((*TRAIN, "--steps", "1->2"), "--steps is '1->2', expected a whole number"),
    ((*TRAIN, "--memory", "lstmm"), "--memory is 'lstmm', expected one of none, lstm, gru; did you mean 'lstm'?"),
    ((*TRAIN, "--memory-size", 32), "--memory-size 32 would not be read"),
    ((*TRAIN, "--env-processes", 9), "--env-processes is 9, expected at most --envs"),
    ((*TRAIN, "--env-arg", "x=1"), "CartPole-v1 has no argument 'x'"),
    ((*TRAIN, "--env-arg", "x"), "--env-arg is 'x', expected key=value"),
    ((*TRAIN, "--preset", "fast"), "ppo has no preset 'fast'"),
    ((*TRAIN, "--device", "cudda"), "--device cudda is not available here"),
    ((*TRAIN, "--seeds", "5-1"), "--seeds is '5-1', expected a range such as 1-5"),
    ((*TRAIN, "--seeds", "1,1"), "--seeds is '1,1'"),
    ((*TRAIN, "--seeds", "1-2", "--seed", 3), "--seed and --seeds can't go together"),
    ((*TRAIN, "--seed", -1), "--seed is '-1', expected a whole number from 0"),
    ((*TRAIN, "--from", "nowhere"), "nowhere does not exist"),
    ((*TRAIN, "--out"), "argument --out: expected one argument"),
    ((*TRAIN, "--out", "/proc/podium"), "can't write a run to /proc/podium"),
    (("resume",), "the following arguments are required: DIR"),
    (("resume", "nowhere"), "nowhere does not exist"),
    (("resume", "."), "holds no run (no config.json of one)"),
    (("evaluate", "nowhere"), "nowhere does not exist"),
    (("plot", "nowhere"), "nowhere does not exist"),
    (("plot",), "the following arguments are required: DIR|FILE"),
    (("list", "stuff"), "invalid choice: 'stuff'"),
    (
        ("train", "ppo", ENV, "--env-arg", "fault=outside", "--env-arg", "at=5"),
        "obs with 7 in it, outside its declared",
    ),
    (("train", "ppo", ENV, "--env-arg", "falt=1"), "has no argument 'falt'; did you mean 'fault'?"),
]


@pytest.mark.parametrize(("words", "line"), MISTAKES, ids=[" ".join(map(str, words)) for words, _ in MISTAKES])
def test_a_mistake_is_one_line_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], inside: Path, words: tuple[Any, ...], line: str
) -> None:
    done = Called(capsys, *words, *(["--out", "run"] if words[0] == "train" and "--out" not in words else []))
    assert done.code == 2, done.err
    assert done.err.startswith("podium: ") and done.err.count("\n") == 1 and line in done.err
    assert list(inside.iterdir()) == [], "nothing is made for a start that failed"


def test_mistakes_about_a_run_leave_it_alone(capsys: pytest.CaptureFixture[str], trained: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(trained, tmp_path / "run", symlinks=True)
    (tmp_path / "file").write_text("mine")
    files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for words, line in (
        (
            (*TRAIN, "--out", folder),
            "already holds a run: add --overwrite to replace it, or go on with it by `podium resume",
        ),
        ((*TRAIN, "--out", folder, "--overwrite", "--gamma", 2), "--gamma is '2'"),
        ((*TRAIN, "--out", folder, "--overwrite", "--env-arg", "x=1"), "has no argument 'x'"),
        ((*TRAIN, "--out", tmp_path / "file"), "is a file, expected a folder"),
        ((*TRAIN, "--out", tmp_path / "file" / "run"), "can't write a run to"),
        (("train", "--from", folder, "--preset", "x"), "--preset and --from can't go together"),
        (("resume", tmp_path), f"it holds runs: {folder}"),
        (("resume", tmp_path / "rum"), "does not exist; did you mean 'run'?"),
        (("resume", folder, "--steps", "x"), "--steps is 'x'"),
        (("resume", folder, "--stepps", 5), "unrecognized arguments: --stepps 5; did you mean '--steps'?"),
        (("evaluate", folder, "--episodes", 0), "'0', expected a whole number from 1"),
        (("evaluate", folder, "--checkpoint", "bets"), "no checkpoint 'bets'; there are: best, latest, step-"),
        (("evaluate", folder, "--video", "x.avi"), "expected a name that ends in .mp4 or .gif"),
        (("plot", folder, "--metric", "los"), "has no metric 'los'; did you mean 'loss'?"),
        (("plot", folder, "--out", tmp_path / "x.bmp"), "expected a name that ends in .png or .svg"),
    ):
        done = Called(capsys, *words)
        assert (done.code, done.out) == (2, ""), (words, done.err)
        assert line in done.err and done.err.count("\n") == 1
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == files


def test_several_seeds_are_refused_before_the_first_one_trains(
    capsys: pytest.CaptureFixture[str], inside: Path
) -> None:
    assert Called(capsys, *TRAIN, "--seed", 2, "--out", "all/seed-2", *QUICK).code == 0
    done = Called(capsys, *TRAIN, "--seeds", "1-3", "--out", "all", *QUICK)
    assert done.code == 2 and "all/seed-2 already holds a run" in done.err
    assert [path.name for path in (inside / "all").iterdir()] == ["seed-2"]


def test_an_env_that_fails_is_one_line_with_its_own_error(capsys: pytest.CaptureFixture[str], inside: Path) -> None:
    words = ("train", "ppo", ENV, "--quiet", "--out", "run")
    done = Called(capsys, *words, "--env-arg", "fault=raise", "--env-arg", "at=5")
    assert done.code == 1 and done.err == (
        "podium: ZeroDivisionError: the motor broke (env 0, step 5, in the check before training)\n"
    )
    assert list(inside.iterdir()) == []
    done = Called(capsys, *words, "--env-arg", "fault=raise", "--env-arg", "at=100")
    assert done.code == 1 and done.err == "podium: ZeroDivisionError: the motor broke (env 0, step 100)\n"
    result = RunFolder.open("run").read_result()
    assert result is not None and result["status"] == "failed" and result["where"] == "env 0, step 100"
    done = Called(capsys, *words, "--overwrite", "--debug", "--env-arg", "fault=raise", "--env-arg", "at=100")
    assert done.code == 1 and "Traceback" in done.err and 'raise ZeroDivisionError("the motor' in done.err


def test_json_stands_on_stdout_alone(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    words = ["--fragment", 16, "--epochs", 1, "--steps", 400]
    done = command("train", "ppo", ENV, *words, "--out", folder, "--json", cwd=ROOT)
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    assert "simulator ready" in done.stderr and "from below Python" in done.stderr and "512/400 steps" in done.stderr
    stored = json.loads((folder / "result.json").read_text())
    assert printed == {**stored, "folder": str(folder), "plot": str(folder / "plot.png")}
    done = command("evaluate", folder, "--json", "--episodes", 2, cwd=ROOT)
    assert json.loads(done.stdout)["return_mean"] == 10 and "simulator ready" in done.stderr
    done = command("train", "ppo", "toy:none", "--json", cwd=ROOT)
    assert (done.returncode, done.stdout) == (2, "")


def test_train_says_what_it_came_to(capsys: pytest.CaptureFixture[str], inside: Path) -> None:
    done = Called(capsys, *TRAIN, *QUICK, "--seed", 4)
    assert done.code == 0 and done.err == "", "--quiet leaves the progress out"
    (folder,) = (inside / "runs").iterdir()
    assert folder.name.startswith("ppo-CartPole-v1-s4-")
    lines = done.out.splitlines()
    assert lines[0].startswith("ppo CartPole-v1 seed 4: return ") and lines[0].endswith("stopped by steps")
    assert lines[1:] == [f"  run   runs/{folder.name}", f"  plot  runs/{folder.name}/plot.png"]
    done = Called(capsys, *TRAIN, *QUICK[:-1], "--out", "loud")
    assert "100%" in done.err and "steps/s" in done.err and "%" not in done.out


def test_settings_are_read_as_they_are_typed(capsys: pytest.CaptureFixture[str], inside: Path) -> None:
    words = ["--hidden", "32,16", "--log-std=-0.5", "--normalize-obs", "--shared", "yes", "--target-kl", "0.02", *QUICK]
    words += ["--env-arg", "max_episode_steps=50", "--lr", "3e-4->0", "--checkpoint-every", "none", "--stop-return", -5]
    done = Called(capsys, *TRAIN, *words, "--out", "run")
    assert done.code == 0, done.err
    config = RunFolder.open("run").config
    assert (config["hidden"], config["log_std"], config["normalize_obs"], config["shared"]) == (
        [32, 16],
        -0.5,
        True,
        True,
    )
    assert (config["target_kl"], config["env_args"], config["lr"]) == (0.02, {"max_episode_steps": 50}, "0.0003->0")
    assert (config["checkpoint_every"], config["stop_return"]) == (None, -5)


def test_several_seeds_train_into_folders_of_their_own(capsys: pytest.CaptureFixture[str], inside: Path) -> None:
    done = Called(capsys, *TRAIN, *QUICK, "--seeds", "1-2", "--json")
    assert done.code == 0, done.err
    runs = json.loads(done.out)
    assert [run["seed"] for run in runs] == [1, 2] and runs[0]["return_mean"] != runs[1]["return_mean"]
    (root,) = (inside / "runs").iterdir()
    assert sorted(path.name for path in root.iterdir()) == ["plot.png", "seed-1", "seed-2"]
    assert [run["folder"] for run in runs] == [f"runs/{root.name}/seed-1", f"runs/{root.name}/seed-2"]
    alone = json.loads(Called(capsys, *TRAIN, *QUICK, "--seed", 2, "--json", "--out", "alone").out)
    assert alone["return_mean"] == runs[1]["return_mean"]


def test_fine_tuning_takes_over_what_is_not_given(
    capsys: pytest.CaptureFixture[str], trained: Path, inside: Path
) -> None:
    done = Called(capsys, "train", "--from", trained, "--steps", 100, "--lr", 0, "--out", "tuned", "--quiet", "--json")
    assert done.code == 0, done.err
    tuned, source = RunFolder.open("tuned").config, RunFolder.open(trained).config
    assert tuned == {**source, "from": str(trained), "steps": 100, "lr": 0.0}
    figures = json.loads(done.out)
    assert (figures["algo"], figures["env"], figures["resumed_from"]) == ("ppo", "CartPole-v1", None)
    assert figures["env_steps"] <= 8 * 128, "counted from zero"
    obs = np.random.default_rng(0).normal(size=(20, 4))
    assert podium.load("tuned").predict(obs).tolist() == podium.load(trained).predict(obs).tolist()
    done = Called(capsys, "train", "a2c", "--from", trained, "--steps", 50, "--out", "other", "--quiet")
    assert done.code == 0, done.err
    assert RunFolder.open("other").config["algo"] == "a2c"


def test_overwrite_replaces_the_run_and_keeps_the_users_files(capsys: pytest.CaptureFixture[str], inside: Path) -> None:
    assert Called(capsys, *TRAIN, *QUICK, "--out", "run").code == 0
    (inside / "run" / "notes.txt").write_text("mine")
    assert Called(capsys, *TRAIN, *QUICK, "--seed", 9, "--out", "run", "--overwrite").code == 0
    assert RunFolder.open("run").config["seed"] == 9
    assert (inside / "run" / "notes.txt").read_text() == "mine"


def test_evaluate_prints_its_figures(capsys: pytest.CaptureFixture[str], trained: Path) -> None:
    played = json.loads(Called(capsys, "evaluate", trained, "--episodes", 3, "--json").out)
    assert {"return_mean", "return_std", "episodes", "length_mean"} <= played.keys() and played["episodes"] == 3
    assert played == podium.evaluate(trained, 3)
    text = Called(capsys, "evaluate", trained, "--episodes", 3).out
    assert f"return {played['return_mean']:.2f}" in text and "over 3 episodes" in text
    best = json.loads(Called(capsys, "evaluate", trained, "--checkpoint", "best", "--stochastic", "--json").out)
    assert (best["checkpoint"], best["stochastic"], best["episodes"]) == ("best", True, 20)


def test_plot_and_list(capsys: pytest.CaptureFixture[str], trained: Path, inside: Path) -> None:
    done = Called(capsys, "plot", trained, "--out", "curves.png")
    assert (done.code, done.out) == (0, "curves.png\n") and (inside / "curves.png").read_bytes()[1:4] == b"PNG"
    assert Called(capsys, "plot", trained / "metrics.jsonl", "--metric", "lr", "--out", "lr.svg").code == 0
    names = [row["algorithm"] for row in json.loads(Called(capsys, "list", "--json").out)]
    assert {"a2c", "pg", "ppo"} <= set(names) and "ppo" in Called(capsys, "list").out
    envs = {row["env"] for row in json.loads(Called(capsys, "list", "envs", "--json").out)}
    assert {"CartPole-v1", "toy:chain"} <= envs
    (row,) = json.loads(Called(capsys, "list", "runs", "--root", trained.parent, "--json").out)
    assert (row["run"], row["algo"], row["status"]) == (str(trained), "ppo", "finished") and row["env_steps"] >= 3000
    assert Called(capsys, "list", "runs", "--root", "none").out == "no runs in none\n"


def test_help_names_every_command_and_setting(capsys: pytest.CaptureFixture[str]) -> None:
    done = Called(capsys, "--help")
    assert done.code == 0 and all(name in done.out for name in ("train", "resume", "evaluate", "plot", "list", "bench"))
    done = Called(capsys, "train", "ppo", "--help")
    assert done.code == 0 and all(name in done.out for name in ("--gae-lambda", "--env-processes", "--out", "--clip"))
    assert Called(capsys, "train", "a2c", "--help").out.count("--clip") == 0
    for name in ("resume", "evaluate", "plot", "list"):
        done = Called(capsys, name, "--help")
        assert done.code == 0 and name in done.out
    assert Called(capsys, "--version").out == f"podium {podium.__version__}\n"


def test_a_reader_that_leaves_early_is_no_mishap() -> None:
    shell = f"{sys.executable} -m podium.cli list envs | head -1"
    done = subprocess.run(shell, shell=True, cwd=ROOT, env=environment(), capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.count("\n") == 1


def test_a_run_that_can_no_longer_be_written_ends_in_one_line(tmp_path: Path) -> None:
    """A limit on the size of its files, as a full disk or a quota sets one."""
    words = [sys.executable, "-m", "podium.cli", *map(str, (*TRAIN, "--out", tmp_path / "run", "--quiet"))]
    limited = ["bash", "-c", 'ulimit -f 40; exec "$@"', "limited", *words, "--steps", "200000", "--fragment", "8"]
    done = subprocess.run(limited, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and "File too large" in done.stderr, done.stderr
    rows = RunFolder.open(tmp_path / "run").read_metrics()
    assert len(rows) > 20, "what was written is still there"
