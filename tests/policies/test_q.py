"""The value-based policy: what its networks say, its target, its noise, what it refuses, its state."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from podium import algorithms
from podium.core.batch import Batch
from podium.core.errors import UsageError
from podium.core.spaces import Box, Discrete
from podium.policies.base import Sgd
from podium.policies.q import QPolicy
from podium.policies.q_networks import NoisyLinear, QNetwork, QSettings

SPACE, ACTIONS = Box.of(-1, 1, (3,)), Discrete(4)
SMALL: dict[str, Any] = {"hidden": (16,), "epsilon": 0.0, "target_every": 3, "lr": 1e-2}
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "double": {"double": True},
    "dueling": {"dueling": True},
    "noisy": {"noisy": True},
    "categorical": {"distribution": "categorical", "atoms": 11, "v_min": -5, "v_max": 5},
    "quantile": {"distribution": "quantile", "atoms": 7},
    "filtered": {"normalize_obs": True},
}


def policy(seed: int = 0, space: Any = SPACE, **settings: Any) -> QPolicy:
    dqn = algorithms.get("dqn")
    made = dqn.policy(dqn.configure(None, {**SMALL, **settings}), space, ACTIONS, seed)
    assert isinstance(made, QPolicy)
    return made


def rows(seed: int, n: int = 32, **columns: np.ndarray) -> Batch:
    rng = np.random.default_rng(seed)
    cols = {
        "obs": rng.uniform(-1, 1, (1, n, 3)).astype(np.float32),
        "next/obs": rng.uniform(-1, 1, (1, n, 3)).astype(np.float32),
        "action": rng.integers(4, size=(1, n)),
        "return": rng.normal(size=(1, n)).astype(np.float32),
        "discount": np.full((1, n), 0.9, np.float32),
        "weight": np.ones((1, n), np.float32),
    }
    return Batch({**cols, **columns})


def acted(made: QPolicy, explore: bool = False) -> np.ndarray:
    obs = np.random.default_rng(9).uniform(-1, 1, (64, 3)).astype(np.float32)
    return made.act({"obs": obs}, {}, explore=explore).action


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_learns_the_returns_of_fixed_rows_and_its_target_follows(kind: str) -> None:
    made = policy(**KINDS[kind])
    batch = rows(0, discount=np.zeros((1, 32), np.float32))
    first = made.learn(batch, Sgd())
    assert first.rows["error"].shape == (32,) and np.isfinite(first.rows["error"]).all()
    for _ in range(400):
        last = made.learn(batch, Sgd())
    assert last.metrics["loss"] < 0.5 * first.metrics["loss"]
    same = [(made._target_flat == made._flat).all().item()]
    for _ in range(3):
        made.learn(batch, Sgd())
        same.append(bool((made._target_flat == made._flat).all()))
    assert sum(same[1:]) == 1, "once in three updates"


@pytest.mark.parametrize("kind", KINDS)
def test_its_state_goes_on_bit_for_bit(kind: str) -> None:
    made, other = policy(0, **KINDS[kind]), policy(1, **KINDS[kind])
    for seed in range(4):
        made.learn(rows(seed), Sgd())
    other.set_state(made.get_state(full=True))
    for seed in range(4):
        one, two = (each.learn(rows(10 + seed), Sgd()) for each in (made, other))
        np.testing.assert_array_equal(one.rows["error"], two.rows["error"])
        np.testing.assert_array_equal(acted(made, explore=True), acted(other, explore=True))
    assert torch.equal(made._flat, other._flat)


def test_the_target_is_what_the_next_states_are_worth_by() -> None:
    """After two of three updates the target is still the first network: its values, not the newest, are learned."""
    made = policy()
    before = {name: part.clone() for name, part in made.model.state_dict().items()}
    for _ in range(2):
        made.learn(rows(0), Sgd())
    for name, part in made._target.state_dict().items():
        assert torch.equal(part, before[name])


def test_double_takes_the_networks_choice_at_the_targets_worth() -> None:
    """Online prefers action 1, the target action 0: it says 5 of that and 2 of the other."""
    from podium.algorithms.dqn import loss
    from podium.policies.q import Said
    from podium.policies.torch import Minibatch
    from podium.policies.values import Mean

    next_target, next_online = torch.tensor([[[5.0], [2.0]]]), torch.tensor([[[0.0], [1.0]]])
    said = Said(Mean(), torch.zeros(1, 2, 1), torch.tensor([0]), next_target, lambda: next_online, None)
    given = {"return": torch.tensor([1.0]), "discount": torch.tensor([0.5])}
    minibatch = Minibatch(given, lambda column: column, 1)
    config = algorithms.get("dqn").configure(None, {})
    errors = {on: loss(said, minibatch, config.replace(double=on).at(0))[1].item() for on in (False, True)}
    assert errors == {False: 1 + 0.5 * 5, True: 1 + 0.5 * 2}
    masked = Said(Mean(), said.outputs, said.action, next_target, lambda: next_online, torch.tensor([[False, True]]))
    assert loss(masked, minibatch, config.at(0))[1].item() == 1 + 0.5 * 2, "what is not legal is not the best"


def test_dueling_streams_add_up_to_the_state_and_what_actions_add_to_the_mean() -> None:
    network = QNetwork(SPACE, 4, 1, QSettings((8,), dueling=True))
    x = torch.randn(5, 3)
    q, state = network.q({"obs": x})[..., 0], network.streams[1](x)
    torch.testing.assert_close(q.mean(1, keepdim=True), state)


def test_noise_is_drawn_for_exploring_alone() -> None:
    made = policy(noisy=True, noise=5.0)
    assert not np.array_equal(acted(made, explore=True), acted(made, explore=True))
    assert np.array_equal(acted(made), acted(made))
    layer = NoisyLinear(3, 2, 0.5)
    layer.renew(torch.Generator().manual_seed(0))
    noisy = layer(torch.ones(1, 3))
    layer.still()
    assert not torch.equal(noisy, layer(torch.ones(1, 3)))
    torch.testing.assert_close(layer(torch.ones(1, 3)), layer.weight.sum(1)[None] + layer.bias)


def test_epsilon_follows_the_runs_progress() -> None:
    made = policy(epsilon="1->0@0.5")
    shares = []
    for progress in (0.0, 0.25, 0.5):
        made.progress = progress
        greedy = acted(made)
        shares.append(float(np.mean([(acted(made, explore=True) != greedy).mean() for _ in range(20)])))
    assert shares == pytest.approx([0.75, 0.375, 0.0], abs=0.05), "a quarter of random actions is the greedy one"


def test_weights_of_rows_count() -> None:
    """A row without weight teaches nothing."""
    one, two = policy(), policy()
    some = rows(0)
    weight = np.zeros((1, 32), np.float32)
    weight[0, :4] = 8.0
    one.learn(some.with_columns(weight=weight), Sgd())
    two.learn(some.slice(envs=slice(0, 4)), Sgd())
    np.testing.assert_allclose(one.get_weights().flat, two.get_weights().flat, rtol=1e-4, atol=1e-6)


def test_only_discrete_actions() -> None:
    dqn = algorithms.get("dqn")
    with pytest.raises(UsageError, match="needs Discrete actions, and this env has Box"):
        dqn.policy(dqn.configure(None, {}), SPACE, Box.of(-1, 1, (2,)), 0)


def test_a_network_of_the_users_own() -> None:
    def network(space: Box, outputs: int) -> nn.Module:
        return nn.Sequential(nn.Linear(space.shape[0], 8), nn.ReLU(), nn.Linear(8, outputs))

    made = policy(model=network, hidden=(128, 128), distribution="quantile", atoms=3)
    assert made.learn(rows(0), Sgd()).rows["error"].shape == (32,)
    assert made.parameters == 3 * 8 + 8 + 8 * 12 + 12
