"""The numpy policy: hand-written gradients, exact state, and training under the same optimizer without torch."""

from __future__ import annotations

import pickle
import subprocess
import sys

import numpy as np
import pytest

from podium.core import returns
from podium.core.batch import Batch
from podium.core.errors import TrainingError, UsageError
from podium.core.metrics import Timers
from podium.core.spaces import Box, Dict, Discrete
from podium.envs.base import VectorEnv
from podium.envs.toys import Constant, Cue, Masked, Match
from podium.evaluation.collector import Collector
from podium.policies.base import Policy, Sgd
from podium.policies.numpy import Net, NumpyConfig, NumpyPolicy, log_softmax

ONCE = Sgd()


def make(env: VectorEnv, seed: int = 0, **settings: object) -> NumpyPolicy:
    return NumpyPolicy(NumpyConfig.build({"hidden": 8, **settings}), env.observation_space, env.action_space, seed)


def play(env: VectorEnv, policy: NumpyPolicy, steps: int = 10) -> Batch:
    return policy.postprocess(Collector(env, policy, Timers(), list(range(env.n))).collect(steps))


def flat(policy: NumpyPolicy) -> np.ndarray:
    return policy.get_weights().flat


class Nothing:
    """A reduction that notes what it is given, and that nothing comes of."""

    size = 2

    def __init__(self) -> None:
        self.seen: list[np.ndarray] = []

    def __call__(self, values: np.ndarray) -> np.ndarray:
        self.seen.append(values.copy())
        return np.zeros_like(values)


TRAIN = """
import sys
from functools import partial
from podium.engine.local import LocalEngine
from podium.engine.pool import Pool
from podium.envs.make import EnvSpec, make, spaces_of
from podium.evaluation.evaluator import Evaluator
from podium.optimizers.sync_samples import SyncSamples
from podium.policies.base import Sgd
from podium.policies.numpy import NumpyConfig, NumpyPolicy

env, workers, hidden = EnvSpec("toy:match"), int(sys.argv[1]), int(sys.argv[2])
engine, config = LocalEngine(strict=True), NumpyConfig.build({"hidden": hidden, "lr": 0.02})

def spawn(index, make_env):
    return engine.spawn(Evaluator, partial(NumpyPolicy, config, *spaces_of(env), index), make_env, seed=1, index=index)

make_env = partial(make, env, 8)
learner = spawn(0, None if workers else make_env)
player = (lambda index, replaced: spawn(index, make_env)) if workers else (lambda index, replaced: learner)
samplers = Pool(engine, player, workers or 1)
plan = lambda progress, update: Sgd(progress, update, epochs=2, minibatch=128)
optimizer = SyncSamples(engine, learner, samplers, 32, plan)
returns = [[r for r, _ in optimizer.step(0.0).episodes] for _ in range(25)]
print(sum(returns[0]) / len(returns[0]), sum(sum(returns, [])[-16:]) / 16, "torch" in sys.modules)
optimizer.close()
"""


@pytest.mark.parametrize(("workers", "hidden"), [(0, 16), (2, 0)], ids=["mlp", "linear, two workers"])
def test_it_trains_under_sync_samples_in_a_process_without_torch(workers: int, hidden: int) -> None:
    """Guessing at toy:match gets 8 of 32."""
    command = [sys.executable, "-c", TRAIN, str(workers), str(hidden)]
    printed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    first, last, torch_loaded = printed.split()
    assert float(first) < 14 and float(last) > 22
    assert torch_loaded == "False"


def test_it_keeps_to_the_protocol() -> None:
    policy: Policy = make(Match(2))
    assert policy.initial_state(2) == {}


# --- gradients ---


