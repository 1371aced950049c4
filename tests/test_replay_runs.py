"""Whole runs with a replay: what their checkpoints hold and share, what an error leaves, evaluation without noise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import podium
from podium import algorithms
from podium.algorithms.common.base import Setup
from podium.cli import main
from podium.core import checkpoint
from podium.engine.local import LocalEngine
from podium.envs.make import EnvSpec, spaces_of
from podium.run.folder import RunFolder

SMALL: dict[str, Any] = {
    "steps": 1600,
    "buffer": 800,
    "learning_starts": 100,
    "train_every": 16,
    "hidden": (8,),
    "eval_episodes": 2,
    "progress": False,
}


def pieces(folder: Path) -> dict[str, int]:
    """The files of a checkpoint's pieces of the replay, and their places on the disk."""
    return {path.name: path.stat().st_ino for path in folder.glob("replay-*.safetensors")}


def test_checkpoints_share_the_pieces_that_both_have(tmp_path: Path) -> None:
    podium.train("dqn", "CartPole-v1", out=tmp_path / "run", checkpoint_every=400, keep=9, eval_every=800, **SMALL)
    first, *others = sorted((tmp_path / "run" / "checkpoints").glob("step-*"))
    assert len(others) == 3
    for other in others:
        mine, before = pieces(other), pieces(first)
        both = mine.keys() & before.keys()
        assert len(both) >= 4 and all(mine[name] == before[name] for name in both), "linked, not written anew"
        first = other
    parts, info = checkpoint.load(first)
    assert info["exact"] is True and len(parts["replay"]["rows"]["loose"]) <= 3
    assert parts["policy"].keys() >= {"target", "optimizer"}
    best, _ = checkpoint.load(tmp_path / "run" / "checkpoints" / "best")
    assert list(best) == ["policy"]


class Failing(podium.Callback):
    def on_iteration(self, run: Any, row: Any) -> None:
        if row["env_steps"] > 700:
            raise LookupError("no more")


def test_after_an_error_the_replay_is_there_and_the_checkpoint_says_that_it_is_not_exact(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with pytest.raises(LookupError):
        podium.train("dqn", "CartPole-v1", out=folder, callbacks=[Failing()], **SMALL)
    parts, info = checkpoint.load(folder / "checkpoints" / "latest")
    assert info["exact"] is False and info["env_steps"] < 700 < parts["replay"]["rows"]["head"] * 8
    result = podium.resume(folder, progress=False)
    assert result["resumed_from"] == info["env_steps"] and result["env_steps"] >= 1600
    assert RunFolder.open(folder).read_metrics()[-1]["replay_size"] > 0


def test_stop_return_goes_by_evaluations_without_random_actions(tmp_path: Path) -> None:
    """Guessing gets 8 of 32 in training for ever; what was learned gets 32 once evaluated."""
    settings = {**SMALL, "epsilon": 1.0, "gamma": 0.0, "lr": 1e-2, "train_every": 4, "steps": 20_000}
    result = podium.train("dqn", "toy:match", out=tmp_path / "run", stop_return=31, eval_every=1000, **settings)
    assert result["stopped_by"] == "stop_return" and result["eval_return_mean"] >= 31
    assert result["return_mean"] < 12


def test_stacked_frames_stand_once_in_a_runs_replay() -> None:
    settings = {"frame_stack": 4, "envs": 2, "fragment": 8, "hidden": (8,), "learning_starts": 0, "batch": 16}
    algorithm, spec = algorithms.get("dqn"), EnvSpec("CartPole-v1", frame_stack=4)
    setup = Setup(LocalEngine(), spec, *spaces_of(spec))
    optimizer: Any = algorithm.build(algorithm.configure(None, settings), setup)
    for _ in range(4):
        optimizer.step(0.0)
    replay = optimizer.learner()._target._replay
    assert replay.rows.columns["obs"].shape[2:] == (4,) and replay.rows.lead == 3
    drawn = replay.sample(32, 0.9)
    assert drawn.batch["obs"].shape == (1, 32, 16) and np.isfinite(drawn.batch["next/obs"]).all()


def test_a_replay_larger_than_memory_is_refused_with_the_arithmetic(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for command in (["plan"], ["train", "--out", str(tmp_path / "run")]):
        words = [command[0], "dqn", "CartPole-v1", "--buffer", "1e12", *command[1:]]
        assert main(words) == 2
        line = capsys.readouterr().err
        assert "--buffer 1000000000000 takes 34458.9 GiB, 37 bytes for each transition" in line
        assert line.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_the_plan_says_what_the_replay_takes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "dqn", "CartPole-v1", "--buffer", "100000", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["memory"]["replay_bytes"] == 37 * 100_000 and plan["resume"]["exact"] is True
    assert plan["memory"]["total_bytes"] > plan["memory"]["replay_bytes"]


def test_an_env_without_discrete_actions_is_refused_by_name(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["train", "dqn", "Pendulum-v1", "--out", str(tmp_path / "run")]) == 2
    line = capsys.readouterr().err
    assert "needs Discrete actions, and this env has Box" in line and line.count("\n") == 1
