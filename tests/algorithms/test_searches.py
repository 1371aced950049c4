"""The searches learn toys whose best return is known, from a seed; turned around, they don't."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from podium import algorithms
from podium.algorithms import ars, cem, es
from podium.algorithms.common.base import Algorithm, Setup
from podium.algorithms.common.evolution import search
from podium.core.noise import Noises
from podium.engine.local import LocalEngine
from podium.envs.make import EnvSpec, spaces_of

# Every setting that matters here is given, so that tuning the defaults moves no bound.
PLAIN: dict[str, Any] = {"seed": 1, "envs": 16, "noise_table": 100_000}
SMALL: dict[str, dict[str, Any]] = {
    "es": {**PLAIN, "population": 32, "hidden": (8,), "lr": 0.1, "sigma": 0.2, "weight_decay": 0.0},
    "ars": {**PLAIN, "directions": 16, "top": 8, "lr": 0.3, "sigma": 0.3, "normalize_obs": True},
    "cem": {**PLAIN, "population": 32, "elites": 6, "sigma": 1.0, "extra_noise": "0.5->0"},
}
RULES: dict[str, Any] = {"es": es.ES, "ars": ars.ARS, "cem": cem.CEM}
UPDATES = 40


def evaluated(algorithm: Algorithm, env: str, **settings: Any) -> float:
    """The mean return of 20 unperturbed episodes in the end."""
    spec = EnvSpec(env)
    config = algorithm.configure(None, settings)
    optimizer = algorithm.build(config, Setup(LocalEngine(), spec, *spaces_of(spec)))
    for update in range(UPDATES):
        optimizer.step(update / UPDATES)
    played = optimizer.engine.get(optimizer.learner().call("evaluate", spec, 20, 0))  # type: ignore[attr-defined]
    optimizer.close()
    return float(played.returns.mean())


def turned_around(name: str) -> Algorithm:
    """The search with the returns' sign flipped before its rule sees them."""

    class Against(RULES[name]):
        def step(self, mean: np.ndarray, returns: np.ndarray, noises: Noises, progress: float) -> dict[str, float]:
            return super().step(mean, -returns, noises, progress)  # type: ignore[no-any-return]

    return search(name, algorithms.get(name).config, Against)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", SMALL)
def test_each_learns_to_match_and_turned_around_to_avoid(name: str) -> None:
    """Guessing gets 8 of 32."""
    assert evaluated(algorithms.get(name), "toy:match", **SMALL[name]) > 30
    assert evaluated(turned_around(name), "toy:match", **SMALL[name]) < 2


@pytest.mark.parametrize("name", SMALL)
def test_continuous_actions_follow_their_target(name: str) -> None:
    """The cost of always 0 is 10.7 in the mean, that of a wrong sign 42."""
    assert evaluated(algorithms.get(name), "toy:continuous", **SMALL[name]) > -2
    assert evaluated(turned_around(name), "toy:continuous", **SMALL[name]) < -20


@pytest.mark.parametrize("name", SMALL)
def test_masked_actions_are_never_taken(name: str) -> None:
    """An illegal action would end an episode with -1; the best legal one is worth about 23.5, any 16."""
    assert evaluated(algorithms.get(name), "toy:masked", **{**SMALL[name], "sample_actions": True}) > 19


@pytest.mark.parametrize("name", SMALL)
def test_a_schedule_reaches_the_step(name: str) -> None:
    """With steps that shrink to nothing nothing moves any more."""
    still = {"cem": {"extra_noise": "0.5->0"}}.get(name, {"lr": "0.1->0"})
    config = algorithms.get(name).configure(None, {**SMALL[name], **still})
    spec = EnvSpec("toy:match")
    optimizer = algorithms.get(name).build(config, Setup(LocalEngine(), spec, *spaces_of(spec)))
    for progress, moves in ((0.0, True), (1.0, name == "cem")):
        assert (optimizer.step(progress).metrics.values()["update_norm"] > 0) is moves
    optimizer.close()
