"""The algorithms learn toys whose best return is known, from a seed; turned around, they don't."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from podium import algorithms
from podium.algorithms import a2c, a3c, appo, impala, pg, ppo
from podium.algorithms.common.base import Algorithm, Setup
from podium.algorithms.common.on_policy import on_policy, vtrace_targets
from podium.core.batch import Batch
from podium.engine.local import LocalEngine
from podium.envs.make import EnvSpec, spaces_of
from podium.optimizers.base import Optimizer

# Every setting that matters here is given, so that tuning the defaults moves no bound.
PLAIN: dict[str, Any] = {"seed": 1, "envs": 8, "fragment": 32, "hidden": (64,), "gamma": 0.98, "entropy": 0.0}
CRITIC: dict[str, Any] = {**PLAIN, "gae_lambda": 0.8, "value_coef": 0.5}
VTRACE: dict[str, Any] = {**PLAIN, "value_coef": 0.5, "workers": 2}
SMALL: dict[str, dict[str, Any]] = {
    "ppo": {**CRITIC, "lr": 0.003, "epochs": 4, "minibatch": 64, "clip": 0.2},
    "a2c": {**CRITIC, "lr": 0.01, "fragment": 16},
    "pg": {**PLAIN, "lr": 0.01},
    "a3c": {**CRITIC, "lr": 0.01, "fragment": 16, "workers": 2},
    "impala": {**VTRACE, "lr": 0.01, "fragment": 16},
    "appo": {**VTRACE, "lr": 0.003, "epochs": 4, "minibatch": 64, "clip": 0.2},
}
ITERATIONS = {"ppo": 12, "a2c": 70, "pg": 60, "a3c": 100, "impala": 140, "appo": 30}


def build(
    algorithm: Algorithm, env: str, strict: bool = False, *, args: Mapping[str, Any] = {}, **settings: Any
) -> Optimizer:
    config = algorithm.configure(None, settings)
    spec = EnvSpec(env, dict(args))
    return algorithm.build(config, Setup(LocalEngine(strict), spec, *spaces_of(spec)))


def train(algorithm: Algorithm, env: str, iterations: int, **settings: Any) -> list[float]:
    """The episodes' returns, in the order of their ends."""
    optimizer = build(algorithm, env, **settings)
    returns = [r for i in range(iterations) for r, _ in optimizer.step(i / iterations).episodes]
    optimizer.close()
    return returns


