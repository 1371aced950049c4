"""A saved state put into a freshly made env goes on bit for bit, after a trip through plain data."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from podium.core.errors import UsageError
from podium.envs import snapshot
from podium.envs.base import Stepped, VectorEnv
from podium.envs.make import EnvSpec, make

SPECS = {
    "cartpole vector": EnvSpec("CartPole-v1"),
    "cartpole vector, short": EnvSpec("CartPole-v1", time_limit=7),
    "cartpole in processes": EnvSpec("CartPole-v1", processes=2),
    "pendulum": EnvSpec("Pendulum-v1", time_limit=20),
    "mountain car": EnvSpec("MountainCar-v0", time_limit=20),
    "mountain car, continuous": EnvSpec("MountainCarContinuous-v0"),
    "acrobot": EnvSpec("Acrobot-v1", time_limit=20),
    "frozen lake": EnvSpec("FrozenLake-v1"),
    "taxi": EnvSpec("Taxi-v4", time_limit=15),
    "cliff": EnvSpec("CliffWalking-v1"),
    "blackjack": EnvSpec("Blackjack-v1"),
    "half cheetah": EnvSpec("HalfCheetah-v5"),
    "ant": EnvSpec("Ant-v5", {"include_cfrc_ext_in_observation": True}),
    "humanoid": EnvSpec("Humanoid-v5"),
    "double pendulum": EnvSpec("InvertedDoublePendulum-v5"),
    "reacher": EnvSpec("Reacher-v5"),
    "pusher": EnvSpec("Pusher-v5"),
    "wrapped": EnvSpec("Pendulum-v1", frame_stack=3, rescale_actions=True, time_limit=11),
    "wrapped next-step": EnvSpec("CartPole-v1", frame_stack=2, time_limit=7),
    "user's own": EnvSpec("sample_envs:Counting"),
    "user's own, registered": EnvSpec("sample_envs:SampleCounting-v0"),
    "toy chain": EnvSpec("toy:chain"),
    "toy constant": EnvSpec("toy:constant"),
    "toy cue": EnvSpec("toy:cue"),
    "toy match": EnvSpec("toy:match", {"autoreset": "next"}),
    "toy masked": EnvSpec("toy:masked"),
    "toy continuous": EnvSpec("toy:continuous"),
    "toy cartpole hidden": EnvSpec("toy:cartpole-hidden", {"length": 9}),
}


def plain(value: Any, path: str = "state") -> Any:
    """Copy a state as a file would hold it; anything but plain data fails."""
    if isinstance(value, dict):
        assert all(type(key) is str for key in value), path
        return {key: plain(item, f"{path}/{key}") for key, item in value.items()}
    if type(value) is list:
        return [plain(item, f"{path}/{i}") for i, item in enumerate(value)]
    if type(value) is np.ndarray:
        assert value.dtype.kind in "biuf", path
        return np.ascontiguousarray(value).reshape(value.shape).copy()
    assert value is None or type(value) in (bool, int, float, str), f"{path} is {type(value)}"
    return value


def copy(stepped: Stepped) -> list[Any]:
    parts: list[Any] = [*stepped.obs.values(), stepped.reward, stepped.terminated, stepped.truncated]
    if stepped.finals is not None and stepped.final_rows is not None:
        parts += [stepped.final_rows, *stepped.finals.values()]
    return [np.array(part) for part in parts]


def go_on(env: VectorEnv, actions: np.ndarray) -> list[list[Any]]:
    return [copy(env.step(action)) for action in actions]


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS.keys())
def test_a_restored_env_goes_on_bit_for_bit(spec: EnvSpec) -> None:
    rng = np.random.default_rng(0)
    env, other = make(spec, 2), make(spec, 2)
    try:
        actions = np.stack([env.action_space.sample(rng, 2) for _ in range(70)])
        env.reset([11, 12])
        go_on(env, actions[:33])
        state = env.get_state()
        assert state is not None
        state = plain(state)
        expected = go_on(env, actions[33:])
        now = {path: column.copy() for path, column in other.set_state(state).items()}
        got = go_on(other, actions[33:])
        for a, b in zip(expected, got, strict=True):
            assert len(a) == len(b)
            for x, y in zip(a, b, strict=True):
                assert x.dtype == y.dtype and x.tobytes() == y.tobytes()
        for path, column in env.set_state(state).items():
            np.testing.assert_array_equal(column, now[path])
    finally:
        env.close()
        other.close()


def test_the_comparison_can_fail() -> None:
    """Another seed's continuation differs, so equality above is no accident."""
    env, other = make(EnvSpec("Pendulum-v1"), 1), make(EnvSpec("Pendulum-v1"), 1)
    actions = np.zeros((3, 1, 1), np.float32)
    env.reset([1])
    other.reset([2])
    assert go_on(env, actions)[0][0].tobytes() != go_on(other, actions)[0][0].tobytes()


def test_processes_and_one_process_share_their_states() -> None:
    actions = np.zeros((5, 3, 1), np.float32)
    with_processes, single = make(EnvSpec("Pendulum-v1", processes=2), 3), make(EnvSpec("Pendulum-v1"), 3)
    try:
        with_processes.reset([1, 2, 3])
        go_on(with_processes, actions)
        state = with_processes.get_state()
        assert state is not None
        single.set_state(state)
        for a, b in zip(go_on(with_processes, actions), go_on(single, actions), strict=True):
            assert [x.tobytes() for x in a] == [x.tobytes() for x in b]
    finally:
        with_processes.close()


@pytest.mark.parametrize(
    "spec",
    [
        EnvSpec("LunarLander-v3"),
        EnvSpec("LunarLander-v3", frame_stack=2),
        EnvSpec("envpool:CartPole-v1"),
        EnvSpec("sample_envs:Odd"),
    ],
)
def test_an_env_that_cannot_give_its_state_says_so(spec: EnvSpec) -> None:
    env = make(spec, 1)
    env.reset([0])
    assert env.get_state() is None


def test_encoding_keeps_kinds_that_files_lose() -> None:
    value = {"a": (1, 2.5), "b": [np.float32(0.1), np.int64(3)], "c": np.zeros(2), "d": None, "tuple": {"x": True}}
    back = snapshot.decode(plain(snapshot.encode(value, "it")))
    assert back["a"] == (1, 2.5) and type(back["a"]) is tuple
    assert type(back["b"][0]) is np.float32 and back["b"][0] == np.float32(0.1) and type(back["b"][1]) is np.int64
    assert back["c"].dtype == np.float64 and back["d"] is None and back["tuple"] == {"x": True}


def test_a_state_that_no_file_can_hold_is_refused() -> None:
    with pytest.raises(UsageError, match=r"get_state\(\) of Mine holds a set"):
        snapshot.encode({"seen": {1, 2}}, "get_state() of Mine")
