"""From a network's outputs to actions, in numpy: the best choice, or one that is drawn."""

from __future__ import annotations

import math
from typing import Any, Protocol

import numpy as np

from podium.core.errors import UsageError
from podium.core.spaces import Box, Discrete, Leaf, MultiBinary

ILLEGAL = np.float32(-1e9)


class Choices(Protocol):
    """`choose` makes actions of outputs `[n, size]`, with a generator by chance. `draws` says whether the settings ask for
    chance where perturbations are played."""

    size: int
    draws: bool

    def choose(self, outputs: np.ndarray, mask: np.ndarray | None, rng: np.random.Generator | None) -> np.ndarray: ...


class OneOfMany:
    """One choice, or several independent ones side by side; by chance with the softmax's probabilities."""

    def __init__(self, nvec: tuple[int, ...], single: bool, draws: bool) -> None:
        self.size, self.draws = sum(nvec), draws
        self._single = single
        self._parts = [slice(end - n, end) for n, end in zip(nvec, np.cumsum(nvec), strict=True)]

    def choose(self, outputs: np.ndarray, mask: np.ndarray | None, rng: np.random.Generator | None) -> np.ndarray:
        scores = outputs if mask is None else np.where(mask, outputs, ILLEGAL)
        if rng is not None:  # the greatest after Gumbel noise is drawn as the softmax has it
            scores = scores - np.log(-np.log(rng.random(scores.shape, np.float32).clip(1e-20, 1 - 1e-7)))
        if self._single:
            return scores.argmax(1)
        return np.stack([scores[:, part].argmax(1) for part in self._parts], 1)


class Bits:
    """Independent zeros and ones, from logits."""

    def __init__(self, n: int, draws: bool) -> None:
        self.size, self.draws = n, draws

    def choose(self, outputs: np.ndarray, mask: np.ndarray | None, rng: np.random.Generator | None) -> np.ndarray:
        ones = outputs > 0 if rng is None else rng.random(outputs.shape, np.float32) < 1 / (1 + np.exp(-outputs))
        return ones.astype(np.int8)


class Numbers:
    """The outputs themselves, squashed onto the bounds if asked for; by chance with normal noise."""

    def __init__(self, box: Box, squash: bool, noise: float) -> None:
        self.size, self.draws = math.prod(box.shape), noise > 0
        self._shape, self._noise = box.shape, np.float32(noise)
        self._bounds = (box.low + box.high) / 2, (box.high - box.low) / 2
        self._squash = squash

    def choose(self, outputs: np.ndarray, mask: np.ndarray | None, rng: np.random.Generator | None) -> np.ndarray:
        action = outputs.reshape(len(outputs), *self._shape)
        if self._squash:
            middle, half = self._bounds
            action = (middle + half * np.tanh(action)).astype(np.float32)
        if rng is not None and self.draws:
            return action + self._noise * rng.standard_normal(action.shape, np.float32)
        return action.copy()


def choices_for(space: Leaf, config: Any) -> Choices:
    """What fits an action space; a setting that it would not read is refused."""
    if isinstance(space, Box):
        if config.sample_actions:
            raise UsageError(f"--sample-actions true would not be read: it is of choices, and the actions are {space}")
        if config.squash and not space.bounded:
            raise UsageError(f"--squash true needs a bounded Box of actions; this env has {space}")
        return Numbers(space, config.squash, config.action_noise)
    for name, unread in (("--squash", config.squash), ("--action-noise", config.action_noise)):
        if unread:
            given = "true" if unread is True else f"{unread:g}"
            raise UsageError(f"{name} {given} would not be read: it is of numbers, and the actions are {space}")
    if isinstance(space, MultiBinary):
        return Bits(space.n, config.sample_actions)
    nvec = (space.n,) if isinstance(space, Discrete) else space.nvec
    return OneOfMany(nvec, isinstance(space, Discrete), config.sample_actions)