def last(returns: list[float]) -> float:
    """The mean of the last fifth."""
    return float(np.mean(returns[-len(returns) // 5 :]))


def turned_around(name: str) -> Algorithm:
    """The algorithm with the sign of what it is to reinforce flipped."""
    module: Any = {"ppo": ppo, "a2c": a2c, "pg": pg, "a3c": a3c, "impala": impala, "appo": appo}[name]
    if name in ("impala", "appo"):

        def against(*given: Any) -> dict[str, np.ndarray]:
            found = dict(vtrace_targets(*given))
            return {**found, "advantage": -found["advantage"]}

        return on_policy(name, module.ALGORITHM.config, module.loss, module.as_played, targets=against)
    column = "return" if name == "pg" else "advantage"
    finish = module.returns_to_go if name == "pg" else module.advantages

    def flipped(policy: Any, batch: Batch, now: Any) -> Batch:
        finished = finish(policy, batch, now)
        return finished.with_columns(**{column: -finished[column]})

    return on_policy(name, module.ALGORITHM.config, module.loss, flipped)


@pytest.mark.parametrize("name", ["ppo", "a2c", "pg", "a3c", "impala", "appo"])
def test_each_learns_to_match_and_turned_around_to_avoid(name: str) -> None:
    """Guessing gets 8 of 32."""
    returns = train(algorithms.get(name), "toy:match", ITERATIONS[name], **SMALL[name])
    assert last(returns) > 28
    wrong = train(turned_around(name), "toy:match", ITERATIONS[name], **SMALL[name])
    assert last(wrong) < 4


CUE = {**SMALL["ppo"], "hidden": (16,), "minibatch": 128, "lr": 0.005, "entropy": 0.01}


@pytest.mark.parametrize(("memory", "low", "high"), [("lstm", 0.95, 1.0), ("gru", 0.95, 1.0), ("none", 0.3, 0.65)])
@pytest.mark.parametrize("autoreset", ["same", "next"])
def test_only_memory_tells_which_cue_was_shown(memory: str, low: float, high: float, autoreset: str) -> None:
    """Of two cues the memoryless can only guess."""
    sizes = {} if memory == "none" else {"memory": memory, "memory_size": 16}
    settings = {**CUE, "args": {"gap": 2, "autoreset": autoreset}, **sizes}
    assert low <= last(train(algorithms.get("ppo"), "toy:cue", 60, **settings)) <= high


def test_masked_actions_are_never_taken_and_the_best_legal_one_is_learned() -> None:
    """An illegal action ends an episode early with -1. A random legal action is worth 16 of 32, the best one about 23.5."""
    algorithm = algorithms.get("ppo")
    optimizer = build(algorithm, "toy:masked", **SMALL["ppo"])
    episodes = [episode for i in range(30) for episode in optimizer.step(i / 30).episodes]
    optimizer.close()
    assert {length for _, length in episodes} == {32}
    assert last([r for r, _ in episodes]) > 21


@pytest.mark.parametrize("squash", [False, True])
def test_continuous_actions_follow_their_target(squash: bool) -> None:
    """The cost is about 30 for a random normal action, and 10.7 for always 0."""
    returns = train(algorithms.get("ppo"), "toy:continuous", 25, squash=squash, **SMALL["ppo"])
    assert last(returns) > -4


@pytest.mark.parametrize("settings", [{}, {"squash": True}, {"normalize_obs": True, "rescale_actions": True}], ids=str)
def test_pendulum_steps(settings: dict[str, Any]) -> None:
    optimizer = build(algorithms.get("ppo"), "Pendulum-v1", **SMALL["ppo"], **settings)
    for i in range(3):
        step = optimizer.step(i / 3)
        figures = step.metrics.values()
        assert step.env_steps == 256 and all(np.isfinite(list(figures.values())))
        assert figures["gradient_steps"] == 16
    optimizer.close()


@pytest.mark.parametrize("name", ["ppo", "a2c", "pg"])
def test_workers_learn_too_and_nothing_is_shared_by_alias(name: str) -> None:
    """Through a strict engine every argument and result is pickled, as on a cluster; the figures are the same."""
    runs = []
    for strict in (False, True):
        optimizer = build(algorithms.get(name), "toy:match", strict, workers=2, **SMALL[name])
        steps = [optimizer.step(i / 4) for i in range(4)]
        weights = optimizer.engine.get(optimizer.learner().call("get_weights", 0.0))  # type: ignore[attr-defined]
        runs.append((weights.flat, [step.episodes for step in steps], [step.metrics.values() for step in steps]))
        assert [step.env_steps for step in steps] == [16 * optimizer.fragment] * 4  # type: ignore[attr-defined]
        optimizer.close()
    assert np.array_equal(runs[0][0], runs[1][0]) and runs[0][1:] == runs[1][1:]


def test_a_run_repeats_bit_for_bit_from_its_seed() -> None:
    settings = {**SMALL["ppo"], "normalize_obs": True}
    first, second = (train(algorithms.get("ppo"), "toy:continuous", 6, **settings) for _ in range(2))
    other = train(algorithms.get("ppo"), "toy:continuous", 6, **{**settings, "seed": 2})
    assert first == second != other


def test_the_optimizers_state_goes_on_bit_for_bit() -> None:
    settings: dict[str, Any] = {**SMALL["ppo"], "normalize_obs": True, "workers": 2, "fragment": 20}
    whole, resumed = (build(algorithms.get("ppo"), "toy:continuous", **settings) for _ in range(2))
    for _ in range(2):
        whole.step(0.0)
    resumed.set_state(whole.get_state(restart=True))
    for i in range(3):
        steps = [optimizer.step(i / 3) for optimizer in (whole, resumed)]
        assert steps[0].episodes == steps[1].episodes
        assert steps[0].metrics.values() == steps[1].metrics.values()
    whole.close()
    resumed.close()


def test_schedules_reach_the_loss_and_the_step() -> None:
    optimizer = build(algorithms.get("ppo"), "toy:match", **{**SMALL["ppo"], "lr": "1e-2->0", "epochs": "4->1"})
    at = {progress: optimizer.step(progress).metrics.values() for progress in (0.0, 0.5, 1.0)}
    assert [at[p]["lr"] for p in at] == pytest.approx([0.01, 0.005, 0.0])
    assert [at[p]["epochs"] for p in at] == [4, 2, 1]
    optimizer.close()


def test_ppo_asks_for_the_kl_stop_at_one_and_a_half_times_the_target() -> None:
    hasty = {**SMALL["ppo"], "lr": 0.05, "epochs": 10}
    free, bound = (build(algorithms.get("ppo"), "toy:match", **hasty, target_kl=kl) for kl in (None, 0.01))
    figures = [optimizer.step(0.0).metrics.values() for optimizer in (free, bound)]
    assert figures[0]["epochs"] == 10 and figures[1]["epochs"] < 10 and figures[1]["kl"] > 0.015
