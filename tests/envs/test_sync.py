"""Single envs stepped here: seeds, actions, masks, and faults that name the env, the step and the column."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

from podium.core.errors import EnvDataError, UsageError
from podium.core.spaces import Box, Dict, Discrete
from podium.envs.make import EnvSpec, make
from podium.envs.sync import SyncVector


def faulty(fault: str, at: int = 3, n: int = 3) -> SyncVector:
    """Three envs; only env 1 (seed 21) is at fault, from its step `at` on."""
    env = make(EnvSpec("sample_envs:Faulty", {"fault": fault, "at": at, "victim": 21}), n)
    env.reset([20, 21, 22])
    assert isinstance(env, SyncVector)
    return env


def run(env: SyncVector, steps: int) -> None:
    for _ in range(steps):
        env.step(np.zeros(env.n, np.int64))


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("nan", "obs/camera is NaN in env 1 at step 3"),
        ("infinite", "obs/camera is infinite in env 1 at step 3"),
        ("reward nan", "reward is NaN in env 1 at step 3"),
        ("gear outside", "obs/gear is 3 in env 1 at step 3, outside its declared Discrete(3)"),
        ("shape", "obs/camera in env 1 at step 3 has shape (2,), expected (2, 2)"),
        ("dtype", "obs/gear in env 1 at step 3 is float64, expected int64"),
        ("outside", "obs/camera is 7 in env 1 at step 8, outside its declared Box[2, 2] float32 (-1 to 1)"),
    ],
)
def test_bad_data_is_named(fault: str, message: str) -> None:
    env = faulty(fault)
    run(env, 2)
    with pytest.raises(EnvDataError) as caught:
        run(env, 6)
    assert str(caught.value) == message


def test_a_clean_env_passes() -> None:
    run(faulty("nan", at=100), 50)


def test_an_envs_own_error_stays_itself() -> None:
    env = faulty("raise")
    run(env, 2)
    with pytest.raises(ZeroDivisionError, match="the motor broke") as caught:
        run(env, 1)
    assert caught.value.__notes__ == ["env 1, step 3"]


def test_an_error_in_reset_stays_itself() -> None:
    env = make(EnvSpec("sample_envs:Faulty"), 2)
    assert isinstance(env, SyncVector)
    error = RuntimeError("no map")

    def broken(**how: int) -> None:
        raise error

    env.envs[1].reset = broken
    with pytest.raises(RuntimeError) as caught:
        env.reset([1, 2])
    assert caught.value is error and error.__notes__ == ["env 1, step 0, in reset"]


def test_a_final_observation_is_checked_too() -> None:
    env = make(EnvSpec("sample_envs:Counting"), 2)
    assert isinstance(env, SyncVector)
    env.reset([2, 2])
    env.step(np.zeros(2, np.int64))
    inner = env.envs[1]
    inner.look = lambda: np.full(2, np.nan if inner.t == 2 else 0, np.float32)
    with pytest.raises(EnvDataError, match="obs is NaN in env 1 at step 2"):
        env.step(np.zeros(2, np.int64))


def test_each_env_gets_its_own_seed() -> None:
    env = make(EnvSpec("Pendulum-v1"), 3)
    together = env.reset([7, 8, 7])["obs"].copy()
    alone, _ = gymnasium.make("Pendulum-v1").reset(seed=8)
    np.testing.assert_array_equal(together[0], together[2])
    np.testing.assert_array_equal(together[1], alone)
    np.testing.assert_array_equal(env.reset([7, 8, 7])["obs"], together)


def test_whole_numbers_are_shifted_to_zero() -> None:
    env = make(EnvSpec("sample_envs:Odd"), 3)
    assert env.action_space == Discrete(3, start=3) and env.observation_space == Discrete(5, start=10)
    assert env.reset([0, 1, 2])["obs"].tolist() == [0, 0, 0]
    stepped = env.step(np.array([0, 1, 2]))
    assert stepped.reward.tolist() == [3, 4, 5] and stepped.obs["obs"].tolist() == [0, 1, 2]


def test_actions_are_clipped_to_their_bounds_and_the_callers_array_is_left_alone() -> None:
    env = make(EnvSpec("sample_envs:Pushed"), 2)
    env.reset([0, 1])
    actions = np.array([[-9, 9], [1, -1]], np.float32)
    assert env.step(actions).reward.tolist() == [10 * -2 + 4, 10 * 1 + 0]
    assert actions.tolist() == [[-9, 9], [1, -1]]


def test_a_mask_in_the_observation_becomes_the_mask_column() -> None:
    env = make(EnvSpec("sample_envs:MaskInObservation"), 2)
    assert env.masked and env.observation_space == Dict({"observation": Box.of(0, 100, (1,))})
    obs = env.reset([0, 1])
    assert obs["mask"].dtype == bool and obs["mask"].tolist() == [[True, False, False]] * 2
    obs = env.step(np.zeros(2, np.int64)).obs
    assert set(obs) == {"obs/observation", "mask"}
    assert obs["mask"].tolist() == [[False, True, False]] * 2 and obs["obs/observation"].tolist() == [[1], [1]]


def test_masks_by_method_stand_side_by_side() -> None:
    env = make(EnvSpec("sample_envs:MaskByMethod"), 2)
    assert env.masked
    assert env.reset([0, 1])["mask"].tolist() == [[False, True, True, False, True]] * 2
    assert env.step(np.array([[1, 0], [1, 2]])).reward.tolist() == [1, 1]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("WordSpace", "obs is a Text space, which is not supported; supported are Box, Discrete"),
        ("DictActions", "is not supported: expected one Box, Discrete, MultiDiscrete or MultiBinary"),
    ],
)
def test_unsupported_spaces_are_named(name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make(EnvSpec(f"sample_envs:{name}"), 1)


def test_a_time_limit_truncates_and_keeps_the_final_observation() -> None:
    env = make(EnvSpec("sample_envs:Odd", time_limit=2), 1)
    env.reset([0])
    assert not env.step(np.array([1])).truncated[0]
    stepped = env.step(np.array([2]))
    assert stepped.truncated.tolist() == [True] and stepped.terminated.tolist() == [False]
    assert stepped.finals is not None and stepped.finals["obs"].tolist() == [2] and stepped.obs["obs"].tolist() == [0]


def test_rendering_shows_the_first_env() -> None:
    env = make(EnvSpec("Pendulum-v1"), 2, render=True)
    env.reset([0, 1])
    assert env.render().shape == (500, 500, 3)
    env.close()
    blind = make(EnvSpec("sample_envs:Counting"), 1, render=True)
    blind.reset([0])
    with pytest.raises((UsageError, NotImplementedError)):
        blind.render()
