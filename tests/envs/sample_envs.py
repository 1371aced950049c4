"""Small envs for the tests of the envs room: one that counts, ones that do something wrong, and ones with odd spaces."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv


class Counting(gymnasium.Env):
    """Shows (episode, t); an even seed ends episodes after 2 steps, an odd one after 3. Even episodes terminate, odd
    ones are truncated. The reward is 100 * episode + t."""

    observation_space = spaces.Box(0, 1000, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self) -> None:
        self.episode, self.length = -1, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.episode, self.length = -1, 2 + seed % 2
        self.episode, self.t = self.episode + 1, 0
        return self.look(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        assert self.t < self.length, "stepped after the end"
        self.t += 1
        over = self.t == self.length
        even = self.episode % 2 == 0
        return self.look(), 100.0 * self.episode + self.t, over and even, over and not even, {}

    def look(self) -> np.ndarray:
        return np.array([self.episode, self.t], np.float32)

    def get_state(self) -> dict[str, Any]:
        return {"at": (self.episode, self.t), "length": self.length}

    def set_state(self, state: dict[str, Any]) -> None:
        (self.episode, self.t), self.length = state["at"], state["length"]


def counting_same(num_envs: int) -> gymnasium.vector.VectorEnv:
    return SyncVectorEnv([Counting] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)


def counting_next(num_envs: int) -> gymnasium.vector.VectorEnv:
    return SyncVectorEnv([Counting] * num_envs, autoreset_mode=AutoresetMode.NEXT_STEP)


def counting_disabled(num_envs: int) -> gymnasium.vector.VectorEnv:
    return SyncVectorEnv([Counting] * num_envs, autoreset_mode=AutoresetMode.DISABLED)


class OddError(Exception):
    """An error whose constructor takes more than a message, so that it can't simply be pickled."""

    def __init__(self, code: int, place: str) -> None:
        super().__init__(f"code {code} at {place}")


class Faulty(gymnasium.Env):
    """Never ends; from step `at` on it does what `fault` names, in the env that was seeded with `victim`."""

    observation_space: spaces.Space = spaces.Dict(
        {"camera": spaces.Box(-1, 1, (2, 2), np.float32), "gear": spaces.Discrete(3)}
    )
    action_space = spaces.Discrete(2)

    def __init__(self, fault: str = "", at: int = 1, victim: int | None = None) -> None:
        self.fault, self.at, self.victim = fault, at, victim

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t, self.seed = 0, seed
        if self.fault == "hang in reset":
            time.sleep(60)
        if self.fault == "no info":
            return self.look()
        return self.look(), {}

    def look(self) -> dict[str, Any]:
        return {"camera": np.zeros((2, 2), np.float32), "gear": 1}

    def step(self, action: int) -> Any:
        self.t += 1
        obs, reward, over, cut = self.look(), 0.0, False, False
        if not self.fault or self.t < self.at or (self.victim is not None and self.seed != self.victim):
            return obs, reward, over, cut, {}
        return getattr(self, "do_" + self.fault.replace(" ", "_"))(obs)

    def do_raise(self, obs: Any) -> Any:
        raise ZeroDivisionError("the motor broke")

    def do_raise_odd(self, obs: Any) -> Any:
        raise OddError(7, "the gate")

    def do_file_missing(self, obs: Any) -> Any:
        raise FileNotFoundError(2, "no such map", "map.txt")

    def do_die(self, obs: Any) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)

    def do_hang(self, obs: Any) -> Any:
        time.sleep(60)

    def do_nan(self, obs: Any) -> Any:
        obs["camera"][1, 0] = np.nan
        return obs, 0.0, False, False, {}

    def do_infinite(self, obs: Any) -> Any:
        obs["camera"][1, 0] = np.inf
        return obs, 0.0, False, False, {}

    def do_outside(self, obs: Any) -> Any:
        obs["camera"][0, 1] = 7
        return obs, 0.0, False, False, {}

    def do_gear_outside(self, obs: Any) -> Any:
        return {**obs, "gear": 3}, 0.0, False, False, {}

    def do_shape(self, obs: Any) -> Any:
        return {**obs, "camera": np.zeros(2, np.float32)}, 0.0, False, False, {}

    def do_dtype(self, obs: Any) -> Any:
        return {**obs, "gear": 1.5}, 0.0, False, False, {}

    def do_missing(self, obs: Any) -> Any:
        return {"camera": obs["camera"]}, 0.0, False, False, {}

    def do_extra(self, obs: Any) -> Any:
        return {**obs, "sound": 1}, 0.0, False, False, {}

    def do_reward_nan(self, obs: Any) -> Any:
        return obs, float("nan"), False, False, {}

    def do_reward_none(self, obs: Any) -> Any:
        return obs, None, False, False, {}

    def do_flag(self, obs: Any) -> Any:
        return obs, 0.0, "no", False, {}

    def do_four(self, obs: Any) -> Any:
        return obs, 0.0, False, {}


