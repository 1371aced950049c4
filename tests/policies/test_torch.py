"""The torch policy: one flat vector of parameters, exact state, gradient steps, the observation filter."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from podium.algorithms import ppo
from podium.core.batch import Batch
from podium.core.errors import TrainingError, UsageError
from podium.core.metrics import Timers
from podium.core.spaces import Box, Columns, Discrete, Space
from podium.envs.base import VectorEnv
from podium.envs.toys import Continuous, Cue, Match
from podium.evaluation.collector import Collector
from podium.policies.base import Policy, Sgd
from podium.policies.torch import TorchPolicy

ONCE = Sgd()


def make(env: VectorEnv, seed: int = 0, model: Any = None, **settings: Any) -> TorchPolicy:
    config = ppo.PPOConfig.build({**({"hidden": (16,)} if model is None else {"model": model}), "lr": 1e-3, **settings})
    return ppo.ALGORITHM.policy(config, env.observation_space, env.action_space, seed)  # type: ignore[return-value]


def play(env: VectorEnv, policy: TorchPolicy, steps: int = 12, fragments: int = 1) -> Batch:
    """The last of some fragments, finished by the policy."""
    collector = Collector(env, policy, Timers(), list(range(env.n)))
    batches = [policy.postprocess(collector.collect(steps)) for _ in range(fragments)]
    return batches[-1]


def flat(policy: TorchPolicy) -> np.ndarray:
    return policy.get_weights().flat


class Nothing:
    """A reduction that notes what it is given, and that nothing comes of."""

    size = 2

    def __init__(self) -> None:
        self.seen: list[np.ndarray] = []

    def __call__(self, values: np.ndarray) -> np.ndarray:
        self.seen.append(values.copy())
        return np.zeros_like(values)


def rows_of(env: VectorEnv) -> Columns:
    return {name: part for name, part in env.reset(range(env.n)).items() if name != "mask"}


# --- one vector ---


def test_the_parameters_are_views_of_one_vector() -> None:
    env = Match(8)
    policy = make(env)
    state, obs = policy.initial_state(8), rows_of(env)
    before = policy.act(obs, state, explore=False)
    weights = policy.get_weights()
    changed = type(weights)(weights.flat + np.float32(0.5), 7, 0.25)
    policy.set_weights(changed)
    assert all((parameter.detach() == 0.5).any() for parameter in policy.model.parameters() if not parameter.any())
    assert not np.array_equal(policy.act(obs, state, explore=False).extra["value"], before.extra["value"])
    assert (policy.version, policy.progress) == (7, 0.25)
    assert np.array_equal(flat(policy), changed.flat)
    total = sum(parameter.numel() for parameter in policy.model.parameters())
    assert weights.flat.shape == (total,) and weights.flat.dtype == np.float32


def test_learning_moves_what_acts() -> None:
    env = Match(8)
    policy = make(env)
    obs = rows_of(env)
    before = policy.act(obs, {}, explore=False).extra["value"]
    policy.learn(play(env, policy), ONCE)
    assert not np.array_equal(policy.act(obs, {}, explore=False).extra["value"], before)
    assert policy.version == 1


def test_weights_are_a_copy_that_pickles_and_makes_another_policy_act_alike() -> None:
    env = Continuous(8)
    mine, other = make(env, seed=1, normalize_obs=True), make(env, seed=2, normalize_obs=True)
    mine.learn(play(env, mine), ONCE)
    weights = pickle.loads(pickle.dumps(mine.get_weights()))
    obs = rows_of(env)
    before = mine.act(obs, {}, explore=False)
    assert not np.array_equal(other.act(obs, {}, explore=False).action, before.action)
    other.set_weights(weights)
    assert np.array_equal(other.act(obs, {}, explore=False).action, before.action)
    assert np.array_equal(other.values(obs, {}), before.extra["value"])
    kept = weights.flat.copy()
    mine.learn(play(env, mine), ONCE)
    assert np.array_equal(weights.flat, kept) and not np.array_equal(flat(mine), kept)


class Normed(nn.Module):
    """A user's module with buffers that acting needs, and a part that does not learn."""

    def __init__(self, space: Space, outputs: int) -> None:
        super().__init__()
        assert isinstance(space, Box)
        self.norm = nn.BatchNorm1d(space.shape[0])
        self.frozen = nn.Linear(space.shape[0], 8).requires_grad_(False)
        self.policy, self.value = nn.Linear(8, outputs), nn.Linear(8, 1)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        features = torch.tanh(self.frozen(self.norm(obs)))
        return self.policy(features), self.value(features)


