"""How trajectories are finished: truncation bootstraps, termination does not, and both autoreset manners agree."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from counting import Counting, length_of, reward_of, truncated_at_its_end

from podium.algorithms import impala, pg, ppo
from podium.algorithms.common.on_policy import advantages, shaped_rewards, vtrace_targets
from podium.core import returns
from podium.core.batch import Batch, Finals
from podium.core.metrics import Timers
from podium.core.spaces import Columns
from podium.envs.base import VectorEnv
from podium.envs.toys import Autoreset, Constant
from podium.evaluation.collector import Collector
from podium.policies.base import Sgd, Weights
from podium.policies.torch import TorchPolicy

AUTORESETS: tuple[Autoreset, ...] = ("same", "next")


def make(env: VectorEnv, **settings: Any) -> TorchPolicy:
    config = ppo.PPOConfig.build({"hidden": (8,), **settings})
    return ppo.ALGORITHM.policy(config, env.observation_space, env.action_space, 0)  # type: ignore[return-value]


def now(**settings: Any) -> SimpleNamespace:
    return ppo.PPOConfig.build(settings).at(0.0)


def collect(env: VectorEnv, policy: TorchPolicy, steps: int) -> Batch:
    return Collector(env, policy, Timers(), list(range(env.n))).collect(steps)


def with_value(policy: TorchPolicy, value: float) -> TorchPolicy:
    """A policy that finds this value everywhere."""
    policy.set_weights(Weights(np.zeros_like(policy.get_weights().flat), 0))
    dict(policy.model.named_parameters())["value_head.bias"].data.fill_(value)
    return policy


# --- truncation ---


@pytest.mark.parametrize("autoreset", AUTORESETS)
def test_a_time_limit_bootstraps(autoreset: Any) -> None:
    """Reward 1 for ever and gamma 0.9: where every state is worth 10, no step is better than expected, cut or not."""
    env = Constant(3, length=4, autoreset=autoreset)
    policy = with_value(make(env), 10.0)
    batch = collect(env, policy, 14)
    finished = advantages(policy, batch, now(gamma=0.9, gae_lambda=0.95))
    valid = batch["valid"]
    assert batch["truncated"].sum() == 9
    np.testing.assert_allclose(finished["advantage"][valid], 0.0, atol=1e-5)
    np.testing.assert_allclose(finished["return"][valid], 10.0, atol=1e-5)


def test_taking_a_time_limit_for_an_end_gives_another_number() -> None:
    """By hand: the last step's advantage would be 1 - 10, the one before it 0.9 * 0.95 times that."""
    env = Constant(3, length=4)
    policy = with_value(make(env), 10.0)
    batch = collect(env, policy, 4)
    wrong = batch.with_columns(terminated=batch["truncated"], truncated=batch["terminated"])
    settings = now(gamma=0.9, gae_lambda=0.95)
    assert advantages(policy, wrong, settings)["advantage"][-2:, 0] == pytest.approx([0.9 * 0.95 * -9, -9], rel=1e-5)
    assert advantages(policy, batch, settings)["advantage"][-2:, 0] == pytest.approx([0, 0], abs=1e-5)


# --- both manners of autoreset ---


def reference(policy: TorchPolicy, env: int, episode: int, values: np.ndarray, gamma: float, lam: float) -> list[float]:
    """GAE of one whole episode, from its definition; `values` has the final state's as well."""
    length = length_of(env, episode)
    after = values[1:].copy()
    after[-1] *= truncated_at_its_end(env, episode)
    deltas = [reward_of(env, episode, t) + gamma * after[t] - values[t] for t in range(length)]
    return [sum((gamma * lam) ** k * deltas[t + k] for k in range(length - t)) for t in range(length)]


def episode_values(policy: TorchPolicy, env: int, episode: int) -> np.ndarray:
    """What the policy finds at each state of an episode, the final one included, one call after the other."""
    state, values = policy.initial_state(1), []
    for t in range(length_of(env, episode) + 1):
        acted = policy.act({"obs": np.array([[env, episode, t]], np.float32)}, state)
        values.append(float(acted.extra["value"][0]))
        state = acted.state
    return np.array(values)


@pytest.mark.parametrize("memory", ["none", "lstm"])
def test_advantages_are_those_of_the_definition_in_both_manners(memory: str) -> None:
    found: dict[str, list[np.ndarray]] = {}
    for autoreset in AUTORESETS:
        env = Counting(3, autoreset)
        policy = make(env, memory=memory)
        finished = advantages(policy, collect(env, policy, 20), now(gamma=0.9, gae_lambda=0.8))
        found[autoreset] = [finished["advantage"][finished["valid"][:, n], n] for n in range(3)]
    for n in range(3):
        whole = 4
        expected = [
            figure
            for episode in range(whole)
            for figure in reference(policy, n, episode, episode_values(policy, n, episode), 0.9, 0.8)
        ]
        for autoreset in AUTORESETS:
            np.testing.assert_allclose(found[autoreset][n][: len(expected)], expected, atol=1e-5, err_msg=autoreset)


