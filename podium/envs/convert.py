"""From gymnasium's spaces to Podium's: what is observed and where it is read, how actions are handed over, masks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from podium.core import spaces
from podium.core.errors import UsageError
from podium.core.spaces import Leaf, Space

MASK_KEY = "action_mask"
SUPPORTED = "Box, Discrete, MultiDiscrete, MultiBinary, Dict and Tuple"


class Reader(NamedTuple):
    """How one column is read from an env's nested observation: the keys to follow, and what to subtract."""

    path: str
    keys: tuple[Any, ...]
    leaf: Leaf
    offset: np.ndarray | None

    def find(self, value: Any) -> Any:
        for key in self.keys:
            value = value[key]
        return value


class Observations(NamedTuple):
    """What an env observes: Podium's space, the columns' readers, and the reader of a mask inside the observation."""

    space: Space
    readers: list[Reader]
    mask: Reader | None


def observations(space: Any) -> Observations:
    """Convert an observation space; a top-level `action_mask` leaves it and becomes the mask."""
    import gymnasium

    mask = None
    if isinstance(space, gymnasium.spaces.Dict) and MASK_KEY in space.spaces:
        mask = Reader("mask", (MASK_KEY,), to_leaf(space[MASK_KEY], f"obs/{MASK_KEY}"), None)
        space = gymnasium.spaces.Dict({key: inner for key, inner in space.spaces.items() if key != MASK_KEY})
    converted = to_space(space, "obs")
    return Observations(converted, _readers(space, "obs", ()), mask)


def to_space(space: Any, path: str) -> Space:
    """Podium's counterpart of a gymnasium space."""
    import gymnasium

    if isinstance(space, gymnasium.spaces.Dict):
        return spaces.Dict({key: to_space(inner, f"{path}/{key}") for key, inner in space.spaces.items()})
    if isinstance(space, gymnasium.spaces.Tuple):
        return spaces.Tuple(tuple(to_space(inner, f"{path}/{i}") for i, inner in enumerate(space.spaces)))
    return to_leaf(space, path)


def to_leaf(space: Any, path: str) -> Leaf:
    """Podium's counterpart of a space that is one array; whole numbers are shifted to start at 0."""
    import gymnasium

    gym = gymnasium.spaces
    if isinstance(space, gym.Box):
        return spaces.Box(space.low, space.high, np.dtype(space.dtype))
    if isinstance(space, gym.Discrete):
        return spaces.Discrete(int(space.n), int(space.start))
    if isinstance(space, gym.MultiDiscrete) and space.nvec.ndim == 1:
        starts = tuple(int(first) for first in space.start) if space.start.any() else ()
        return spaces.MultiDiscrete(tuple(int(n) for n in space.nvec), starts)
    if isinstance(space, gym.MultiDiscrete):
        return spaces.Box(np.zeros_like(space.nvec), space.nvec - 1, np.dtype(space.dtype))
    if isinstance(space, gym.MultiBinary):
        return (
            spaces.MultiBinary(int(space.shape[0]))
            if len(space.shape) == 1
            else spaces.Box.of(0, 1, space.shape, np.int8)
        )
    raise UsageError(f"{path} is a {type(space).__name__} space, which is not supported; supported are {SUPPORTED}")


def action_space(space: Any) -> Leaf:
    """Podium's counterpart of an action space."""
    import gymnasium

    gym = gymnasium.spaces
    shape = getattr(space, "shape", None) or ()
    several_axes = isinstance(space, gym.MultiDiscrete | gym.MultiBinary) and len(shape) > 1
    if isinstance(space, gym.Dict | gym.Tuple) or several_axes:
        raise UsageError(
            f"the action space {space} is not supported: expected one Box, Discrete, MultiDiscrete or MultiBinary "
            "of one axis (flatten it in the env)"
        )
    return to_leaf(space, "action")


def action_converter(space: Any) -> Callable[[np.ndarray], np.ndarray]:
    """From Podium's actions `[n, ...]` to the env's: shifted to its start, or clipped to its bounds."""
    leaf, offset = action_space(space), _offset(space)
    if isinstance(leaf, spaces.Discrete):
        return _unchanged if offset is None else lambda actions: actions + offset
    if not isinstance(leaf, spaces.Box):
        start = np.zeros(leaf.shape, leaf.dtype) if offset is None else offset
        return lambda actions: (actions + start).astype(leaf.dtype, copy=False)
    return clipper(leaf)


def clipper(box: spaces.Box) -> Callable[[np.ndarray], np.ndarray]:
    """Clips actions to a Box, in its dtype; always a new array, so that an env may keep its row."""
    low, high, dtype = box.low, box.high, box.dtype
    if dtype.kind in "iu":
        return lambda actions: np.clip(np.rint(actions), low, high).astype(dtype)
    if np.isinf(low).all() and np.isinf(high).all():
        return lambda actions: actions.astype(dtype)
    return lambda actions: np.minimum(np.maximum(actions, low), high).astype(dtype, copy=False)


def choices(action: Leaf) -> int:
    """How many actions a mask row speaks of."""
    if isinstance(action, spaces.Discrete):
        return action.n
    if isinstance(action, spaces.MultiDiscrete):
        return sum(action.nvec)
    raise UsageError(f"action masks go with Discrete and MultiDiscrete actions; this env's are {action}")


def legal_sample(action: Leaf, mask: np.ndarray | None, rng: np.random.Generator, n: int) -> np.ndarray:
    """Random actions for n envs, legal by the mask rows where there are any."""
    if mask is None:
        return action.sample(rng, n)
    weights = rng.random(mask.shape) * mask
    if isinstance(action, spaces.Discrete):
        return weights.argmax(axis=1)
    assert isinstance(action, spaces.MultiDiscrete)
    parts = np.split(weights, np.cumsum(action.nvec)[:-1], axis=1)
    return np.stack([part.argmax(axis=1) for part in parts], axis=1)


def mask_row(masks: Any) -> np.ndarray:
    """What an env's `action_masks()` returned, as one row (or rows) of bools."""
    return np.asarray(masks if isinstance(masks, np.ndarray) else np.hstack(masks), bool)


def _unchanged(actions: np.ndarray) -> np.ndarray:
    return actions


def _readers(space: Any, path: str, keys: tuple[Any, ...]) -> list[Reader]:
    import gymnasium

    if isinstance(space, gymnasium.spaces.Dict | gymnasium.spaces.Tuple):
        inside = space.spaces.items() if isinstance(space, gymnasium.spaces.Dict) else enumerate(space.spaces)
        return [reader for key, inner in inside for reader in _readers(inner, f"{path}/{key}", (*keys, key))]
    return [Reader(path, keys, to_leaf(space, path), _offset(space))]


def _offset(space: Any) -> np.ndarray | None:
    start = np.asarray(getattr(space, "start", 0))
    return start if start.any() else None