def test_weights_carry_the_buffers_and_frozen_parts_of_a_users_module() -> None:
    env = Match(8)
    mine, other = make(env, seed=1, model=Normed), make(env, seed=2, model=Normed)
    mine.learn(play(env, mine), ONCE)
    other.set_weights(mine.get_weights())
    obs = rows_of(env)
    assert np.array_equal(other.act(obs, {}, explore=False).extra["value"], mine.values(obs, {}))


def test_policies_made_from_one_module_do_not_share_its_parameters() -> None:
    env = Match(8)
    module = Normed(env.observation_space, 4)
    mine, other = make(env, model=module), make(env, model=module)
    before = flat(other)
    mine.learn(play(env, mine), ONCE)
    assert np.array_equal(flat(other), before)
    obs = rows_of(env)
    mine.set_weights(other.get_weights())
    assert np.array_equal(mine.values(obs, {}), other.values(obs, {}))


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_a_users_module_takes_observations_of_either_precision(dtype: type) -> None:
    space = Box.of(-1, 1, (3,), dtype)
    config = ppo.PPOConfig.build({"model": Normed, "normalize_obs": True})
    policy = ppo.ALGORITHM.policy(config, space, Discrete(2), 0)
    assert policy.act({"obs": np.ones((4, 3), dtype)}, {}).action.shape == (4,)


def test_the_users_module_starts_from_the_deviation_that_the_settings_name() -> None:
    policy = make(Continuous(4), model=Normed, log_std=-1.5)
    assert dict(policy.model.named_parameters())["free"].tolist() == [-1.5]


def test_a_device_that_is_not_there_is_named() -> None:
    with pytest.raises(UsageError, match="--device cuda:77 is not available"):
        make(Match(2), device="cuda:77")


def test_it_keeps_to_the_protocol() -> None:
    policy: Policy = make(Match(2))
    assert policy.initial_state(2) == {}


# --- state ---

KINDS: list[dict[str, Any]] = [
    {"env": Match(4)},
    {"env": Continuous(4), "normalize_obs": True},
    {"env": Continuous(4), "squash": True},
    {"env": Cue(4), "memory": "lstm"},
    {"env": Cue(4), "memory": "gru", "autoreset": "next"},
]


@pytest.mark.parametrize("settings", KINDS, ids=["plain", "filter", "squash", "lstm", "gru"])
def test_a_policy_restored_in_full_goes_on_bit_for_bit(settings: dict[str, Any]) -> None:
    given = dict(settings)
    env = given.pop("env")
    given.pop("autoreset", None)
    first, second = make(env, seed=1, **given), make(env, seed=2, **given)
    sgd = Sgd(epochs=2, minibatch=16, seed=3, progress=0.5)
    first.learn(play(env, first), sgd)
    second.set_state(pickle.loads(pickle.dumps(first.get_state(full=True))))
    for _ in range(3):
        batches = [play(env, policy) for policy in (first, second)]
        for name, column in batches[0].cols.items():
            assert np.array_equal(column, batches[1][name]), name
        learned = [policy.learn(batch, sgd).metrics for policy, batch in zip((first, second), batches, strict=True)]
        assert learned[0] == learned[1]
        assert np.array_equal(flat(first), flat(second))
    assert (second.version, second.progress) == (4, 0.5)