class Odd(gymnasium.Env):
    """Actions 3 to 5 and an observation 10 to 14 that repeats the last action plus 7."""

    observation_space = spaces.Discrete(5, start=10)
    action_space = spaces.Discrete(3, start=3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        return 10, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        return int(action) + 7, float(action), False, False, {}


class Pushed(gymnasium.Env):
    """Rewards the (clipped) push that reaches it; pushes are from -2 to 2 and 0 to 4."""

    observation_space = spaces.Box(-1, 1, (1,), np.float32)
    action_space = spaces.Box(np.array([-2, 0], np.float32), np.array([2, 4], np.float32))

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        return np.zeros(1, np.float32), float(10 * action[0] + action[1]), False, False, {}


class MaskInObservation(gymnasium.Env):
    """Only the action t % 3 is legal, told by the observation's `action_mask`; `legal=False` tells of none."""

    observation_space = spaces.Dict(
        {"observation": spaces.Box(0, 100, (1,), np.float32), "action_mask": spaces.MultiBinary(3)}
    )
    action_space = spaces.Discrete(3)

    def __init__(self, legal: bool = True) -> None:
        self.legal = legal

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return self.look(), {}

    def step(self, action: int) -> Any:
        assert action == self.t % 3
        self.t += 1
        return self.look(), 1.0, False, False, {}

    def look(self) -> dict[str, np.ndarray]:
        return {
            "observation": np.array([self.t], np.float32),
            "action_mask": (np.arange(3) == self.t % 3).astype(np.int8) * self.legal,
        }


def masks_same(num_envs: int) -> gymnasium.vector.VectorEnv:
    def single() -> gymnasium.Env:
        return gymnasium.wrappers.TimeLimit(MaskInObservation(), 2)

    return SyncVectorEnv([single] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)


class MaskByMethod(gymnasium.Env):
    """MultiDiscrete actions (2 and 3 choices) with a method that tells which are legal."""

    observation_space = spaces.Box(0, 1, (1,), np.float32)
    action_space = spaces.MultiDiscrete([2, 3])

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action: np.ndarray) -> Any:
        assert action[0] == 1 and action[1] in (0, 2)
        return np.zeros(1, np.float32), 1.0, False, False, {}

    def action_masks(self) -> list[np.ndarray]:
        return [np.array([False, True]), np.array([True, False, True])]


class WordSpace(Odd):
    observation_space = spaces.Text(5)  # type: ignore[assignment]


class DictActions(Odd):
    action_space = spaces.Dict({"steer": spaces.Discrete(2)})  # type: ignore[assignment]


class Image(gymnasium.Env):
    """An image of 2 by 3 with its step number in every pixel; ends after 3 steps."""

    observation_space = spaces.Box(0, 255, (2, 3), np.uint8)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t = 10
        return self.look(), {}

    def step(self, action: int) -> Any:
        self.t += 1
        return self.look(), 0.0, self.t == 13, False, {}

    def look(self) -> np.ndarray:
        return np.full((2, 3), self.t, np.uint8)


def not_an_env() -> int:
    return 3


gymnasium.register("SampleCounting-v0", entry_point=Counting, max_episode_steps=50)
