"""EnvPool behind the interface: seeds, ends of episodes, bounds."""

from __future__ import annotations

import numpy as np
import pytest

from podium.core.errors import UsageError
from podium.core.spaces import Box
from podium.envs.make import EnvSpec, make


def test_seeds_are_each_envs_own_and_repeatable() -> None:
    env = make(EnvSpec("envpool:Pendulum-v1"), 3)
    first = env.reset([7, 8, 7])["obs"].copy()
    np.testing.assert_array_equal(first[0], first[2])
    assert not np.array_equal(first[0], first[1])
    env.step(np.zeros((3, 1), np.float32))
    np.testing.assert_array_equal(env.reset([7, 8, 7])["obs"], first)
    assert not np.array_equal(env.reset([9, 8, 7])["obs"][0], first[0])


def test_the_step_after_the_end_is_a_reset() -> None:
    env = make(EnvSpec("envpool:Pendulum-v1", time_limit=4), 2)
    assert env.autoreset == "next"
    env.reset([1, 2])
    steps = [env.step(np.zeros((2, 1), np.float32)) for _ in range(6)]
    assert [step.truncated.tolist() for step in steps] == [[False] * 2] * 3 + [[True] * 2] + [[False] * 2] * 2
    assert not any(step.terminated.any() for step in steps)
    assert steps[4].reward.tolist() == [0, 0] and (steps[3].reward != 0).all() and (steps[5].reward != 0).all()


def test_actions_beyond_the_bounds_count_as_the_bounds() -> None:
    """HalfCheetah charges for the size of an action as it was given."""
    results = []
    for push in (1.0, 50.0):
        env = make(EnvSpec("envpool:HalfCheetah-v5"), 2)
        env.reset([1, 2])
        results.append(env.step(np.full((2, 6), push, np.float32)))
    np.testing.assert_array_equal(results[0].reward, results[1].reward)
    np.testing.assert_array_equal(results[0].obs["obs"], results[1].obs["obs"])


def test_what_it_cannot_do_it_says() -> None:
    env = make(EnvSpec("envpool:CartPole-v1"), 2)
    assert isinstance(env.observation_space, Box) and env.get_state() is None
    with pytest.raises(UsageError, match="can't take a state"):
        env.set_state({})
    with pytest.raises(UsageError, match="wrong kind of value"):
        make(EnvSpec("envpool:CartPole-v1", {"max_episode_steps": "x"}), 2)
