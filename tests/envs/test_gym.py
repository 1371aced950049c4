"""Gymnasium's vector envs through the adapter: its columns, its refusals, and what it costs."""

from __future__ import annotations

import timeit

import numpy as np
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv

from podium.core.errors import EnvDataError, UsageError
from podium.envs.gym import GymVector
from podium.envs.make import EnvSpec, make


class Canned:
    """Steps by giving back what it was given."""

    def __init__(self, env: CartPoleVectorEnv) -> None:
        self.metadata = {"autoreset_mode": "NextStep"}
        self.num_envs, self.unwrapped = env.num_envs, env
        self.single_observation_space, self.single_action_space = env.single_observation_space, env.single_action_space
        env.reset(seed=0)
        self.result = env.step(np.zeros(self.num_envs, np.int64))

    def step(self, action: np.ndarray) -> tuple:
        return self.result


def test_the_adapter_gives_what_the_env_gives() -> None:
    bare = CartPoleVectorEnv(5, max_episode_steps=500)
    env = make(EnvSpec("CartPole-v1"), 5)
    assert isinstance(env, GymVector)
    expected, _ = bare.reset(seed=3)
    np.testing.assert_array_equal(env.reset([3, 9, 9, 9, 9])["obs"], expected)
    rng = np.random.default_rng(0)
    for _ in range(60):
        actions = rng.integers(2, size=5)
        obs, reward, terminated, truncated, _ = bare.step(actions)
        stepped = env.step(actions)
        assert stepped.obs["obs"].flags.c_contiguous
        np.testing.assert_array_equal(stepped.obs["obs"], obs)
        np.testing.assert_array_equal(stepped.reward, reward)
        np.testing.assert_array_equal(stepped.terminated, terminated)
        np.testing.assert_array_equal(stepped.truncated, truncated)


def test_the_adapter_costs_little() -> None:
    """Less than the plainest Python loop over 64 envs, on whatever machine."""
    env = GymVector(Canned(CartPoleVectorEnv(64)), "canned")
    actions = np.zeros(64, np.int64)
    rows, copies = np.zeros((64, 4)), np.zeros((64, 4))

    def loop() -> None:
        for i in range(64):
            copies[i] = rows[i]

    ours, theirs = (min(timeit.repeat(work, number=200, repeat=20)) for work in (lambda: env.step(actions), loop))
    assert ours < theirs


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_is_located(value: float) -> None:
    env = GymVector(Canned(CartPoleVectorEnv(4)), "canned")
    actions = np.zeros(4, np.int64)
    env.step(actions)
    env._env.result[0][2, 1] = value
    with pytest.raises(EnvDataError, match=r"obs is (NaN|infinite) in env 2 at step 2"):
        env.step(actions)
    env._env.result[0][2, 1] = 0
    env._env.result[1][3] = value
    with pytest.raises(EnvDataError, match=r"reward is (NaN|infinite) in env 3 at step 3"):
        env.step(actions)


@pytest.mark.filterwarnings("ignore:overflow")
def test_large_finite_values_are_no_fault() -> None:
    env = GymVector(Canned(CartPoleVectorEnv(4)), "canned")
    env._env.result[0][:] = 3e38
    env.step(np.zeros(4, np.int64))


def test_a_wrong_shape_is_refused_even_where_it_would_broadcast() -> None:
    env = GymVector(Canned(CartPoleVectorEnv(4)), "canned")
    env._env.result = (np.zeros((4, 1), np.float32), *env._env.result[1:])
    with pytest.raises(EnvDataError, match=r"obs of canned has shape \(4, 1\), expected \(4, 4\)"):
        env.step(np.zeros(4, np.int64))


def test_an_old_step_is_refused() -> None:
    env = GymVector(Canned(CartPoleVectorEnv(4)), "canned")
    env._env.result = env._env.result[:4]
    with pytest.raises(EnvDataError, match=r"step\(\) of canned returned 4 values, expected 5"):
        env.step(np.zeros(4, np.int64))


def test_an_error_of_the_env_is_noted() -> None:
    env = make(EnvSpec("CartPole-v1"), 2)
    env.reset([0, 1])
    with pytest.raises(AssertionError) as caught:
        env.step(np.array([0, 5]))
    assert caught.value.__notes__ == ["CartPole-v1 as a vector of 2 envs, step 1"]


def test_an_env_that_does_not_begin_anew_is_refused() -> None:
    with pytest.raises(UsageError, match=r"autoreset_mode'\] is 'Disabled', expected AutoresetMode.NEXT_STEP"):
        make(EnvSpec("sample_envs:counting_disabled"), 2)


def test_nested_observations_masks_and_ends() -> None:
    env = make(EnvSpec("sample_envs:masks_same"), 2)
    assert env.masked and env.autoreset == "same"
    assert env.reset([0, 1])["mask"].tolist() == [[True, False, False]] * 2
    stepped = env.step(np.array([0, 0]))
    assert stepped.obs["mask"].tolist() == [[False, True, False]] * 2 and stepped.final_rows is None
    stepped = env.step(np.array([1, 1]))
    assert stepped.final_rows is not None and stepped.final_rows.tolist() == [0, 1] and stepped.truncated.all()
    assert stepped.finals is not None and set(stepped.finals) == {"obs/observation"}
    assert stepped.finals["obs/observation"].tolist() == [[2], [2]]
    assert stepped.obs["obs/observation"].tolist() == [[0], [0]] and stepped.obs["mask"][0].tolist() == [
        True,
        False,
        False,
    ]


def test_the_video_of_a_vector() -> None:
    env = make(EnvSpec("CartPole-v1"), 2, render=True)
    env.reset([0, 1])
    assert env.render().shape == (400, 600, 3)
    env.close()