def test_bootstrapping_a_cut_from_the_next_episodes_first_state_would_be_wrong() -> None:
    env = Counting(3, "same")
    policy = make(env)
    batch = collect(env, policy, 20)
    right = advantages(policy, batch, now())["advantage"]
    wrong = advantages(policy, Batch(batch.cols, batch.first, batch.last), now())["advantage"]
    cut, ended = batch["truncated"], batch["terminated"]
    assert (np.abs(right - wrong)[cut] > 1e-3).all()
    np.testing.assert_array_equal(right[ended], wrong[ended])


@pytest.mark.parametrize("autoreset", AUTORESETS)
def test_cutting_the_stream_into_other_fragments_changes_no_finished_one_step_advantage(autoreset: Any) -> None:
    """With lambda 0 an advantage looks one step ahead: over the fragment's end that is the bootstrap observation."""
    whole_env, env = Counting(3, autoreset), Counting(3, autoreset)
    policy = make(env)
    settings = now(gae_lambda=0.0)
    whole = advantages(policy, collect(whole_env, policy, 12), settings)
    collector = Collector(env, policy, Timers(), [0, 1, 2])
    parts = [advantages(policy, collector.collect(3), settings) for _ in range(4)]
    joined = np.concatenate([part["advantage"] for part in parts])
    np.testing.assert_allclose(joined[whole["valid"]], whole["advantage"][whole["valid"]], atol=1e-5)


# --- V-trace ---


class Lookup:
    """A policy that finds the values that stand in the observations."""

    def values(self, obs: Columns, state: Columns) -> np.ndarray:
        return obs["obs"][:, 0]


def behind(rho_clip: float, c_clip: float) -> dict[str, list[float]]:
    """The targets of one env's four steps with gamma 0.5: step 1 terminates, step 2 is truncated where the value is 6, the
    fragment ends where it is 10. The policy that learns finds the values 1, 2, 3, 4 and probabilities of 2, 1/2, 4, 1/2
    times those of then; the values of then must count for nothing."""

    def column(values: list[float], kind: type = np.float32) -> np.ndarray:
        return np.array(values, kind)[:, None]

    batch = Batch(
        {
            "reward": column([0.5, 2.0, 2.0, 4.0]),
            "value": column([70.0, 80.0, 90.0, 99.0]),
            "logp": column([-1.0, -2.0, -3.0, -4.0]),
            "terminated": column([0, 1, 0, 0], bool),
            "truncated": column([0, 0, 1, 0], bool),
        },
        last={"obs": np.array([[10.0]], np.float32)},
        finals=Finals(np.array([1, 2]), np.array([0, 0]), {"obs": np.array([[100.0], [6.0]], np.float32)}),
    )
    settings = impala.ImpalaConfig.build({"gamma": 0.5, "reward_scale": 2.0, "rho_clip": rho_clip, "c_clip": c_clip})
    logp = batch["logp"] + np.log(column([2.0, 0.5, 4.0, 0.5]))
    values = column([1.0, 2.0, 3.0, 4.0])
    found = vtrace_targets(Lookup(), batch, settings.at(0.0), logp, values)  # type: ignore[arg-type]
    assert all(part.dtype == np.float32 and part.shape == (4, 1) for part in found.values())
    return {name: part[:, 0].tolist() for name, part in found.items()}


def test_vtrace_targets_by_hand() -> None:
    """One-step errors: 1 + 0.5 * 2 - 1 = 1; 4 - 2 = 2; 4 + 0.5 * 6 - 3 = 4; 8 + 0.5 * 10 - 4 = 9. Weighed by rho = 1, 0.5,
    1, 0.5 they are 1, 1, 4, 4.5; the first carries back 0.5 * 1 * 1 of the second. Added to the values these are the
    targets. Advantages: 1 + 0.5 * 3 - 1 = 1.5, with the target after it; the others are the last of their episodes."""
    found = behind(1.0, 1.0)
    assert found["return"] == pytest.approx([2.5, 3.0, 7.0, 8.5], rel=1e-6)
    assert found["rho"] == pytest.approx([1.0, 0.5, 1.0, 0.5], rel=1e-6)
    assert found["advantage"] == pytest.approx([1.5, 2.0, 4.0, 9.0], rel=1e-6)


def test_vtraces_limits_reach_the_targets() -> None:
    """With rho up to 2 the weighed errors are 2, 1, 8, 4.5; with c up to 0.5 the first carries 0.5 * 0.5 * 1 back."""
    found = behind(2.0, 0.5)
    assert found["return"] == pytest.approx([3.25, 3.0, 11.0, 8.5], rel=1e-6)
    assert found["rho"] == pytest.approx([2.0, 0.5, 2.0, 0.5], rel=1e-6)
    assert found["advantage"] == pytest.approx([1.5, 2.0, 4.0, 9.0], rel=1e-6)


