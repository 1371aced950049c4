"""Changes to a vector env by whole columns: frame stacking, hidden elements, actions rescaled to -1 to 1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from podium.core import spaces
from podium.core.errors import UsageError
from podium.core.spaces import Box, Columns, Leaf, Space
from podium.envs.base import Stepped, VectorEnv

CHANNELS = (1, 3, 4)


class Wrapper:
    """A vector env around another one, the same until a subclass changes something."""

    def __init__(self, env: VectorEnv) -> None:
        self.env = env
        self.n = env.n
        self.observation_space: Space = env.observation_space
        self.action_space: Leaf = env.action_space
        self.masked = env.masked
        self.autoreset: Literal["same", "next"] = env.autoreset
        self.frames_per_step: int = getattr(env, "frames_per_step", 1)

    def reset(self, seeds: Sequence[int]) -> Columns:
        return self.env.reset(seeds)

    def step(self, actions: np.ndarray) -> Stepped:
        return self.env.step(actions)

    def get_state(self) -> dict[str, Any] | None:
        return self.env.get_state()

    def set_state(self, state: dict[str, Any]) -> Columns:
        return self.env.set_state(state)

    def render(self) -> np.ndarray:
        return self.env.render()

    def processes(self) -> list[int]:
        return self.env.processes()

    def close(self) -> None:
        self.env.close()


class RescaleActions(Wrapper):
    """Actions from -1 to 1, stretched to the env's bounds and clipped there."""

    def __init__(self, env: VectorEnv) -> None:
        super().__init__(env)
        box = env.action_space
        if not isinstance(box, Box) or box.dtype.kind != "f" or not box.bounded:
            raise UsageError(f"rescaling actions needs a Box of bounded real numbers; this env's actions are {box}")
        self._middle = (box.high + box.low) / 2
        self._half = (box.high - box.low) / 2
        self.action_space = Box.of(-1, 1, box.shape, box.dtype)

    def step(self, actions: np.ndarray) -> Stepped:
        return self.env.step(self._middle + self._half * actions)


class Elements(Wrapper):
    """Some elements of a vector observation, the others hidden."""

    def __init__(self, env: VectorEnv, elements: Sequence[int]) -> None:
        super().__init__(env)
        box = env.observation_space
        if not isinstance(box, Box) or len(box.shape) != 1:
            raise UsageError(f"hiding elements needs a Box of one axis; this env observes {box}")
        self._elements = list(elements)
        self.observation_space = Box(box.low[self._elements], box.high[self._elements], box.dtype)

    def reset(self, seeds: Sequence[int]) -> Columns:
        return self._shown(self.env.reset(seeds))

    def step(self, actions: np.ndarray) -> Stepped:
        stepped = self.env.step(actions)
        finals = None if stepped.finals is None else self._shown(stepped.finals)
        return stepped._replace(obs=self._shown(stepped.obs), finals=finals)

    def set_state(self, state: dict[str, Any]) -> Columns:
        return self._shown(self.env.set_state(state))

    def _shown(self, columns: Columns) -> Columns:
        return {**columns, "obs": columns["obs"].take(self._elements, axis=1)}


class FrameStack(Wrapper):
    """The last `k` observations as one, the oldest first; an episode's first observation fills the places before it.

    Vectors and images with channels first join along their first axis ([d] to [k*d], [C, H, W] to [k*C, H, W]), images
    with channels last along their last one, and plain images and scalars get a new first axis ([H, W] to [k, H, W]).
    """

    def __init__(self, env: VectorEnv, k: int) -> None:
        if k < 1:
            raise UsageError(f"a stack of {k} frames, expected at least 1")
        super().__init__(env)
        self._k = k
        self._leaves = spaces.leaves(env.observation_space, "obs")
        self.observation_space = _stacked_space(env.observation_space, k)
        self.frames = {path: spaces.Frames(k, 2 if _channels_last(leaf) else 0) for path, leaf in self._leaves.items()}
        self._frames = {p: np.zeros((self.n, k, *leaf.shape), leaf.dtype) for p, leaf in self._leaves.items()}
        self._over = np.zeros(self.n, bool)

    def reset(self, seeds: Sequence[int]) -> Columns:
        obs = self.env.reset(seeds)
        self._over[:] = False
        for path, frames in self._frames.items():
            frames[:] = obs[path][:, None]
        return self._joined(obs)

    def step(self, actions: np.ndarray) -> Stepped:
        stepped = self.env.step(actions)
        began = self._over if self.autoreset == "next" else stepped.final_rows
        finals = self._stacked_finals(stepped)
        for path, frames in self._frames.items():
            new = stepped.obs[path]
            frames[:, :-1] = frames[:, 1:]
            frames[:, -1] = new
            if began is not None:
                frames[began] = new[began][:, None]
        if self.autoreset == "next":
            np.logical_or(stepped.terminated, stepped.truncated, out=self._over)
        return stepped._replace(obs=self._joined(stepped.obs), finals=finals)

    def _stacked_finals(self, stepped: Stepped) -> Columns | None:
        """The ends of episodes still stand on their own episode's frames."""
        if stepped.finals is None:
            return None
        finals = {}
        for path, final in stepped.finals.items():
            frames = np.concatenate([self._frames[path][stepped.final_rows][:, 1:], final[:, None]], axis=1)
            finals[path] = _join(frames, self._leaves[path])
        return finals

    def _joined(self, obs: Columns) -> Columns:
        return {**obs, **{path: _join(frames, self._leaves[path]) for path, frames in self._frames.items()}}

    def get_state(self) -> dict[str, Any] | None:
        inner = self.env.get_state()
        if inner is None:
            return None
        frames = {path: frames.copy() for path, frames in self._frames.items()}
        return {"env": inner, "frames": frames, "over": self._over.copy()}

    def set_state(self, state: dict[str, Any]) -> Columns:
        obs = self.env.set_state(state["env"])
        self._over[:] = state["over"]
        for path, frames in self._frames.items():
            frames[:] = state["frames"][path]
        return self._joined(obs)


def _channels_last(leaf: Leaf) -> bool:
    shape = leaf.shape
    return len(shape) == 3 and shape[-1] in CHANNELS and shape[0] not in CHANNELS


def _join(frames: np.ndarray, leaf: Leaf) -> np.ndarray:
    """`[n, k, ...]` as the stacked observation `[n, ...]`."""
    if len(leaf.shape) in (0, 2):
        return frames
    n, k, first, *rest = frames.shape
    if _channels_last(leaf):
        return np.moveaxis(frames, 1, -2).reshape(n, first, rest[0], k * rest[1])
    return frames.reshape(n, k * first, *rest)


def _stacked_space(space: Space, k: int) -> Space:
    if isinstance(space, spaces.Dict):
        return spaces.Dict({key: _stacked_space(inner, k) for key, inner in space.spaces.items()})
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple(tuple(_stacked_space(inner, k) for inner in space.spaces))
    if isinstance(space, spaces.Discrete):
        return spaces.MultiDiscrete((space.n,) * k, (space.start,) * k if space.start else ())
    if isinstance(space, spaces.MultiDiscrete):
        return spaces.MultiDiscrete(space.nvec * k, space.start * k)
    if isinstance(space, spaces.MultiBinary):
        return spaces.MultiBinary(space.n * k)
    low, high = (_join(np.stack([bound] * k)[None], space)[0] for bound in (space.low, space.high))
    return Box(low, high, space.dtype)