def test_a_state_in_brief_acts_alike_but_learns_anew() -> None:
    env = Match(4)
    first, second = make(env, seed=1), make(env, seed=2)
    first.learn(play(env, first), ONCE)
    brief = first.get_state()
    assert brief.keys() == {"model", "filter", "version", "progress"}
    second.set_state(brief)
    assert np.array_equal(first.values(rows_of(env), {}), second.values(rows_of(env), {}))
    batch = play(env, first)
    for policy in (first, second):
        policy.learn(batch, ONCE)
    assert not np.array_equal(flat(first), flat(second))


def test_a_state_is_a_copy() -> None:
    env = Continuous(4)
    policy = make(env, normalize_obs=True)
    policy.learn(play(env, policy), ONCE)
    state = policy.get_state(full=True)
    kept = pickle.dumps(state)
    policy.learn(play(env, policy), ONCE)
    assert pickle.dumps(state) == kept


def test_a_state_of_another_shape_is_refused() -> None:
    small, large = make(Match(2, symbols=3)), make(Match(2, symbols=5))
    with pytest.raises(UsageError, match=r"the checkpoint's model has \[.*3.*\] for '.+', this one \[.*5.*\]"):
        large.set_state(small.get_state())


# --- gradient steps ---


@pytest.mark.parametrize("settings", [{}, {"memory": "lstm"}, {"entropy": 0.1, "shared": True}, {"model": Normed}])
def test_gradients_then_apply_is_one_full_step_of_learn(settings: dict[str, Any]) -> None:
    env = Cue(4, gap=2)
    one, other = make(env, **settings), make(env, **settings)
    batch = play(env, one)
    for _ in range(3):
        one.learn(batch, ONCE)
        gradient, report = other.gradients(batch, ONCE)
        other.apply(gradient, ONCE)
        assert report["gradient_norm"] == pytest.approx(float(np.linalg.norm(gradient)), rel=1e-5)
        np.testing.assert_allclose(flat(one), flat(other), rtol=0, atol=1e-6)
    assert one.version == other.version == 3


def test_asking_for_gradients_changes_neither_batch_nor_policy() -> None:
    env = Match(4)
    policy = make(env)
    batch = play(env, policy)
    before, columns = flat(policy), {name: column.copy() for name, column in batch.cols.items()}
    first, second = (policy.gradients(batch, ONCE)[0] for _ in range(2))
    assert np.array_equal(first, second) and np.array_equal(flat(policy), before)
    assert all(np.array_equal(batch[name], column) for name, column in columns.items())


def test_a_loaded_batch_learns_as_the_batch_does() -> None:
    env = Match(4)
    one, other = make(env), make(env)
    batch, sgd = play(env, one), Sgd(epochs=2, minibatch=16)
    one.learn(batch, sgd)
    other.learn(other.load(batch), sgd)
    assert np.array_equal(flat(one), flat(other))


@pytest.mark.parametrize("memory", ["none", "lstm"])
def test_gradients_are_over_every_valid_row_and_no_other(memory: str) -> None:
    """With next-step autoreset some rows are not real steps: what stands in them must not matter, and all others must."""
    env = Cue(2, gap=1, autoreset="next")
    policy = make(env, memory=memory, normalize_advantage=False)
    batch = play(env, policy, steps=10)
    assert batch.steps == 16
    gradient, report = policy.gradients(batch, ONCE)
    spoiled = {name: batch[name].copy() for name in ("advantage", "return", "logp")}
    for column in spoiled.values():
        column[~batch["valid"]] = 1e6
    assert np.array_equal(policy.gradients(batch.with_columns(**spoiled), ONCE)[0], gradient)
    advantage = batch["advantage"][batch["valid"]].mean()
    assert report["policy_loss"] == pytest.approx(-advantage, abs=1e-6)
    for t, n in np.argwhere(batch["valid"]):
        column = batch["return"].copy()
        column[t, n] += 10
        assert not np.array_equal(policy.gradients(batch.with_columns(**{"return": column}), ONCE)[0], gradient)


