"""A synchronous optimizer comes to the same weights, bit for bit, wherever its evaluators run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from podium import algorithms
from podium.algorithms.common.base import Setup
from podium.engine.base import Engine
from podium.engine.local import LocalEngine
from podium.envs.make import EnvSpec, spaces_of
from tests.conformance.conftest import ray_engine

STEPS = 5
TINY: dict[str, Any] = {"seed": 3, "workers": 2, "envs": 4, "fragment": 16, "hidden": (32,), "lr": 1e-2}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "sync_samples": ("ppo", {"minibatch": 32, "epochs": 2, "normalize_obs": True}),
    "allreduce": ("ppo", {"minibatch": 32, "epochs": 2, "normalize_obs": True}),
    "allreduce, above 64 KiB": ("a2c", {"hidden": (256, 128)}),
    "multi_device": ("ppo", {"minibatch": 32, "epochs": 2}),
    "parameter_server": ("a2c", {"synchronous": True, "shards": 2, "normalize_obs": True}),
    "sync_replay": ("dqn", {"learning_starts": 0, "train_every": 16, "prioritized": True, "n_step": 2, "batch": 32}),
    "sync_replay, of sequences": (
        "r2d2",
        {"learning_starts": 0, "train_every": 16, "batch": 8, "sequence": 12, "burn_in": 4, "sequence_every": 4},
    ),
    "sync_replay, an actor": ("sac", {"learning_starts": 64, "train_every": 16, "batch": 32, "layer_norm": True}),
    "sync_replay, delayed": ("td3", {"learning_starts": 64, "train_every": 16, "batch": 32, "noise_kind": "ou"}),
}
ENVS = {"sync_replay, delayed": EnvSpec("Pendulum-v1", {}, time_limit=20)}


@pytest.fixture(scope="module")
def ray() -> Iterator[Engine]:
    yield from ray_engine()


def outcome(engine: Engine, case: str, seed: int = 3) -> tuple[list[np.ndarray], list[Any]]:
    """The weights after each step, and what was counted on the way."""
    name, settings = CASES[case]
    algorithm = algorithms.get(name)
    optimizer_name = case.split(",")[0]
    turns = {"log_every": 1} if optimizer_name == "sync_replay" else {}
    config = algorithm.configure(None, {**TINY, "optimizer": optimizer_name, **turns, **settings, "seed": seed})
    spec = ENVS.get(case, EnvSpec("CartPole-v1", {}))
    optimizer = algorithm.build(config, Setup(engine, spec, *spaces_of(spec)))
    weights, counted = [], []
    for step in range(STEPS):
        report = optimizer.step(step / STEPS)
        assert 64 < report.env_steps <= 2 * 4 * 16  # both workers played; rows that start an episode anew count nothing
        counted.append((report.env_steps, report.episodes))
        weights.append(engine.get(optimizer.learner().call("get_weights", 0.0)).flat.copy())
    optimizer.close()
    return weights, counted


@pytest.mark.parametrize("case", list(CASES))
def test_the_same_seed_gives_bit_equal_weights_everywhere(ray: Engine, case: str) -> None:
    here, counted = outcome(LocalEngine(), case)
    assert np.isfinite(here[-1]).all() and not np.array_equal(here[0], here[-1])
    assert any(episodes for _, episodes in counted)
    if case == "allreduce, above 64 KiB":
        assert here[0].nbytes > 1 << 16
    for engine in (LocalEngine(strict=True), ray):
        there, counted_there = outcome(engine, case)
        assert [one.tobytes() for one in there] == [one.tobytes() for one in here]
        assert counted_there == counted
    assert outcome(LocalEngine(), case, seed=4)[0][-1].tobytes() != here[-1].tobytes()