@pytest.mark.parametrize("autoreset", AUTORESETS)
@pytest.mark.parametrize("memory", ["none", "lstm"])
def test_on_the_policys_own_samples_vtrace_is_td_1(autoreset: Any, memory: str) -> None:
    """Where the ratio is 1 the targets are the discounted rewards up to the episode's or the fragment's end and the value
    of what follows: GAE with lambda 1. With another lambda they are not."""
    env = Counting(3, autoreset)
    policy = make(env, memory=memory)
    batch = collect(env, policy, 20)
    valid = batch["valid"]
    settings = impala.ImpalaConfig.build({"gamma": 0.9}).at(0.0)
    found = vtrace_targets(policy, batch, settings, batch["logp"], batch["value"])
    finished = advantages(policy, batch, now(gamma=0.9, gae_lambda=1.0))
    assert (found["rho"] == 1).all()
    for name in ("advantage", "return"):
        np.testing.assert_allclose(found[name][valid], finished[name][valid], atol=1e-4)
    other = advantages(policy, batch, now(gamma=0.9, gae_lambda=0.8))
    assert np.abs(found["return"] - other["return"])[valid].max() > 0.1


@pytest.mark.parametrize("autoreset", AUTORESETS)
@pytest.mark.parametrize("settings", [{}, {"memory": "gru"}, {"normalize_obs": True}], ids=str)
def test_learning_finds_the_ratio_to_the_weights_that_played(autoreset: Any, settings: dict[str, Any]) -> None:
    """1 while they are the same; something else once the policy has moved on."""
    env = Counting(3, autoreset)
    config = impala.ImpalaConfig.build({"hidden": (8,), "lr": 0.01, **settings})
    policy: Any = impala.ALGORITHM.policy(config, env.observation_space, env.action_space, 0)
    batch = policy.postprocess(collect(env, policy, 20))
    first, second = (policy.learn(batch, Sgd()).metrics for _ in range(2))
    assert first["rho"] == pytest.approx(1.0, abs=1e-6) and first["kl"] == pytest.approx(0.0, abs=1e-6)
    assert second["rho"] < 1 - 1e-4 and abs(second["kl"]) > 1e-5


# --- rewards as learning sees them ---


def test_rewards_are_scaled_then_clipped() -> None:
    batch = Batch({"reward": np.array([[-30.0], [2.0], [30.0]], np.float32)})
    assert shaped_rewards(batch, now(reward_scale=0.1, reward_clip=1.0))[:, 0].tolist() == pytest.approx([-1, 0.2, 1])
    assert shaped_rewards(batch, now())[:, 0].tolist() == [-30, 2, 30]
    assert shaped_rewards(batch, now(reward_scale=0.1)).dtype == np.float32


# --- returns without a value function ---


def test_returns_to_go_by_hand_and_unfinished_tails_weigh_nothing() -> None:
    """Env 0 ends (by its time limit) at step 2 and is under way at the end; env 1 never ends."""
    batch = Batch(
        {
            "reward": np.array([[1, 5], [2, 5], [4, 5], [8, 5], [16, 5]], np.float32),
            "terminated": np.zeros((5, 2), bool),
            "truncated": np.array([[0, 0], [0, 0], [1, 0], [0, 0], [0, 0]], bool),
        }
    )
    policy = make(Counting(2))
    finished = pg.returns_to_go(policy, batch, now(gamma=0.5))
    assert finished["return"][:3, 0].tolist() == [1 + 0.5 * 2 + 0.25 * 4, 2 + 0.5 * 4, 4]
    assert finished["weight"].T.tolist() == [[1, 1, 1, 0, 0], [0, 0, 0, 0, 0]]
    assert finished["weight"].flags.c_contiguous


@pytest.mark.parametrize("autoreset", AUTORESETS)
def test_returns_to_go_of_played_episodes(autoreset: Any) -> None:
    env = Counting(3, autoreset)
    policy = make(env)
    batch = pg.returns_to_go(policy, collect(env, policy, 11), now(gamma=1.0))
    for t, n in np.argwhere(batch["valid"]):
        _, episode, step = batch["obs"][t, n].astype(int)
        rest = batch["terminated"][t:, n] | batch["truncated"][t:, n]
        assert batch["weight"][t, n] == rest.any()
        if rest.any():
            expected = sum(reward_of(n, episode, k) for k in range(step, length_of(n, episode)))
            assert batch["return"][t, n] == pytest.approx(expected)


def test_the_settings_reach_gae() -> None:
    env = Counting(2)
    policy = make(env, gamma=0.5, gae_lambda=0.25, reward_scale=2.0)
    batch = collect(env, policy, 6)
    values, done = batch["value"], batch["terminated"] | batch["truncated"]
    finished = policy.postprocess(batch)
    after = np.concatenate([values[1:], values[-1:]])
    expected = returns.gae(2 * batch["reward"], values, after, done, done, 0.5, 0.25)
    whole = slice(0, 2)  # env 0's first episode is 2 steps and terminates
    np.testing.assert_allclose(finished["advantage"][whole, 0], expected[whole, 0], atol=1e-5)
    np.testing.assert_allclose(finished["return"], finished["advantage"] + values)