def test_a_batch_without_a_valid_row_teaches_nothing() -> None:
    env = Cue(2, gap=1, autoreset="next")
    policy = make(env)
    batch = play(env, policy, steps=1, fragments=4)
    assert batch.steps == 0
    before = flat(policy)
    learned = policy.learn(batch, Sgd(epochs=3))
    assert np.array_equal(flat(policy), before)
    assert learned.metrics["gradient_steps"] == 0 and policy.version == 1
    gradient, report = policy.gradients(batch, ONCE)
    assert not gradient.any() and report == {"loss": 0.0, "gradient_norm": 0.0}


def test_every_row_is_used_once_in_a_pass() -> None:
    env = Match(4)
    policy = make(env, lr=0.0)
    batch = play(env, policy, steps=16)
    metrics = policy.learn(batch, Sgd(epochs=3, minibatch=16)).metrics
    assert (metrics["gradient_steps"], metrics["epochs"]) == (12, 3)
    error = np.square(batch["value"] - batch["return"])
    assert metrics["value_loss"] == pytest.approx(0.5 * error.mean(), rel=1e-5)


def test_the_reduced_gradient_is_what_is_applied() -> None:
    env = Match(4)
    policy = make(env)
    batch = play(env, policy)
    expected, before = policy.gradients(batch, ONCE)[0], flat(policy)
    nothing = Nothing()
    policy.learn(batch, ONCE, reduce=nothing)
    width, gradient = nothing.seen  # first they agree on how many steps to take
    assert width.tolist() == [4.0, 1.0] and gradient.dtype == np.float32
    weighed = np.append(expected * np.float32(48), np.float32(48))
    assert np.array_equal(gradient, weighed) and np.array_equal(flat(policy), before)


def test_reducing_to_the_mean_of_halves_is_the_step_on_the_whole() -> None:
    """Two ranks that each hold half of the envs and average their gradients, played out one after the other."""
    env = Match(8)
    policy = make(env, normalize_advantage=False)
    batch = play(env, policy)
    halves = [batch.slice(envs=slice(0, 4)), batch.slice(envs=slice(4, 8))]
    gradients = [policy.gradients(half, ONCE)[0] for half in halves]
    np.testing.assert_allclose(np.mean(gradients, 0), policy.gradients(batch, ONCE)[0], rtol=0, atol=1e-6)


def test_a_kl_above_the_limit_skips_the_remaining_passes() -> None:
    env = Match(8)
    batch = play(env, make(env))
    free = make(env, lr=0.05).learn(batch, Sgd(epochs=10)).metrics
    stopped = make(env, lr=0.05).learn(batch, Sgd(epochs=10, stop_above=("kl", 0.01))).metrics
    assert free["epochs"] == 10 and free["kl"] > 0.01
    assert 1 < stopped["epochs"] < 10 and stopped["kl"] > 0.01
    assert make(env, lr=0.05).learn(batch, Sgd(epochs=10, stop_above=("kl", 1e9))).metrics == free


@pytest.mark.parametrize("limit", [0.01, 1e6, None])
def test_longer_gradients_are_scaled_to_the_limit(limit: float | None) -> None:
    env = Match(8)
    policy = make(env, max_grad_norm=limit)
    batch = play(env, policy)
    gradient, report = policy.gradients(batch, ONCE)
    norm = report["gradient_norm"]
    assert 0.01 < norm < 1e6
    policy.learn(batch, ONCE)
    applied = policy.get_state(full=True)["optimizer"]["mean"] / 0.1  # Adam's mean after one step is a tenth of it
    share = 1.0 if limit is None else min(1.0, limit / norm)
    np.testing.assert_allclose(applied, gradient * share, rtol=1e-3, atol=1e-8)