@pytest.mark.parametrize("hidden", [0, 5])
@pytest.mark.parametrize("masked", [False, True])
def test_the_gradient_is_that_of_finite_differences(hidden: int, masked: bool) -> None:
    """The loss written anew in float64, differentiated numerically in every parameter."""
    env = Masked(3, actions=4) if masked else Match(3, symbols=4)
    policy = make(env, hidden=hidden, entropy=0.3, value_coef=0.7)
    policy._flat += np.random.default_rng(0).normal(0, 0.3, policy._flat.shape).astype(np.float32)
    batch = play(env, policy, steps=6)
    x, action, n = batch["obs"].reshape(18, -1).astype(float), batch["action"].reshape(18), np.arange(18)
    advantage, target = batch["advantage"].reshape(18).astype(float), batch["return"].reshape(18)
    advantage = (advantage - advantage.mean()) / advantage.std()
    mask = batch["mask"].reshape(18, 4) if masked else None
    actor, critic = Net(x.shape[1], hidden, 4), Net(x.shape[1], hidden, 1)

    def loss(parameters: np.ndarray) -> float:
        logp = log_softmax(actor.forward(parameters[: actor.size], x)[0], mask)
        value = critic.forward(parameters[actor.size :], x)[0][:, 0]
        entropy = -(np.exp(logp) * logp).sum(1)
        return float((-logp[n, action] * advantage + 0.7 * 0.5 * (value - target) ** 2 - 0.3 * entropy).mean())

    start, step = flat(policy).astype(float), 1e-5
    differences = [(loss(start + e) - loss(start - e)) / (2 * step) for e in step * np.eye(len(start))]
    np.testing.assert_allclose(policy.gradients(batch, ONCE)[0], differences, rtol=1e-3, atol=2e-5)
    assert np.abs(differences).max() > 0.05


def test_adam_takes_the_steps_that_its_paper_has() -> None:
    """Two steps worked out apart: m, v without bias are (g1, g1^2), then (0.9 g1 + g2) / 1.9 and (0.999 v + ...)."""
    policy = make(Match(2), lr=0.1, max_grad_norm=None)
    before = flat(policy).astype(float)
    rng = np.random.default_rng(0)
    g1, g2 = rng.normal(size=before.shape), rng.normal(size=before.shape)
    policy.apply(g1.astype(np.float32), ONCE)
    after_one = before - 0.1 * g1 / (np.abs(g1) + 1e-5)
    np.testing.assert_allclose(flat(policy), after_one, atol=1e-5)
    policy.apply(g2.astype(np.float32), ONCE)
    mean, square = (0.9 * g1 + g2) / 1.9, (0.999 * g1**2 + g2**2) / 1.999
    np.testing.assert_allclose(flat(policy), after_one - 0.1 * mean / (np.sqrt(square) + 1e-5), atol=1e-4)


def test_longer_gradients_are_scaled_to_the_limit() -> None:
    """Adam forgets the scale of one gradient, but not how two compare: the long one counts as one of length 1/2."""
    policies = [make(Match(2), lr=0.1) for _ in range(2)]
    long, short = (np.zeros_like(flat(policies[0])) for _ in range(2))
    long[0], short[0] = 100.0, 0.5
    for policy, gradient in zip(policies, (long, short), strict=True):
        policy.apply(gradient, ONCE)
        policy.apply(short / 10, ONCE)
    np.testing.assert_allclose(flat(policies[0]), flat(policies[1]), atol=1e-6)


def test_gradients_then_apply_is_one_full_step_of_learn() -> None:
    env = Match(4)
    one, other = make(env), make(env)
    batch = play(env, one)
    for _ in range(3):
        one.learn(batch, ONCE)
        other.apply(other.gradients(batch, ONCE)[0], ONCE)
        assert np.array_equal(flat(one), flat(other))
    assert one.version == other.version == 3


def test_the_reduced_gradient_is_what_is_applied() -> None:
    env = Match(4)
    policy = make(env)
    batch, before = play(env, policy), flat(policy)
    nothing = Nothing()
    policy.learn(batch, ONCE, reduce=nothing)
    weighed = make(env).gradients(batch, ONCE)[0] * np.float32(40)
    rows, gradient = nothing.seen  # first they agree on how many steps to take
    assert rows.tolist() == [40.0, 1.0]
    assert np.array_equal(gradient, np.append(weighed, np.float32(40)))
    assert np.array_equal(flat(policy), before)


def test_passes_stop_above_a_limit() -> None:
    env = Match(4)
    batch = play(env, make(env))
    epochs = [
        make(env).learn(batch, Sgd(epochs=4, stop_above=("entropy", limit))).metrics["epochs"] for limit in (0, 9)
    ]
    assert epochs == [1, 4]


@pytest.mark.parametrize(("column", "named"), [("advantage", "policy_loss"), ("return", "value_loss")])
def test_a_figure_that_is_not_finite_names_the_term_and_changes_nothing(column: str, named: str) -> None:
    env = Match(4)
    policy = make(env)
    batch, before = play(env, policy), flat(policy)
    spoiled = batch[column].copy()
    spoiled[0, 0] = np.nan
    with pytest.raises(TrainingError, match=f"update 1: not finite: {named}"):
        policy.learn(batch.with_columns(**{column: spoiled}), ONCE)
    assert np.array_equal(flat(policy), before)


# --- acting, trajectories, state ---


