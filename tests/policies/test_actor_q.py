"""The policy of an actor and critics: who learns when, what follows how fast, and that its state goes on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from podium import algorithms
from podium.core.batch import Batch
from podium.core.errors import TrainingError
from podium.core.spaces import Box, Discrete
from podium.policies.actor_q import ActorQPolicy
from podium.policies.actor_q_networks import Layers
from podium.policies.base import Sgd
from podium.policies.groups import Groups

SPACE, ACTIONS = Box.of(-1, 1, (3,)), Box.of(-2, 2, (2,))
SMALL: dict[str, Any] = {"hidden": (16, 16), "lr": 1e-2}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "sac": ("sac", {}),
    "sac, filtered, dropout and norm": ("sac", {"critic_dropout": 0.1, "layer_norm": True, "normalize_obs": True}),
    "sac, fixed weight": ("sac", {"entropy": "0.2->0.1", "actor_lr": 3e-3, "max_grad_norm": 0.5}),
    "td3": ("td3", {}),
    "ddpg": ("ddpg", {"noise_kind": "ou"}),
}


def policy(algo: str, seed: int = 0, actions: Any = ACTIONS, **settings: Any) -> ActorQPolicy:
    algorithm = algorithms.get(algo)
    made = algorithm.policy(algorithm.configure(None, {**SMALL, **settings}), SPACE, actions, seed)
    assert isinstance(made, ActorQPolicy)
    return made


def rows(seed: int, n: int = 32, **columns: np.ndarray) -> Batch:
    rng = np.random.default_rng(seed)
    cols = {
        "obs": rng.uniform(-1, 1, (1, n, 3)).astype(np.float32),
        "next/obs": rng.uniform(-1, 1, (1, n, 3)).astype(np.float32),
        "action": rng.uniform(-2, 2, (1, n, 2)).astype(np.float32),
        "return": rng.normal(size=(1, n)).astype(np.float32),
        "discount": np.full((1, n), 0.9, np.float32),
        "weight": np.ones((1, n), np.float32),
    }
    return Batch({**cols, **columns})


def part(made: ActorQPolicy, name: str) -> torch.Tensor:
    first, end = made._optimizer.parts[name]
    return made._flat[first:end].clone()


def acted(made: ActorQPolicy, explore: bool) -> np.ndarray:
    obs = {"obs": np.random.default_rng(9).uniform(-1, 1, (64, 3)).astype(np.float32)}
    return made.act(obs, made.initial_state(64), explore=explore).action


@pytest.mark.parametrize("kind", KINDS)
def test_its_critics_learn_the_returns_of_fixed_rows(kind: str) -> None:
    name, settings = KINDS[kind]
    made = policy(name, **settings)
    batch = rows(0, discount=np.zeros((1, 32), np.float32))
    first = made.learn(batch, Sgd())
    assert first.rows["error"].shape == (32,) and np.isfinite(first.rows["error"]).all()
    for _ in range(300):
        last = made.learn(batch, Sgd())
    assert last.metrics["critic_loss"] < 0.3 * first.metrics["critic_loss"]


@pytest.mark.parametrize("kind", KINDS)
def test_its_state_goes_on_bit_for_bit(kind: str) -> None:
    name, settings = KINDS[kind]
    made, other = policy(name, 0, **settings), policy(name, 1, **settings)
    for seed in range(5):
        made.learn(rows(seed), Sgd())
    other.set_state(made.get_state(full=True))
    for seed in range(5):
        one, two = (each.learn(rows(10 + seed), Sgd()) for each in (made, other))
        assert one.metrics == two.metrics
        np.testing.assert_array_equal(one.rows["error"], two.rows["error"])
        np.testing.assert_array_equal(acted(made, explore=True), acted(other, explore=True))
    assert torch.equal(made._flat, other._flat) and torch.equal(made._target_flat, other._target_flat)


def test_targets_go_a_share_of_the_way_at_each_update() -> None:
    """From 0 towards 1 by a tenth, twice: 0.1, then 0.19."""
    made = policy("sac", tau=0.1)
    made._flat.fill_(1.0)
    made._target_flat.zero_()
    seen = []
    for _ in range(2):
        made._follow(0.1)
        seen.append(made._target_flat[0].item())
    assert seen == pytest.approx([0.1, 0.19])


def test_the_actor_and_the_targets_of_td3_move_at_every_second_update_alone() -> None:
    made = policy("td3")
    moved = []
    for seed in range(5):
        before = part(made, "actor"), part(made, "critic"), made._target_flat.clone()
        made.learn(rows(seed), Sgd())
        after = part(made, "actor"), part(made, "critic"), made._target_flat
        moved.append([not torch.equal(one, two) for one, two in zip(before, after, strict=True)])
    assert moved == [[False, True, False], [True, True, True]] * 2 + [[False, True, False]]


def test_each_group_has_a_pace_of_its_own() -> None:
    made = policy("sac", actor_lr=0.0)
    before = {name: part(made, name) for name in ("actor", "critic", "entropy")}
    made.learn(rows(0), Sgd())
    assert {name: torch.equal(part(made, name), before[name]) for name in before} == {
        "actor": True,
        "critic": False,
        "entropy": False,
    }
    assert made.parameters == sum(len(each) for each in before.values()) and len(before["entropy"]) == 1


def test_groups_are_clipped_each_by_its_own_norm() -> None:
    """Of lengths 5 and 50, at most 5: the first as it is, the second a tenth; the moments have a tenth of either."""
    groups = Groups(torch.zeros(4), {"a": (0, 2), "b": (2, 4)}, 1e-8)
    groups.step(torch.tensor([3.0, 4.0, 30.0, 40.0]), {"a": 0.1, "b": 0.1}, 5.0)
    means = [groups.get_state()[name]["mean"] for name in "ab"]
    np.testing.assert_allclose(means, [[0.3, 0.4], [0.3, 0.4]], rtol=1e-5)


@pytest.mark.parametrize("algo", ["sac", "td3", "ddpg"])
def test_no_group_is_in_anothers_loss(algo: str) -> None:
    made = policy(algo)
    made.version = 1  # the second update of td3 is the actor's as well
    batch = rows(0)
    minibatch, _ = next(made.load(batch).minibatches(None, np.random.default_rng(0)))
    losses, _, _ = made._loss(made._nets(minibatch), minibatch, made.config.at(0.0))
    modules = dict(made.model.named_children())
    for name, loss in losses.items():
        for other, module in modules.items():
            found = torch.autograd.grad(loss, list(module.parameters()), retain_graph=True, allow_unused=True)
            assert any(gradient is not None for gradient in found) == (name == other), (name, other)


def test_critics_side_by_side_are_what_each_is_alone() -> None:
    torch.manual_seed(0)
    layers, x = Layers(2, 5, 3, (8, 8), "tanh"), torch.randn(7, 5)
    for i, said in enumerate(layers.forward(x)):
        y = x
        for j, (weight, bias) in enumerate(zip(layers.weights, layers.biases, strict=True)):
            y = y @ weight[i] + bias[i]
            y = torch.tanh(y) if j < 2 else y
        torch.testing.assert_close(said, y)
    torch.testing.assert_close(layers.forward(x, frozen=1), layers.forward(x)[:1])


def test_a_norm_gives_hidden_units_mean_0_and_variance_1_and_dropout_keeps_the_mean() -> None:
    torch.manual_seed(0)
    normed = Layers(2, 5, 1, (64,), "silu", norm=True)
    seen: list[torch.Tensor] = []
    normed.activation = lambda x: (seen.append(x.detach()), x)[1]
    normed.forward(torch.randn(7, 5))
    torch.testing.assert_close(seen[0].mean(-1), torch.zeros(2, 7), atol=1e-5, rtol=0)
    torch.testing.assert_close(seen[0].var(-1, unbiased=False), torch.ones(2, 7), atol=1e-2, rtol=0)
    dropping, rng, x = (
        Layers(1, 5, 1, (4096,), "relu", dropout=0.25),
        torch.Generator().manual_seed(0),
        torch.randn(1, 5),
    )
    dropping.activation = lambda x: (seen.append(x.detach()), x)[1]
    dropping.forward(x, rng)
    dropping.forward(x)
    dropped, whole = seen[1:]
    assert float((dropped == 0).float().mean()) == pytest.approx(0.25, abs=0.02)
    torch.testing.assert_close(dropped[dropped != 0], whole[dropped != 0] / 0.75)


def test_it_acts_at_random_until_it_has_learned() -> None:
    made = policy("td3")
    at_first = acted(made, explore=True)
    assert at_first.std() == pytest.approx(4 / 12**0.5, rel=0.15), "uniform from -2 to 2"
    made.version = 1
    assert np.abs(acted(made, explore=True) - acted(made, explore=False)).max() < 2 * 0.1 * 5
    assert np.array_equal(acted(made, explore=False), acted(made, explore=False))


def test_priorities_are_the_errors_that_learning_reports() -> None:
    made = policy("ddpg")
    np.testing.assert_allclose(made.priorities(rows(0)), made.learn(rows(0), Sgd()).rows["error"], rtol=1e-6)


def test_weights_of_rows_count_for_the_critics() -> None:
    made, other = policy("ddpg"), policy("ddpg")
    weight = np.zeros((1, 32), np.float32)
    weight[0, :4] = 8.0
    made.learn(rows(0, weight=weight), Sgd())
    other.learn(rows(0).slice(envs=slice(0, 4)), Sgd())
    torch.testing.assert_close(part(made, "critic"), part(other, "critic"), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("column", "named"), [("return", "critic_loss"), ("obs", "actor_loss, critic_loss"), ("weight", "critic_loss")]
)
def test_what_is_not_finite_is_named_and_nothing_is_learned_from_it(column: str, named: str) -> None:
    made = policy("sac")
    good = rows(0)
    made.learn(good, Sgd())
    before, target = made._flat.clone(), made._target_flat.clone()
    bad = good[column].copy()
    bad[0, 0] = np.inf
    with pytest.raises(TrainingError, match=f"update 2: not finite: loss, {named}"):
        made.learn(good.with_columns(**{column: bad}), Sgd())
    assert torch.equal(made._flat, before) and torch.equal(made._target_flat, target) and made.version == 1


def test_a_loss_that_overflows_is_caught_though_its_gradient_is_finite() -> None:
    made = policy("ddpg")
    with pytest.raises(TrainingError, match="update 1: not finite: loss, critic_loss"):
        made.learn(rows(0, **{"return": np.full((1, 32), 1e19, np.float32)}).slice(envs=slice(0, 20)), Sgd())


def test_an_action_that_is_not_finite_ends_the_training() -> None:
    made = policy("sac")
    made.version = 3
    made._flat.fill_(np.nan)
    with pytest.raises(TrainingError, match="after update 3 the actor's action is not finite; try a lower --lr"):
        acted(made, explore=True)


def test_an_actor_of_the_users_own() -> None:
    def network(space: Box, outputs: int) -> nn.Module:
        return nn.Sequential(nn.Linear(space.shape[0], 8), nn.ReLU(), nn.Linear(8, outputs))

    made = policy("sac", model=network)
    assert len(part(made, "actor")) == 3 * 8 + 8 + 8 * 4 + 4
    made.learn(rows(0), Sgd())
    assert acted(made, explore=True).shape == (64, 2)


def test_choices() -> None:
    made = policy("sac", actions=Discrete(4))
    batch = rows(0, action=np.random.default_rng(1).integers(4, size=(1, 32)))
    made.learn(batch, Sgd())
    obs, mask = {"obs": batch["obs"][0]}, np.zeros((32, 4), bool)
    mask[:, 2] = True
    assert (made.act(obs, {}, mask).action == 2).all() and (made.act(obs, {}, mask, explore=False).action == 2).all()
    assert set(made.act(obs, {}).action) <= {0, 1, 2, 3} and made.values(obs, {}).shape == (32,)