@pytest.mark.parametrize(
    ("column", "named"),
    [("advantage", "policy_loss"), ("return", "value_loss"), ("logp", "policy_loss"), ("obs", "entropy")],
)
def test_a_figure_that_is_not_finite_names_the_term_and_changes_nothing(column: str, named: str) -> None:
    env = Match(4)
    policy = make(env)
    batch = play(env, policy)
    spoiled = batch[column].copy()
    spoiled[3, 1] = np.nan
    before = pickle.dumps(policy.get_state(full=True))
    with pytest.raises(TrainingError, match=rf"update 1: not finite: .*{named}.*; try a lower --lr") as caught:
        policy.learn(batch.with_columns(**{column: spoiled}), ONCE)
    assert column != "return" or "policy_loss" not in str(caught.value)
    assert pickle.dumps(policy.get_state(full=True)) == before


# --- acting and learning see the same ---


@pytest.mark.parametrize("autoreset", ["same", "next"])
@pytest.mark.parametrize("settings", [{}, {"memory": "lstm"}, {"memory": "gru", "normalize_obs": True}], ids=str)
@pytest.mark.parametrize("minibatch", [None, 16])
def test_learning_begins_with_the_probabilities_that_acting_had(
    autoreset: Any, settings: dict[str, Any], minibatch: int | None
) -> None:
    env = Cue(4, gap=3, autoreset=autoreset)
    policy = make(env, lr=0.0, **settings)
    batch = play(env, policy, steps=14, fragments=3)
    metrics = policy.learn(batch, Sgd(minibatch=minibatch)).metrics
    assert abs(metrics["kl"]) < 1e-9 and metrics["clipped"] == 0
    shifted = batch.with_columns(logp=batch["logp"] + np.float32(0.1))
    assert policy.learn(shifted, Sgd(minibatch=minibatch)).metrics["kl"] > 1e-3


def test_the_filter_follows_only_after_the_batch_it_acted_on_was_learned() -> None:
    env = Continuous(8)
    policy, hasty = (make(env, normalize_obs=True, log_std=-3.0) for _ in range(2))
    hasty.observe(hasty.observed(play(env, hasty)))
    batch = play(env, policy)
    assert hasty.learn(batch, ONCE).metrics["kl"] > 1e-6
    for _ in range(3):
        assert policy.learn(batch, ONCE).metrics["kl"] == pytest.approx(0.0, abs=1e-9)
        batch = play(env, policy)


def test_the_filter_normalises_valid_rows_and_limits_outliers() -> None:
    env = Continuous(8)
    policy = make(env, normalize_obs=True)
    batch = play(env, policy, steps=32)
    policy.learn(batch, ONCE)
    seen = batch["obs"].astype(np.float64)
    moments = policy.get_state()["filter"]["obs"]
    assert moments["count"] == seen.size and moments["mean"] == pytest.approx(seen.mean())
    rows = torch.tensor([[seen.mean()], [seen.mean() + seen.std()], [1e6]], dtype=torch.float32)
    assert policy._filtered("obs", rows)[:, 0].tolist() == pytest.approx([0.0, 1.0, 10.0], abs=1e-4)


def test_the_filter_takes_an_observation_that_is_one_number() -> None:
    config = ppo.PPOConfig.build({"normalize_obs": True})
    policy = ppo.ALGORITHM.policy(config, Box.of(-1, 1, ()), Discrete(2), 0)
    assert policy.act({"obs": np.zeros(3, np.float32)}, {}).action.shape == (3,)


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_acting_step_by_step_is_one_pass_over_the_fragment(kind: str) -> None:
    """The value column, made one call at a time with the collector's resets, is what a pass over all rows finds."""
    env = Cue(3, gap=1)
    policy = make(env, memory=kind)
    batch = play(env, policy, steps=10, fragments=2)
    assert batch["start"][1:].any()
    first = {name: torch.from_numpy(part) for name, part in batch.first.items()}
    obs, start = {"obs": torch.from_numpy(batch["obs"])}, torch.from_numpy(batch["start"])
    with torch.no_grad():
        value = policy.model(obs, first, start)[1].numpy()
        forgetful = policy.model(obs, first, torch.zeros_like(start))[1].numpy()
    np.testing.assert_allclose(value, batch["value"], atol=1e-6)
    assert not np.allclose(forgetful, batch["value"], atol=1e-5)
