"""Whole runs of sac, td3 and ddpg: what is refused by name, and what a run leaves that can't go on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import podium
from podium import algorithms
from podium.cli import main
from podium.core import checkpoint
from podium.core.errors import TrainingError, UsageError

SMALL = ["--steps", "400", "--hidden", "8", "--batch", "16", "--learning-starts", "64", "--buffer", "400"]


class Unbounded(gymnasium.Env[Any, Any]):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,))

    def reset(self, **_: Any) -> Any:
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.zeros(2, np.float32), 0.0, False, False, {}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["td3", "CartPole-v1"], "td3 needs a Box of actions, and this env has Discrete(2): dqn and sac take Discrete"),
        (["ddpg", "CartPole-v1"], "ddpg needs a Box of actions, and this env has Discrete(2)"),
        (
            ["sac", "Pendulum-v1", "--entropy", "0.2", "--target-entropy", "-1"],
            "--target-entropy -1.0 would not be read",
        ),
        (["sac", "Pendulum-v1", "--entropy", "atuo"], "--entropy is 'atuo', expected "),
        (
            ["ddpg", "Pendulum-v1", "--noise-kind", "oo"],
            "--noise-kind is 'oo', expected one of gaussian, ou; did you mean 'ou'?",
        ),
        (["td3", "Pendulum-v1", "--ou-theta", "0.2"], "--ou-theta 0.2 would not be read: --noise-kind is gaussian"),
        (["td3", "Pendulum-v1", "--tau", "0"], "--tau is '0', expected a number above 0 to 1"),
        (["sac", "Pendulum-v1", "--memory", "lstm"], "unknown setting --memory"),
        (["sac", "Pendulum-v1", "--optimizer", "allreduce"], "does not fit sac: it learns from a replay"),
        (["sac", "Pendulum-v1", "--batch", "32", "--buffer", "16"], "--buffer is 16, expected at least --batch"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["train", *words, "--out", str(tmp_path / "run")]) == 2
    line = capsys.readouterr().err
    assert said in line and line.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_unbounded_actions_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"sac needs a Box of actions between finite bounds, and this env has Box\[2\]"
    ):
        podium.train("sac", Unbounded, out=tmp_path / "run", progress=False)


@pytest.mark.parametrize("algo", ["sac", "td3", "ddpg"])
def test_rewards_that_blow_up_end_the_run_at_once_with_the_last_good_parameters(
    algo: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    words = ["train", algo, "Pendulum-v1", "--reward-scale", "1@0.5->1e36@0.6", *SMALL, "--out", str(folder)]
    assert main(words) == 1
    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert "not finite: loss, " in line and "critic_loss" in line and "try a lower --lr" in line
    update = int(line.split("update ")[1].split(":")[0])
    parts, info = checkpoint.load(folder / "checkpoints" / "latest")
    assert parts["policy"]["version"] == update - 1 > 0, "of the step before"
    assert all(np.isfinite(part).all() for part in parts["policy"]["model"].values())
    assert info["exact"] is False
    result = json.loads((folder / "result.json").read_text())
    assert (result["status"], result["stopped_by"]) == ("failed", "error")


def test_ppo_leaves_its_last_good_parameters_as_well(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    settings: dict[str, Any] = {"envs": 4, "fragment": 16, "hidden": (8,), "steps": 4000, "progress": False}
    with pytest.raises(TrainingError, match="not finite: .*value_loss"):
        podium.train("ppo", "Pendulum-v1", out=folder, reward_scale="1->1e36@0.5", **settings)
    parts, info = checkpoint.load(folder / "checkpoints" / "latest")
    assert all(np.isfinite(part).all() for part in parts["policy"]["model"].values())
    assert parts["policy"]["optimizer"]["steps"] > 0 and info["exact"] is False


def test_a_run_evaluates_resumes_and_plays(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    settings: dict[str, Any] = {"hidden": (8,), "batch": 16, "learning_starts": 64, "buffer": 400}
    settings |= {"eval_every": 200, "eval_episodes": 2, "log_every": 8, "progress": False}
    result = podium.train("sac", "Pendulum-v1", steps=400, out=folder, **settings)
    assert result["eval_return_mean"] is not None and result["updates"] == 400 - 64
    assert podium.resume(folder, steps=600, progress=False)["env_steps"] == 600
    action = podium.load(folder).predict([1.0, 0.0, 0.0])
    assert np.shape(action) == (1,) and abs(float(action[0])) <= 2


def test_the_plan_knows_what_the_replay_takes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "sac", "Pendulum-v1", "--buffer", "100000", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["memory"]["replay_bytes"] == (3 * 4 + 4 + 13) * 100_000


def test_update_to_data_is_the_steps_of_an_update_turned_around() -> None:
    assert algorithms.get("sac").configure("droq", {}).train_every == 1 / 20  # type: ignore[attr-defined]