def test_masked_choices_are_never_taken_and_the_others_by_their_probability() -> None:
    env = Masked(1, actions=3)
    policy = make(env, hidden=0)
    policy._actor.views(policy._actor_flat)["out/b"][:] = np.log([0.5, 0.3, 0.2])
    policy._actor.views(policy._actor_flat)["out/w"][:] = 0
    mask = np.tile([True, False, True], (20_000, 1))
    acted = policy.act({"obs": np.zeros((20_000, 3), np.float32)}, {}, mask)
    assert not (acted.action == 1).any()
    assert (acted.action == 0).mean() == pytest.approx(5 / 7, abs=0.02)
    assert np.exp(acted.extra["logp"][acted.action == 2][0]) == pytest.approx(2 / 7, abs=1e-6)
    assert (policy.act({"obs": np.zeros((5, 3), np.float32)}, {}, ~mask[:5], explore=False).action == 1).all()


def test_truncation_bootstraps() -> None:
    """Reward 1 for ever, cut after 5 steps: with a value of 1 / (1 - 0.9) everywhere no step has an advantage."""
    env = Constant(2, length=5)
    policy = make(env, hidden=0, gamma=0.9)
    policy._critic.views(policy._critic_flat)["out/w"][:] = 10.0
    batch = play(env, policy, steps=12)
    np.testing.assert_allclose(batch["advantage"], 0, atol=1e-5)
    done = batch["terminated"] | batch["truncated"]
    as_ends = returns.gae(batch["reward"], batch["value"], batch["value"], done, done, 0.9, 0.95)
    assert as_ends.min() < -5


def test_a_policy_restored_in_full_goes_on_bit_for_bit() -> None:
    env = Match(4)
    first, second = make(env, seed=1), make(env, seed=2)
    first.learn(play(env, first), ONCE)
    state = first.get_state(full=True)
    kept = pickle.dumps(state)
    second.set_state(pickle.loads(kept))
    for _ in range(2):
        batches = [play(env, policy) for policy in (first, second)]
        assert all(np.array_equal(batches[0][name], batches[1][name]) for name in batches[0].cols)
        learned = [policy.learn(batch, ONCE).metrics for policy, batch in zip((first, second), batches, strict=True)]
        assert learned[0] == learned[1] and np.array_equal(flat(first), flat(second))
    assert pickle.dumps(state) == kept and second.version == 3


def test_weights_make_another_policy_act_alike() -> None:
    env = Match(4)
    first, second = make(env, seed=1), make(env, seed=2)
    second.set_weights(pickle.loads(pickle.dumps(first.get_weights())))
    obs = env.reset([0, 1, 2, 3])
    assert np.array_equal(first.act(obs, {}, explore=False).action, second.act(obs, {}, explore=False).action)
    assert np.array_equal(first.values(obs, {}), second.values(obs, {}))


def test_a_batch_without_a_valid_row_teaches_nothing() -> None:
    env = Cue(2, gap=0, autoreset="next")
    policy = make(env)
    batch = play(env, policy, steps=3).slice(times=slice(2, 3))
    before = flat(policy)
    assert batch.steps == 0 and policy.learn(batch, Sgd(epochs=2)).metrics["gradient_steps"] == 0
    assert np.array_equal(flat(policy), before)


def test_several_boxes_stand_side_by_side() -> None:
    space = Dict({"a": Box.of(-1, 1, (2, 2)), "b": Box.of(-1, 1, (), np.float64)})
    policy = NumpyPolicy(NumpyConfig(), space, Discrete(2))
    rows = policy._inputs({"obs/a": np.arange(8.0).reshape(2, 2, 2), "obs/b": np.array([8.0, 9.0])})
    assert rows.tolist() == [[0, 1, 2, 3, 8], [4, 5, 6, 7, 9]] and rows.dtype == np.float32


def test_spaces_that_it_cannot_play_are_named() -> None:
    box = Box.of(-1, 1, (2,))
    with pytest.raises(UsageError, match="chooses among Discrete actions, this env has Box"):
        NumpyPolicy(NumpyConfig(), box, box)
    with pytest.raises(UsageError, match=r"sees Box observations, this env has Discrete\(3\) at obs/a"):
        NumpyPolicy(NumpyConfig(), Dict({"a": Discrete(3)}), Discrete(2))
    state = NumpyPolicy(NumpyConfig(), box, Discrete(2)).get_state()
    with pytest.raises(UsageError, match="parameters, this policy"):
        NumpyPolicy(NumpyConfig(), box, Discrete(3)).set_state(state)
