"""sac, td3 and ddpg: their targets and losses by hand, and that they learn toys, which they don't with a part turned around."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from podium import algorithms
from podium.algorithms import ddpg, sac, td3
from podium.algorithms.common.actor_q import actor_q
from podium.algorithms.common.base import Algorithm
from podium.core.spaces import Box, Discrete
from podium.policies.acting import Choices, Point, Squashed
from podium.policies.actor_q import Nets
from podium.policies.torch import Minibatch
from tests.algorithms.test_learning import build, last

CPU = torch.device("cpu")
UNIT = Box.of(-1, 1, (1,))


def nets(acting: Any, actor: Any, critics: Any, targets: Any, taken: Any, update: int = 1, entropy: Any = None) -> Nets:
    """Networks that say what these functions do; `critics` and `targets` are of an action."""

    def critic(said: Any) -> Any:
        def forward(obs: Any, action: Any, rng: Any = None, frozen: int = 0) -> torch.Tensor:
            found = said(action)
            return found[:frozen] if frozen else found

        return SimpleNamespace(forward=forward, layers=SimpleNamespace(count=2))

    model = SimpleNamespace(act=actor, critic=critic(critics), entropy=entropy)
    target = SimpleNamespace(act=actor, critic=critic(targets))
    obs = {"obs": torch.zeros(1, 1)}
    rng = torch.Generator().manual_seed(0)
    return Nets(acting, model, target, obs, obs, taken, None, None, rng, update)  # type: ignore[arg-type]


def transition(reward: float, discount: float) -> Minibatch:
    columns = {"return": torch.tensor([reward]), "discount": torch.tensor([discount]), "weight": torch.ones(1)}
    return Minibatch(columns, lambda column: column, 1)


def test_sacs_target_is_the_least_expectation_and_the_entropy() -> None:
    """Choices of a quarter and three, least worths 1 and 2, entropy 0.562335 at weight 0.5: worth 2.031168, and with reward
    1 and discount 0.9 the target is 2.828051. The critics say 2 and 3 of the choice that was taken."""
    logits = torch.tensor([[0.0, math.log(3.0)]])
    targets = torch.tensor([[[1.0, 3.0]], [[2.0, 2.0]]])
    critics = torch.tensor([[[0.0, 2.0]], [[4.0, 3.0]]])
    given = nets(Choices(Discrete(2)), lambda _: logits, lambda _: critics, lambda _: targets, torch.tensor([1]))
    now = SimpleNamespace(entropy=0.5, target_entropy=None)
    losses, errors, report = sac.loss(given, transition(1.0, 0.9), now)
    first, second = 2.828051 - 2.0, 2.828051 - 3.0
    assert losses["critic"].item() == pytest.approx(0.5 * (first**2 + second**2), abs=1e-5)
    assert errors.item() == pytest.approx((abs(first) + abs(second)) / 2, abs=1e-5)
    # The actor: 0.5 times -0.562335, less 0.25 * 0 + 0.75 * 2.
    assert losses["actor"].item() == pytest.approx(-0.281168 - 1.5, abs=1e-5) and set(losses) == {"actor", "critic"}
    assert report["entropy"]().item() == pytest.approx(0.562335, abs=1e-5)  # type: ignore[operator]


def test_the_entropys_weight_rises_below_the_target_and_falls_above() -> None:
    """Entropy is 0.5: of a target of 1 it lacks 0.5, of one of 0.2 it has 0.3 too much; the step goes against the slope."""
    log_weight = torch.zeros(1, requires_grad=True)
    logp = torch.tensor([-0.7, -0.3])
    slopes = [
        torch.autograd.grad(sac.entropy_loss(log_weight, logp, goal), log_weight)[0].item() for goal in (1.0, 0.2)
    ]
    assert slopes == pytest.approx([-0.5, 0.3])


@pytest.mark.parametrize(("target_entropy", "lacking"), [(None, -3.0), (-1.5, -1.5)])
def test_the_target_entropy_is_less_one_for_each_number_unless_it_is_given(target_entropy: Any, lacking: float) -> None:
    """With three numbers, at a log-probability of 0 the slope is minus the target."""
    acting = Squashed(Box.of(-1, 1, (3,)), CPU)
    acting.expected = lambda *_: (torch.zeros(1), torch.zeros(1))  # type: ignore[method-assign]
    log_weight = torch.zeros(1, requires_grad=True)
    given = nets(acting, lambda _: None, lambda a: torch.zeros(2, 1, 1), None, torch.zeros(1, 3), entropy=[log_weight])
    now = SimpleNamespace(target_entropy=target_entropy)
    losses, _, _ = sac.loss(given, transition(0.0, 0.9), now)
    assert torch.autograd.grad(losses["entropy"], log_weight)[0].item() == pytest.approx(-lacking)


def test_td3s_noise_is_clipped_and_stays_within_the_bounds() -> None:
    """Draws of 1, 10 and -10 deviations of 0.2 are 0.2, and 2 cut to 0.5; of -10 without the cut it would be -1."""
    meant, drawn = torch.tensor([0.0, 0.0, 0.0, 0.9]), torch.tensor([1.0, 10.0, -10.0, 1.0])
    assert td3.smoothed(meant, drawn, 0.2, 0.5).tolist() == pytest.approx([0.2, 0.5, -0.5, 1.0])


def test_td3s_target_is_the_least_of_the_targets_and_its_actor_follows_the_first_critic() -> None:
    """The target action is 0 (no noise): least of 4 and 3; 1 + 0.9 * 3 = 3.7. The actor moves by the first critic, 2 a."""
    point = torch.zeros(1, 1, requires_grad=True)

    def critics(a: torch.Tensor) -> torch.Tensor:
        return torch.stack([2 * a, -5 * a])

    def targets(a: torch.Tensor) -> torch.Tensor:
        return torch.stack([a + 4, a + 3])

    now = SimpleNamespace(target_noise=0.0, target_noise_clip=0.5, policy_delay=2)
    taken = torch.ones(1, 1)
    for update in (1, 2, 3):
        given = nets(Point(UNIT, CPU), lambda _: point, critics, targets, taken, update)
        losses, _, _ = td3.loss(given, transition(1.0, 0.9), now)
        assert losses["critic"].item() == pytest.approx(0.5 * ((3.7 - 2) ** 2 + (3.7 + 5) ** 2))
        assert ("actor" in losses) == (update == 2)
        if "actor" in losses:
            assert torch.autograd.grad(losses["actor"], point)[0].item() == pytest.approx(-2.0)


def test_ddpgs_target_is_what_the_target_says_of_the_target_actors_action() -> None:
    point = torch.full((1, 1), math.atanh(0.5))
    given = nets(Point(UNIT, CPU), lambda _: point, lambda a: (2 * a)[None], lambda a: (6 * a)[None], torch.ones(1, 1))
    losses, errors, _ = ddpg.loss(given, transition(1.0, 0.9), SimpleNamespace())
    assert errors.item() == pytest.approx(1 + 0.9 * 3 - 2) and losses["actor"].item() == pytest.approx(-1.0)


SMALL: dict[str, Any] = {
    "seed": 1,
    "envs": 8,
    "fragment": 4,
    "hidden": (32,),
    "lr": 3e-3,
    "gamma": 0.0,
    "buffer": 4000,
    "batch": 64,
    "learning_starts": 200,
    "train_every": 8,
}
STEPS = 4000


def returns(algorithm: Algorithm, env: str, **settings: Any) -> list[float]:
    optimizer: Any = build(algorithm, env, **{**SMALL, **settings})
    found: list[float] = []
    while optimizer.seen < STEPS:
        found += [total for total, _ in optimizer.step(optimizer.seen / STEPS).episodes]
    optimizer.close()
    return found


AUTO: dict[str, Any] = {"entropy_start": 0.05}
PARTS: dict[str, tuple[str, dict[str, Any]]] = {
    "sac": ("sac", AUTO),
    "sac, fixed weight": ("sac", {"entropy": 0.01}),
    "sac, prioritized": ("sac", {**AUTO, "prioritized": True}),
    "sac, two workers": ("sac", {**AUTO, "workers": 2, "envs": 4}),
    "sac, droq": ("sac", {**AUTO, "layer_norm": True, "critic_dropout": 0.01, "normalize_obs": True}),
    "td3": ("td3", {}),
    "ddpg": ("ddpg", {}),
    "ddpg, wandering": ("ddpg", {"noise_kind": "ou", "rescale_actions": True}),
}


@pytest.mark.parametrize("part", PARTS)
def test_each_follows_the_target(part: str) -> None:
    """The cost of an episode is 21 at random, and 10.7 for always 0; noise and entropy that is kept cost about 0.7."""
    name, settings = PARTS[part]
    assert last(returns(algorithms.get(name), "toy:continuous", **settings)) > -2.5


def turned_around(name: str, module: Any) -> Algorithm:
    """The algorithm with an actor that goes towards what critics call bad."""

    def loss(*given: Any) -> Any:
        losses, errors, report = module.loss(*given)
        if "actor" in losses:
            losses["actor"] = -losses["actor"]
        return losses, errors, report

    config = algorithms.get(name).config
    return actor_q(name, config, loss, module.make_acting, {})  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "module"), [("sac", sac), ("td3", td3), ("ddpg", ddpg)])
def test_turned_around_each_flees_from_it(name: str, module: Any) -> None:
    assert last(returns(turned_around(name, module), "toy:continuous")) < -15


def test_choices_learn_to_match() -> None:
    """Guessing gets 8 of 32; the entropy that is to be kept leaves a share of it."""
    settings = {"entropy": 0.05, "train_every": 4}
    assert last(returns(algorithms.get("sac"), "toy:match", **settings)) > 26


def test_masked_choices_are_never_taken() -> None:
    optimizer: Any = build(algorithms.get("sac"), "toy:masked", **{**SMALL, "entropy": 0.02, "train_every": 4})
    episodes = []
    while optimizer.seen < STEPS:
        episodes += optimizer.step(optimizer.seen / STEPS).episodes
    optimizer.close()
    assert {length for _, length in episodes} == {32} and last([total for total, _ in episodes]) > 20


def test_returns_over_steps_are_discounted_by_as_many_and_a_cut_is_bootstrapped_over() -> None:
    """Reward 1 at each step, cut after 3: with gamma 0.8 it is worth 5 for ever. Two rewards discounted once would be 9."""
    settings = {**SMALL, "gamma": 0.8, "n_step": 2, "entropy": 0.0, "tau": 0.05, "lr": 1e-2, "train_every": 4}
    optimizer: Any = build(algorithms.get("sac"), "toy:constant", args={"length": 3}, **settings)
    while optimizer.seen < 4000:
        optimizer.step(0.5)
    policy = optimizer.learner()._target.policy
    assert policy.values({"obs": np.ones((1, 1), np.float32)}, {}) == pytest.approx([5.0], abs=0.2)
    optimizer.close()


def test_nothing_is_shared_by_alias() -> None:
    """Through a strict engine every argument and result is pickled, as on a cluster; the weights are the same."""
    found = []
    for strict in (False, True):
        settings = {**SMALL, "workers": 2, "envs": 4, "learning_starts": 32, "noise_kind": "ou"}
        optimizer: Any = build(algorithms.get("td3"), "toy:continuous", strict, **settings)
        for i in range(12):
            optimizer.step(i / 12)
        found.append(optimizer.engine.get(optimizer.learner().call("get_weights", 0.0)).flat)
        optimizer.close()
    assert np.array_equal(*found)


def test_presets_are_known_settings() -> None:
    for name in ("sac", "td3", "ddpg"):
        algorithm = algorithms.get(name)
        for preset in algorithm.presets:
            algorithm.configure(preset, {})
    droq = algorithms.get("sac").configure("droq", {})
    assert replace(droq).train_every == 0.05  # type: ignore[attr-defined]
