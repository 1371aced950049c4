"""EnvPool's envs behind Podium's interface: C++ threads step them, the next step begins the next episode."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np

from podium.core.errors import MissingExtra, UsageError, did_you_mean
from podium.core.spaces import Columns, leaves
from podium.envs import convert
from podium.envs.base import Stepped
from podium.envs.guard import raise_not_finite

OURS = ("num_envs", "seed", "env_seed", "batch_size", "gym_reset_return_info", "base_path")


@contextmanager
def _without_precision_warnings() -> Iterator[None]:
    """EnvPool declares bounds in double precision whatever the observations are, and gymnasium tells so each time."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*precision lowered by casting")
        yield


class EnvPoolVector:
    """A pool takes its seeds when it is made, so resetting with other seeds makes it anew."""

    autoreset: Literal["same", "next"] = "next"
    masked = False

    @_without_precision_warnings()
    def __init__(self, task: str, n: int, args: dict[str, Any], time_limit: int | None) -> None:
        self.n = n
        self._task = task
        self._args = checked_args(task, args, time_limit)
        self._seeds = list(range(n))
        self._fresh = True
        self._pool = self._made(self._seeds)
        declared, acting = self._pool.observation_space, self._pool.action_space
        observed = convert.observations(declared)
        self.observation_space = observed.space
        self.action_space = convert.action_space(acting)
        self._readers = observed.readers
        self._floats = [p for p, leaf in leaves(observed.space, "obs").items() if leaf.dtype.kind == "f"]
        self._to_env = convert.action_converter(acting)
        config = self._pool.config
        # The frames that a game of pictures plays in a step; a physics simulation's substeps are none.
        self.frames_per_step = int(config.get("frame_skip", 1)) if "img_height" in config else 1
        self._steps = 0

    @_without_precision_warnings()
    def _made(self, seeds: list[int]) -> Any:
        import envpool

        try:
            return envpool.make_gymnasium(self._task, num_envs=self.n, seed=seeds, **self._args)
        except TypeError as error:
            raise UsageError(f"envpool:{self._task} can't be made with {self._args}: wrong kind of value") from error

    def reset(self, seeds: Sequence[int]) -> Columns:
        wanted = [int(seed) & 0x7FFFFFFF for seed in seeds]
        if wanted != self._seeds or not self._fresh:
            self._pool.close()
            self._pool = self._made(wanted)
        self._seeds, self._fresh = wanted, False
        self._steps = 0
        return self._columns(self._pool.reset()[0])

    def step(self, actions: np.ndarray) -> Stepped:
        self._steps += 1
        try:
            obs, reward, terminated, truncated, _ = self._pool.step(self._to_env(actions))
        except Exception as error:
            error.add_note(f"envpool:{self._task} as a pool of {self.n} envs, step {self._steps}")
            raise
        if not math.isfinite(reward.dot(reward)):
            raise_not_finite("reward", reward, self._steps)
        return Stepped(self._columns(obs), reward, terminated, truncated)

    def _columns(self, obs: Any) -> Columns:
        columns = {}
        for path, keys, _, offset in self._readers:
            value = obs
            for key in keys:
                value = value[key]
            columns[path] = value if offset is None else value - offset
        for path in self._floats:
            flat = columns[path].reshape(-1)
            if not math.isfinite(flat.dot(flat)):
                raise_not_finite(path, columns[path], self._steps)
        return columns

    def get_state(self) -> dict[str, Any] | None:
        """EnvPool can't give its envs' state."""
        return None

    def set_state(self, state: dict[str, Any]) -> Columns:
        raise UsageError(f"envpool:{self._task} can't take a state")

    def render(self) -> np.ndarray:
        try:
            return self._pool.render()[0]
        except RuntimeError as error:
            raise UsageError(f"envpool:{self._task} drew no picture: {error}") from error

    def processes(self) -> list[int]:
        return []

    def close(self) -> None:
        self._pool.close()


@_without_precision_warnings()
def checked_args(task: str, args: dict[str, Any], time_limit: int | None) -> dict[str, Any]:
    """The pool's arguments, once the task and each argument are known to exist."""
    try:
        import envpool
    except ImportError:
        raise MissingExtra(f"envpool:{task}", "envpool") from None

    tasks = envpool.list_all_envs()
    if task not in tasks:
        raise UsageError(f"unknown env 'envpool:{task}'{did_you_mean(task, tasks)}")
    known = [key for key in envpool.make_spec(task)._config_keys if key not in OURS] + ["render_mode"]
    for name in args:
        if name not in known:
            raise UsageError(f"envpool:{task} has no argument {name!r}{did_you_mean(name, known)}")
    return {**args, **({} if time_limit is None else {"max_episode_steps": time_limit})}
