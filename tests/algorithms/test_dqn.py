"""DQN learns a chain's values exactly, with each of its parts, and does not with a target that is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from podium import algorithms
from podium.algorithms import dqn
from podium.algorithms.common.base import Algorithm
from podium.policies.q import QPolicy, Said
from podium.policies.torch import Minibatch
from tests.algorithms.test_learning import build

GAMMA = 0.8
LENGTH = 5
CHAIN: dict[str, Any] = {
    "seed": 1,
    "envs": 8,
    "fragment": 4,
    "steps": 8000,
    "hidden": (32,),
    "lr": 3e-3,
    "gamma": GAMMA,
    "epsilon": 1.0,
    "buffer": 4000,
    "batch": 64,
    "learning_starts": 500,
    "train_every": 8,
    "target_every": 25,
}
PARTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "double": {"double": True},
    "dueling": {"dueling": True},
    "prioritized": {"prioritized": True},
    "noisy": {"noisy": True},
    "categorical": {"distribution": "categorical", "v_min": -0.5, "v_max": 1.5, "atoms": 41},
    "quantile": {"distribution": "quantile", "atoms": 8},
    "two workers": {"workers": 2, "envs": 4},
}


def learned(algorithm: Algorithm, **settings: Any) -> np.ndarray:
    """What the policy says that each action is worth at each place of the chain but the last, `[places, actions]`."""
    optimizer: Any = build(algorithm, "toy:chain", args={"length": LENGTH}, **{**CHAIN, **settings})
    while optimizer.seen < CHAIN["steps"]:
        optimizer.step(optimizer.seen / CHAIN["steps"])
    policy: QPolicy = optimizer.learner()._target.policy
    policy.model.still()
    with torch.no_grad():
        said = policy._look({"obs": np.eye(LENGTH, dtype=np.float32)[:-1]}, {})[0].numpy()
    optimizer.close()
    return said


def worth() -> np.ndarray:
    """Arriving pays 1: from place p it is gamma to the number of steps before the last. Left of place 0 is place 0."""
    best = GAMMA ** np.arange(LENGTH - 2, -1, -1.0)
    left = GAMMA * best[np.maximum(np.arange(LENGTH - 1) - 1, 0)]
    return np.stack([left, best], axis=1)


@pytest.mark.parametrize("part", PARTS)
def test_each_part_learns_what_every_action_is_worth(part: str) -> None:
    np.testing.assert_allclose(learned(algorithms.get("dqn"), **PARTS[part]), worth(), atol=0.06)


def changed(change: Any) -> Algorithm:
    """DQN with other columns where its loss reads the rows."""

    def loss(said: Said, rows: Minibatch, now: SimpleNamespace) -> Any:
        columns: Mapping[str, torch.Tensor] = {name: rows[name] for name in ("return", "discount")}
        return dqn.loss(said, Minibatch({**columns, **change(columns)}, lambda column: column, rows.size), now)

    def policy(config: Any, observation: Any, action: Any, seed: int) -> QPolicy:
        return QPolicy(config, observation, action, loss=loss, postprocess=dqn.shape_rewards, seed=seed)

    return replace(dqn.ALGORITHM, policy=policy, build=lambda config, setup: dqn.replayed(config, setup, policy))


@pytest.mark.parametrize(
    ("what", "change"),
    [
        ("nothing is bootstrapped", lambda rows: {"discount": torch.zeros_like(rows["discount"])}),
        ("the end is bootstrapped over", lambda rows: {"discount": torch.full_like(rows["discount"], GAMMA)}),
        ("discounted twice", lambda rows: {"discount": rows["discount"] * GAMMA}),
    ],
)
def test_a_wrong_target_misses(what: str, change: Any) -> None:
    assert np.abs(learned(changed(change)) - worth()).max() > 0.15, what


def test_a_cut_is_bootstrapped_over() -> None:
    """Reward 1 at each step, cut after 3: with gamma 0.8 it is worth 5 for ever, not 2.44."""
    settings = {**CHAIN, "steps": 4000, "lr": 1e-2, "n_step": 2}
    optimizer: Any = build(algorithms.get("dqn"), "toy:constant", args={"length": 3}, **settings)
    while optimizer.seen < 6000:
        optimizer.step(0.5)
    policy: QPolicy = optimizer.learner()._target.policy
    assert policy.values({"obs": np.ones((1, 1), np.float32)}, {}) == pytest.approx([5.0], abs=0.2)


def test_masked_actions_are_never_taken_and_the_best_legal_one_is_learned() -> None:
    """A random legal action is worth 16 of 32, the best one about 23.5; an illegal one ends an episode."""
    settings = {**CHAIN, "epsilon": "1->0@0.3", "gamma": 0.0, "train_every": 4}
    optimizer: Any = build(algorithms.get("dqn"), "toy:masked", **settings)
    episodes = []
    while optimizer.seen < 8000:
        episodes += optimizer.step(optimizer.seen / 8000).episodes
    optimizer.close()
    assert {length for _, length in episodes} == {32}
    assert np.mean([total for total, _ in episodes[-40:]]) > 21


def test_rainbow_is_all_parts_together() -> None:
    config = algorithms.get("dqn").configure("rainbow", {})
    assert (config.double, config.dueling, config.prioritized, config.noisy) == (True, True, True, True)
    assert config.n_step == 3 and config.distribution == "categorical" and config.epsilon == 0.0
