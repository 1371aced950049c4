"""Gymnasium's own vector envs behind Podium's interface, with as little as possible added to each step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from podium.core import spaces
from podium.core.errors import EnvDataError, UsageError
from podium.core.spaces import Columns
from podium.envs import convert, snapshot
from podium.envs.base import MASK, Stepped
from podium.envs.guard import Guard, check_finals


class GymVector:
    """A gymnasium VectorEnv with next-step or same-step autoreset. Each step's arrays are reused by the next one."""

    def __init__(self, env: Any, name: str) -> None:
        self._env = env
        self._name = name
        self.n: int = env.num_envs
        self.autoreset: Literal["same", "next"] = autoreset_mode(env, name)
        observed = convert.observations(env.single_observation_space)
        self.observation_space = observed.space
        self.action_space = convert.action_space(env.single_action_space)
        self._mask_method = getattr(env.unwrapped, "action_masks", None)
        self.masked = observed.mask is not None or self._mask_method is not None
        leaves = spaces.leaves(observed.space, "obs")
        self._columns = {path: np.empty((self.n, *leaf.shape), leaf.dtype) for path, leaf in leaves.items()}
        self._readers = [(*reader, self._columns[reader.path]) for reader in observed.readers]
        self._mask = observed.mask
        if self.masked:
            self._columns[MASK] = np.ones((self.n, convert.choices(self.action_space)), bool)
        self._guard = Guard(leaves, self._columns, bounds=False)
        self._to_env = convert.action_converter(env.single_action_space)
        self._steps = 0

    def reset(self, seeds: Sequence[int]) -> Columns:
        from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

        one_each = isinstance(self._env.unwrapped, AsyncVectorEnv | SyncVectorEnv)
        seed = [int(seed) for seed in seeds] if one_each else int(seeds[0])
        obs, _ = self._env.reset(seed=seed)
        self._steps = 0
        self._store(obs)
        self._guard.check_finite(0)
        return self._columns

    def step(self, actions: np.ndarray) -> Stepped:
        self._steps += 1
        try:
            result = self._env.step(self._to_env(actions))
        except Exception as error:
            error.add_note(f"{self._name} as a vector of {self.n} envs, step {self._steps}")
            raise
        if len(result) != 5:
            raise EnvDataError(f"step() of {self._name} returned {len(result)} values, expected 5")
        obs, reward, terminated, truncated, info = result
        self._store(obs)
        self._guard.check(reward, self._steps)
        if self.autoreset == "next":
            return Stepped(self._columns, reward, terminated, truncated)
        rows = np.flatnonzero(terminated | truncated)
        if not len(rows):
            return Stepped(self._columns, reward, terminated, truncated)
        return Stepped(self._columns, reward, terminated, truncated, rows, self._finals(info, rows))

    def _store(self, obs: Any) -> None:
        for path, keys, _, offset, column in self._readers:
            value = obs
            for key in keys:
                value = value[key]
            if value.shape != column.shape:
                raise EnvDataError(f"{path} of {self._name} has shape {value.shape}, expected {column.shape}")
            np.copyto(column, value)
            if offset is not None:
                column -= offset
        if self._mask is not None:
            np.copyto(self._columns[MASK], self._mask.find(obs), casting="unsafe")
        elif self._mask_method is not None:
            self._columns[MASK][:] = convert.mask_row(self._mask_method())

    def _finals(self, info: dict[str, Any], rows: np.ndarray) -> Columns:
        """The observations that ended episodes: an array of objects with one per env, or a batch."""
        if "final_obs" not in info:
            raise EnvDataError(
                f"{self._name} ended an episode without 'final_obs' in its infos, as same-step autoreset has"
            )
        final = info["final_obs"]
        single = isinstance(final, np.ndarray) and final.dtype == object
        finals: Columns = {}
        for path, keys, leaf, offset, _ in self._readers:
            found = [_follow(final[row], keys) for row in rows] if single else _follow(final, keys)[rows]
            column = np.asarray(found, leaf.dtype).reshape(len(rows), *leaf.shape)
            finals[path] = column if offset is None else column - offset
        check_finals(finals, rows, self._steps)
        return finals

    def get_state(self) -> dict[str, Any] | None:
        env = snapshot.capture(self._env)
        if env is None:
            return None
        columns = {path: column.copy() for path, column in self._columns.items()}
        return {"steps": self._steps, "columns": columns, "env": env}

    def set_state(self, state: dict[str, Any]) -> Columns:
        self._env.reset(seed=0)
        snapshot.restore(self._env, state["env"])
        self._steps = state["steps"]
        for path, column in self._columns.items():
            column[:] = state["columns"][path]
        return self._columns

    def render(self) -> np.ndarray:
        """The first env's picture."""
        return first_frame(self._env.render(), self._name)

    def processes(self) -> list[int]:
        return []

    def close(self) -> None:
        self._env.close()


def autoreset_mode(env: Any, name: str) -> Literal["same", "next"]:
    """How a gymnasium vector env begins the next episode, as it declares."""
    declared = env.metadata.get("autoreset_mode")
    mode = getattr(declared, "value", declared)
    if mode == "NextStep":
        return "next"
    if mode == "SameStep":
        return "same"
    raise UsageError(
        f"{name}: metadata['autoreset_mode'] is {mode!r}, expected AutoresetMode.NEXT_STEP or AutoresetMode.SAME_STEP"
    )


def first_frame(frames: Any, name: str) -> np.ndarray:
    """One picture from what an env's `render` returned."""
    frame = frames[0] if isinstance(frames, list | tuple) and frames else frames
    if not isinstance(frame, np.ndarray):
        raise UsageError(f"{name} drew no picture; give it the env argument render_mode=rgb_array")
    return frame


def _follow(value: Any, keys: tuple[Any, ...]) -> Any:
    for key in keys:
        value = value[key]
    return value
