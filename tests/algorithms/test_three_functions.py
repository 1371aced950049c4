"""The example of a policy from three functions: short, and it trains by the public words."""

from __future__ import annotations

import importlib
import pickle
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import podium
from podium.algorithms.common.base import EVOLUTION_OPTIMIZERS, OPTIMIZERS, REPLAY_OPTIMIZERS

EXAMPLE = Path(__file__).parents[2] / "examples" / "three_functions.py"
SETTINGS: dict[str, Any] = {"lr": 0.01, "fragment": 16, "seed": 1, "progress": False}


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(EXAMPLE.parents[1])
    return importlib.import_module("examples.three_functions")


def test_it_is_under_forty_lines() -> None:
    assert len(EXAMPLE.read_text().splitlines()) < 40


def test_it_learns_the_pole_and_gives_a_policy_that_acts(example: ModuleType, tmp_path: Path) -> None:
    """A random policy's pole stands for about 22 steps."""
    result = podium.train(example.ALGORITHM, "CartPole-v1", steps=15_000, out=tmp_path / "run", **SETTINGS)
    assert result["return_mean"] > 50 and result["algo"] == "three-functions"
    left, right = np.array([[0, 0, -0.2, -2.0], [0, 0, 0.2, 2.0]], np.float32)
    player = podium.load(result.folder, algo=example.ALGORITHM)
    assert [player.predict(obs) for obs in (left, right)] == [0, 1]
    assert result.policy.predict(np.stack([left, right])).tolist() == [0, 1]


def test_it_runs_with_workers_and_twice_in_one_process(example: ModuleType, tmp_path: Path) -> None:
    for run in ("first", "second"):
        out = tmp_path / run
        result = podium.train(example.ALGORITHM, "CartPole-v1", steps=1_000, workers=2, out=out, **SETTINGS)
        assert result["env_steps"] >= 1_000 and result["stopped_by"] == "steps"


@pytest.mark.parametrize(
    "optimizer", [name for name in OPTIMIZERS if name not in (*REPLAY_OPTIMIZERS, *EVOLUTION_OPTIMIZERS)]
)
def test_it_trains_under_every_optimizer(example: ModuleType, tmp_path: Path, optimizer: str) -> None:
    """Also where it says nothing of samples of older weights, if its author takes that upon himself."""
    given = [getattr(example, name) for name in ("loss", "postprocess")]
    algorithm = podium.on_policy("three-functions", example.ALGORITHM.config, *given, model=example.model, refused={})
    settings = {**SETTINGS, "optimizer": optimizer, "workers": 2, "envs": 4}
    result = podium.train(algorithm, "CartPole-v1", steps=12_000, out=tmp_path / "run", **settings)
    assert result["return_mean"] > 40 and result["optimizer"] == optimizer


def test_it_goes_by_its_name_and_can_be_sent_elsewhere(example: ModuleType, tmp_path: Path) -> None:
    name = "examples.three_functions:ALGORITHM"
    result = podium.train(name, "CartPole-v1", steps=500, out=tmp_path / "run", **SETTINGS)
    resumed = podium.resume(result.folder, steps=1_000, progress=False)
    assert resumed["env_steps"] >= 1_000 and resumed["resumed_from"] == result["env_steps"]
    assert pickle.loads(pickle.dumps(example.ALGORITHM.policy)).func is example.ALGORITHM.policy.func
