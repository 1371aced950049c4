"""A search comes to the same weights, bit for bit, wherever and by however many its perturbations are played; on Ray too
where a worker is killed. What is late there is counted by its rule."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from podium import algorithms
from podium.algorithms.common.base import Setup
from podium.engine.base import Engine
from podium.engine.local import LocalEngine
from podium.envs.make import EnvSpec, spaces_of
from podium.optimizers.evolution import Evolution
from tests.conformance.conftest import ray_engine

CASES: dict[str, dict[str, Any]] = {
    "es": {"population": 32, "sample_actions": True},
    "ars": {"directions": 14, "top": 5},
    "cem": {"population": 30, "elites": 6, "normalize_obs": True, "hidden": (16,)},
}
TINY: dict[str, Any] = {"seed": 3, "envs": 8, "noise_table": 300_000}
STEPS = 3


@pytest.fixture(scope="module")
def ray() -> Iterator[Engine]:
    yield from ray_engine()


def build(
    engine: Engine, algo: str, env: str = "CartPole-v1", args: dict[str, Any] | None = None, **settings: Any
) -> Any:
    algorithm = algorithms.get(algo)
    config = algorithm.configure(None, {**TINY, **CASES[algo], **settings})
    spec = EnvSpec(env, args or {})
    return algorithm.build(config, Setup(engine, spec, *spaces_of(spec)))


def outcome(optimizer: Evolution, kill: bool = False) -> tuple[list[bytes], list[Any]]:
    weights, counted = [], []
    for step in range(STEPS):
        if kill and step == 1:
            (started, *_) = optimizer.engine.get(optimizer.workers.handle(1).ready)
            os.kill(started["pid"], signal.SIGKILL)
        report = optimizer.step(step / STEPS)
        counted.append((report.env_steps, report.episodes))
        weights.append(optimizer.engine.get(optimizer.learner().call("get_weights", 0.0)).flat.tobytes())
    optimizer.close()
    return weights, counted


@pytest.mark.parametrize("algo", CASES)
def test_the_same_seed_gives_bit_equal_weights_everywhere(ray: Engine, algo: str) -> None:
    here = outcome(build(LocalEngine(), algo))
    assert len(set(here[0])) == STEPS
    assert outcome(build(LocalEngine(strict=True), algo, workers=3)) == here
    assert outcome(build(ray, algo, workers=2)) == here
    assert outcome(build(LocalEngine(), algo, seed=4))[0][-1] != here[0][-1]


def test_above_what_ray_sends_with_a_call(ray: Engine) -> None:
    """Weights and noise by the object store: 200,000 parameters."""
    settings = {"hidden": (440, 440), "workers": 2, "population": 8, "envs": 2}
    assert outcome(build(ray, "es", **settings)) == outcome(build(LocalEngine(), "es", **settings))


def test_a_worker_that_is_killed_changes_nothing(ray: Engine) -> None:
    optimizer = build(ray, "es", workers=2)
    killed = outcome(optimizer, kill=True)
    assert optimizer.workers.replaced == 1
    assert killed == outcome(build(LocalEngine(), "es"))


@pytest.mark.parametrize("late", ["use", "drop"])
def test_late_results_on_ray(ray: Engine, late: str) -> None:
    """Two workers on four parts of half the update's length each; half is waited for, so one is under way at its end."""
    args = {"ms": 4.0, "length": 20}
    optimizer = build(ray, "es", "toy:sleep", args, workers=2, wait_for=0.5, late=late)
    figures = [optimizer.step(0.0) for _ in range(5)][-1].metrics.values()
    assert optimizer.get_state(restart=True)["evaluators"][0]["exact"] is False
    optimizer.close()
    came = figures["late_used"] + figures["late_dropped"]
    assert came > 0 and figures[f"late_{'dropped' if late == 'drop' else 'used'}"] == came
    assert np.isfinite(figures["update_norm"])
