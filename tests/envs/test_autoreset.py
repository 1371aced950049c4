"""Both manners of beginning the next episode, field by field against tables worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from podium.envs.base import VectorEnv
from podium.envs.make import EnvSpec, make

SEEDS = [4, 7]  # lengths 2 and 3

# One row per step: the two envs' (episode, t), rewards, terminated, truncated, and what ended: {env: (episode, t)}.
SAME_STEP = [
    ([(0, 1), (0, 1)], [1, 1], [0, 0], [0, 0], {}),
    ([(1, 0), (0, 2)], [2, 2], [1, 0], [0, 0], {0: (0, 2)}),
    ([(1, 1), (1, 0)], [101, 3], [0, 1], [0, 0], {1: (0, 3)}),
    ([(2, 0), (1, 1)], [102, 101], [0, 0], [1, 0], {0: (1, 2)}),
    ([(2, 1), (1, 2)], [201, 102], [0, 0], [0, 0], {}),
    ([(3, 0), (2, 0)], [202, 103], [1, 0], [0, 1], {0: (2, 2), 1: (1, 3)}),
]
NEXT_STEP = [
    ([(0, 1), (0, 1)], [1, 1], [0, 0], [0, 0]),
    ([(0, 2), (0, 2)], [2, 2], [1, 0], [0, 0]),
    ([(1, 0), (0, 3)], [0, 3], [0, 1], [0, 0]),
    ([(1, 1), (1, 0)], [101, 0], [0, 0], [0, 0]),
    ([(1, 2), (1, 1)], [102, 101], [0, 0], [1, 0]),
    ([(2, 0), (1, 2)], [0, 102], [0, 0], [0, 0]),
    ([(2, 1), (1, 3)], [201, 103], [0, 0], [0, 1]),
    ([(2, 2), (2, 0)], [202, 0], [1, 0], [0, 0]),
]
ACTIONS = np.zeros(2, np.int64)


def drive_same_step(env: VectorEnv) -> None:
    assert env.autoreset == "same"
    np.testing.assert_array_equal(env.reset(SEEDS)["obs"], [(0, 0), (0, 0)])
    for obs, reward, terminated, truncated, ends in SAME_STEP:
        stepped = env.step(ACTIONS)
        np.testing.assert_array_equal(stepped.obs["obs"], obs)
        np.testing.assert_array_equal(stepped.reward, reward)
        np.testing.assert_array_equal(stepped.terminated, terminated)
        np.testing.assert_array_equal(stepped.truncated, truncated)
        assert stepped.terminated.dtype == stepped.truncated.dtype == bool
        if ends:
            assert stepped.final_rows is not None and stepped.finals is not None
            assert stepped.final_rows.tolist() == list(ends)
            np.testing.assert_array_equal(stepped.finals["obs"], list(ends.values()))
        else:
            assert stepped.final_rows is None or not len(stepped.final_rows)


@pytest.mark.parametrize("spec", [EnvSpec("sample_envs:Counting"), EnvSpec("sample_envs:counting_same")])
def test_same_step(spec: EnvSpec) -> None:
    drive_same_step(make(spec, 2))


def test_same_step_in_processes() -> None:
    env = make(EnvSpec("sample_envs:Counting", processes=2), 2)
    try:
        drive_same_step(env)
    finally:
        env.close()


def test_next_step() -> None:
    env = make(EnvSpec("sample_envs:counting_next"), 2)
    assert env.autoreset == "next"
    np.testing.assert_array_equal(env.reset(SEEDS)["obs"], [(0, 0), (0, 0)])
    for obs, reward, terminated, truncated in NEXT_STEP:
        stepped = env.step(ACTIONS)
        np.testing.assert_array_equal(stepped.obs["obs"], obs)
        np.testing.assert_array_equal(stepped.reward, reward)
        np.testing.assert_array_equal(stepped.terminated, terminated)
        np.testing.assert_array_equal(stepped.truncated, truncated)
        assert stepped.final_rows is None


def test_cartpoles_own_vector_shows_the_end_and_then_the_reset() -> None:
    env = make(EnvSpec("CartPole-v1", time_limit=5), 2)
    env.reset([1, 2])
    steps = [env.step(np.array([0, 1]))._replace(obs={}) for _ in range(6)]
    assert [step.truncated.tolist() for step in steps] == [[False, False]] * 4 + [[True, True], [False, False]]
    assert [step.reward.tolist() for step in steps] == [[1, 1]] * 5 + [[0, 0]]


@pytest.mark.parametrize("autoreset", ["same", "next"])
def test_toys_in_both_manners(autoreset: str) -> None:
    env = make(EnvSpec("toy:chain", {"length": 3, "autoreset": autoreset}), 1)
    first = env.reset([0])["obs"]
    right = np.ones(1, np.int64)
    one, two, three = (env.step(right) for _ in range(3))
    places = [int(obs[0].argmax()) for obs in (first, one.obs["obs"], two.obs["obs"], three.obs["obs"])]
    assert [step.reward.tolist() for step in (one, two, three)] == [[0], [1], [0]]
    assert [step.terminated.tolist() for step in (one, two, three)] == [[False], [True], [False]]
    if autoreset == "same":
        assert places == [0, 1, 0, 1]
        assert two.final_rows is not None and two.finals is not None
        assert two.final_rows.tolist() == [0] and two.finals["obs"].tolist() == [[0, 0, 1]]
    else:
        assert places == [0, 1, 2, 0]
