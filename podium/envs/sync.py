"""Single gymnasium envs stepped one after another in this process, with same-step autoreset."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from podium.core import spaces
from podium.core.errors import EnvDataError
from podium.core.spaces import Columns, Leaf, Space
from podium.envs import convert, snapshot
from podium.envs.base import MASK, Stepped
from podium.envs.convert import Reader
from podium.envs.guard import Guard
from podium.envs.gym import first_frame

MaskMethod = Callable[[], Any]


@dataclass(frozen=True)
class Layout:
    """What the arrays of n envs look like, which another process has to know too."""

    observation_space: Space
    action_space: Leaf
    masked: bool

    def arrays(self, n: int) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
        """The shape and dtype of every array by name: `step/...` for what each step writes, `final/...` for ends."""
        leaves = spaces.leaves(self.observation_space, "obs")
        shapes = {f"step/{path}": ((n, *leaf.shape), leaf.dtype) for path, leaf in leaves.items()}
        shapes |= {f"final/{path}": ((n, *leaf.shape), leaf.dtype) for path, leaf in leaves.items()}
        if self.masked:
            shapes[f"step/{MASK}"] = ((n, convert.choices(self.action_space)), np.dtype(bool))
        shapes |= {"reward": ((n,), np.dtype(np.float64))}
        shapes |= {name: ((n,), np.dtype(bool)) for name in ("terminated", "truncated")}
        shapes["action"] = ((n, *self.action_space.shape), self.action_space.dtype)
        return shapes


class SyncVector:
    """`n` envs made by functions, each with its own seed. `first` is the number of the first one in messages."""

    autoreset: Literal["same", "next"] = "same"

    def __init__(self, env_fns: Sequence[Callable[[], Any]], name: str, first: int = 0) -> None:
        self.envs = [make_env() for make_env in env_fns]
        self._name = name
        self._first = first
        self.n = len(self.envs)
        observed = convert.observations(self.envs[0].observation_space)
        self.observation_space = observed.space
        self.action_space = convert.action_space(self.envs[0].action_space)
        self._readers = observed.readers
        self._mask_reader = observed.mask
        self._mask_methods = [method for env in self.envs if (method := mask_method(env)) is not None]
        self.masked = observed.mask is not None or bool(self._mask_methods)
        self.layout = Layout(self.observation_space, self.action_space, self.masked)
        self._to_env = convert.action_converter(self.envs[0].action_space)
        self._bounds = not type(self.envs[0].unwrapped).__module__.startswith("gymnasium.envs.")
        self._steps = 0
        self.write_to({name: np.zeros(*array) for name, array in self.layout.arrays(self.n).items()})

    def write_to(self, arrays: dict[str, np.ndarray]) -> None:
        """Use these arrays (of `layout`) from now on; they may be another process's too."""
        self._columns = {name[5:]: array for name, array in arrays.items() if name.startswith("step/")}
        self._finals = {name[6:]: array for name, array in arrays.items() if name.startswith("final/")}
        self._reward, self._terminated, self._truncated = (arrays[k] for k in ("reward", "terminated", "truncated"))
        leaves = spaces.leaves(self.observation_space, "obs")
        self._slots = [(reader, self._columns[reader.path]) for reader in self._readers]
        self._guard = Guard(leaves, self._columns, self._bounds, self._first)

    def reset(self, seeds: Sequence[int]) -> Columns:
        self._steps = 0
        for i, seed in enumerate(seeds):
            self._begin(i, int(seed))
        self._guard.check_finite(0)
        return self._columns

    def step(self, actions: np.ndarray) -> Stepped:
        self._steps += 1
        reward, terminated, truncated = self._reward, self._terminated, self._truncated
        ended = []
        i = 0
        actions = self._to_env(actions)
        try:
            for i, env in enumerate(self.envs):
                obs, reward[i], over, cut, _ = env.step(actions[i])
                self._write(i, obs)
                terminated[i] = over
                truncated[i] = cut
                if over or cut:
                    ended.append(i)
        except EnvDataError:
            raise
        except Exception as error:
            error.add_note(f"env {self._first + i}, step {self._steps}")
            raise
        self._guard.check(reward, self._steps)
        if not ended:
            return Stepped(self._columns, reward, terminated, truncated)
        rows = np.array(ended)
        finals = self._begin_next(rows)
        return Stepped(self._columns, reward, terminated, truncated, rows, finals)

    def _begin_next(self, rows: np.ndarray) -> Columns:
        """Keep the observations that ended episodes and begin the next ones."""
        for path, final in self._finals.items():
            final[rows] = self._columns[path][rows]
        for row in rows:
            self._begin(int(row), None)
        self._guard.check_finite(self._steps)
        return {path: final[rows] for path, final in self._finals.items()}

    def _begin(self, i: int, seed: int | None) -> None:
        try:
            obs, _ = self.envs[i].reset() if seed is None else self.envs[i].reset(seed=seed)
            self._write(i, obs)
        except EnvDataError:
            raise
        except Exception as error:
            error.add_note(f"env {self._first + i}, step {self._steps}, in reset")
            raise

    def _write(self, i: int, obs: Any) -> None:
        """Write one env's observation and mask into its row."""
        for reader, column in self._slots:
            value = reader.find(obs) if reader.keys else obs
            shape = getattr(value, "shape", None)
            if shape != column.shape[1:] or value.dtype is not column.dtype:
                value = self._fit(i, value, reader, column)
            column[i] = value if reader.offset is None else value - reader.offset
        if self._mask_reader is not None:
            self._columns[MASK][i] = self._mask_reader.find(obs)
        elif self._mask_methods:
            self._columns[MASK][i] = convert.mask_row(self._mask_methods[i]())

    def _fit(self, i: int, value: Any, reader: Reader, column: np.ndarray) -> np.ndarray:
        """The value as an array that its column can hold, or an error that says why not."""
        try:
            array = np.asarray(value)
        except ValueError:
            array = np.asarray(value, object)
        where = f"{reader.path} in env {self._first + i} at step {self._steps}"
        if array.shape != column.shape[1:]:
            raise EnvDataError(f"{where} has shape {array.shape}, expected {column.shape[1:]}")
        if not np.can_cast(array.dtype, column.dtype, "same_kind"):
            raise EnvDataError(f"{where} is {array.dtype}, expected {column.dtype}")
        return array

    def get_state(self) -> dict[str, Any] | None:
        envs = [snapshot.capture(env) for env in self.envs]
        if any(env is None for env in envs):
            return None
        return {"steps": self._steps, "columns": {p: c.copy() for p, c in self._columns.items()}, "envs": envs}

    def set_state(self, state: dict[str, Any]) -> Columns:
        for env, part in zip(self.envs, state["envs"], strict=True):
            env.reset(seed=0)
            snapshot.restore(env, part)
        self._steps = state["steps"]
        for path, column in self._columns.items():
            column[:] = state["columns"][path]
        return self._columns

    def render(self) -> np.ndarray:
        """The first env's picture."""
        return first_frame(self.envs[0].render(), self._name)

    def processes(self) -> list[int]:
        return []

    def close(self) -> None:
        for env in self.envs:
            env.close()


def mask_method(env: Any) -> MaskMethod | None:
    """The env's `action_masks`, of itself or of any wrapper."""
    return env.get_wrapper_attr("action_masks") if env.has_wrapper_attr("action_masks") else None
