"""The policy that searches perturb: acting by a vector in every row is acting by each alone, and actions fit their space."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from podium.core import spaces
from podium.core.batch import Batch
from podium.core.errors import UsageError
from podium.core.spaces import Box, Discrete, MultiBinary, MultiDiscrete
from podium.policies.mlp import MlpPolicy
from podium.serving.policy import Served

OBS = spaces.Dict(
    {"a": Box.of(-1, 1, (3,)), "b": Discrete(4), "c": MultiDiscrete((2, 3)), "d": Box.of(0, 255, (2, 2), np.uint8)}
)
ACTIONS = [Discrete(5), MultiDiscrete((2, 3)), MultiBinary(4), Box.of(-2, 2, (2, 2))]


def make(action: Any = Discrete(5), obs: Any = OBS, seed: int = 0, **settings: Any) -> MlpPolicy:
    plain = {"hidden": (8, 7), "activation": "tanh", "normalize_obs": False, "squash": False}
    config = SimpleNamespace(**{**plain, "sample_actions": False, "action_noise": 0.0, **settings})
    return MlpPolicy(config, obs, action, seed)


def observations(n: int, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {path: leaf.sample(rng, n) for path, leaf in spaces.leaves(OBS, "obs").items()}


def with_flat(policy: MlpPolicy, flat: np.ndarray) -> MlpPolicy:
    weights = policy.get_weights()
    policy.set_weights(type(weights)(flat.astype(np.float32), 0))
    return policy


@pytest.mark.parametrize("action", ACTIONS, ids=str)
@pytest.mark.parametrize("hidden", [None, (8, 7)])
@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_acting_by_rows_is_acting_by_each_alone(action: Any, hidden: Any, activation: str) -> None:
    policy = make(action, hidden=hidden, activation=activation)
    rng = np.random.default_rng(1)
    vectors = rng.normal(size=(6, policy.parameters)).astype(np.float32)
    obs = observations(6)
    together = policy.each(vectors, rng)(obs, None)
    assert together.shape == (6, *action.shape)
    assert isinstance(action, Box) or not action.outside(together).any()
    for row in range(6):
        alone = with_flat(policy, vectors[row]).act(
            {name: col[row : row + 1] for name, col in obs.items()}, {}, None, False
        )
        np.testing.assert_allclose(alone.action[0], together[row], rtol=1e-4, atol=1e-5)


def test_the_network_is_what_its_numbers_say() -> None:
    """Two inputs, two hidden units, one output: tanh((1, 2) W + b) w + c by hand."""
    policy = make(Box.of(-9, 9, (1,)), Box.of(-9, 9, (2,)), hidden=(2,))
    assert policy.parameters == 2 * 2 + 2 + 2 + 1
    with_flat(policy, np.array([1, -1, 0.5, 0.25, 0.1, 0.2, 3, -2, 0.5]))
    hidden = np.tanh([1 + 1 + 0.1, -1 + 0.5 + 0.2])
    found = policy.act({"obs": np.array([[1, 2]], np.float32)}, {}).action
    assert found[0, 0] == pytest.approx(hidden @ [3, -2] + 0.5, rel=1e-5)


def test_inputs_stand_side_by_side() -> None:
    policy = make()
    x = np.empty((1, 16), np.float32)
    obs = {"obs/a": np.array([[0.5, -0.5, 0]]), "obs/b": np.array([2]), "obs/c": np.array([[1, 0]])}
    policy._inputs.write({**obs, "obs/d": np.array([[[0, 255], [51, 102]]], np.uint8)}, x)
    assert x[0] == pytest.approx([0.5, -0.5, 0, 0, 0, 1, 0, 0, 1, 1, 0, 0, 0, 1, 0.2, 0.4])


def test_the_seed_draws_the_hidden_layers_and_the_last_one_is_0() -> None:
    flat = make(seed=1).get_weights().flat
    assert not np.array_equal(flat, make(seed=2).get_weights().flat)
    assert np.array_equal(flat, make(seed=1).get_weights().flat)
    assert (flat[-(7 + 1) * 5 :] == 0).all() and abs(flat[: 16 * 8].std() - 0.25) < 0.05
    assert (make(hidden=None).get_weights().flat == 0).all()


def test_masked_choices_are_never_taken() -> None:
    policy = make(MultiDiscrete((2, 3)))
    vectors = np.random.default_rng(0).normal(size=(50, policy.parameters)).astype(np.float32)
    mask = np.tile([True, False, False, True, False], (50, 1))
    for settings in ({}, {"sample_actions": True}):
        act = make(MultiDiscrete((2, 3)), **settings).each(vectors, np.random.default_rng(0))
        assert act(observations(50), mask).tolist() == [[0, 1]] * 50


def test_choices_are_drawn_with_their_probabilities() -> None:
    """A bias of log 3 over 0 makes three of four the first; without the setting all are."""
    obs = {"obs": np.zeros((4000, 1), np.float32)}
    for draws, share in ((True, 0.75), (False, 1.0)):
        policy = make(Discrete(2), Box.of(0, 1, (1,)), hidden=None, sample_actions=draws)
        vectors = np.tile(np.array([0, 0, np.log(3), 0], np.float32), (4000, 1))
        taken = policy.each(vectors, np.random.default_rng(0))(obs, None)
        assert (taken == 0).mean() == pytest.approx(share, abs=0.03)
    bits = make(MultiBinary(1), Box.of(0, 1, (1,)), hidden=None, sample_actions=True)
    taken = bits.each(np.tile(np.array([0, np.log(3)], np.float32), (4000, 1)), np.random.default_rng(0))(obs, None)
    assert taken.mean() == pytest.approx(0.75, abs=0.03)


def test_numbers_may_be_squashed_and_noisy() -> None:
    obs = {"obs": np.zeros((4000, 1), np.float32)}
    box, seen = Box.of(-1, 3, (1,)), Box.of(0, 1, (1,))
    vectors = np.tile(np.array([0, 100], np.float32), (4000, 1))
    squashed = make(box, seen, hidden=None, squash=True).each(vectors, np.random.default_rng(0))(obs, None)
    assert (squashed == 3).all()
    noisy = make(box, seen, hidden=None, action_noise=0.5).each(vectors, np.random.default_rng(0))(obs, None)
    assert noisy.mean() == pytest.approx(100, abs=0.05) and noisy.std() == pytest.approx(0.5, abs=0.03)


def test_filtered_observations_have_mean_0_and_deviation_1() -> None:
    policy = make(Box.of(-9, 9, (1,)), Box.of(-99, 99, (1,)), hidden=None, normalize_obs=True)
    rows = np.array([4, 8, 6, 777], np.float32).reshape(4, 1, 1)
    valid = np.array([True, True, True, False]).reshape(4, 1)
    parts = [policy.observed(Batch({"obs": rows[at], "valid": valid[at]})) for at in (slice(0, 2), slice(2, 4))]
    policy.observe(policy.merged(parts))
    deviation = np.sqrt(8 / 3)
    with_flat(policy, np.array([1, 0, *policy.get_weights().flat[2:]]))
    for value, seen in ((6, 0), (8, 2 / deviation), (999, 10)):
        acted = policy.act({"obs": np.array([[value]], np.float32)}, {}, None, False)
        assert acted.action[0, 0] == pytest.approx(seen, abs=1e-4)
    other = make(Box.of(-9, 9, (1,)), Box.of(-99, 99, (1,)), hidden=None, normalize_obs=True)
    other.set_weights(policy.get_weights())
    assert other.act({"obs": np.full((1, 1), 8, np.float32)}, {}, None, False).action[0, 0] == pytest.approx(
        2 / deviation
    )
    third = make(Box.of(-9, 9, (1,)), Box.of(-99, 99, (1,)), hidden=None, normalize_obs=True)
    third.set_state(policy.get_state(full=True))
    assert np.array_equal(third.get_weights().flat, policy.get_weights().flat)


@pytest.mark.parametrize(
    ("action", "settings", "part"),
    [
        (Discrete(2), {"squash": True}, "--squash true would not be read"),
        (Discrete(2), {"action_noise": 0.1}, "--action-noise 0.1 would not be read"),
        (Box.of(-1, 1, (1,)), {"sample_actions": True}, "--sample-actions true would not be read"),
        (Box.of(-np.inf, 1, (1,)), {"squash": True}, "--squash true needs a bounded Box"),
    ],
)
def test_what_would_not_be_read_is_refused(action: Any, settings: dict[str, Any], part: str) -> None:
    with pytest.raises(UsageError, match=part):
        make(action, **settings)


def test_a_server_of_it_answers_about_actions_alone() -> None:
    served = Served(make(Discrete(5), Box.of(-1, 1, (3,))), Box.of(-1, 1, (3,)), Discrete(5))
    assert set(served.functions()) == {"best", "act"}
    assert served.functions()["best"]({"obs": np.zeros((2, 3), np.float32)})["action"].tolist() == [0, 0]


def test_another_size_is_refused() -> None:
    with pytest.raises(UsageError, match="the checkpoint has .* parameters, this policy"):
        make(hidden=None).set_state(make().get_state())
