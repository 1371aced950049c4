"""A policy to be searched for: an MLP in numpy without a value function, which acts by another vector in every row."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from podium.core import seeding
from podium.core.batch import Batch, empty_aligned
from podium.core.errors import UsageError
from podium.core.spaces import Box, Columns, Discrete, Leaf, MultiDiscrete, Space, leaves
from podium.policies.base import Acted, Each, Weights
from podium.policies.choices import choices_for
from podium.policies.filters import Moments, RunningMoments, moments_of

OBS_LIMIT = np.float32(10.0)
BYTE = np.float32(1 / 255)

Layers = Sequence[tuple[np.ndarray, np.ndarray]]


class MlpPolicy:
    """All parameters are one float32 vector: each layer's weights, then its biases. The last layer begins at 0. Pictures
    are seen as the vectors of their pixels."""

    def __init__(self, config: Any, observation_space: Space, action_space: Leaf, seed: int = 0) -> None:
        self.config = config
        self._inputs = Inputs(observation_space)
        self._choices = choices_for(action_space, config)
        sizes = [self._inputs.width, *(config.hidden or ()), self._choices.size]
        self._shapes = list(pairwise(sizes))
        self.parameters = sum((inputs + 1) * outputs for inputs, outputs in self._shapes)
        self._flat = empty_aligned((self.parameters,), np.float32)
        self._flat[:] = 0.0
        self._layers = self._views(self._flat)
        rng = seeding.generator(seed, "model")
        for weights, _ in self._layers[:-1]:
            weights[:] = rng.normal(0.0, 1 / math.sqrt(len(weights)), weights.shape)
        floats = self._inputs.floats if config.normalize_obs else {}
        self._moments = {path: RunningMoments(leaf.shape) for path, leaf in floats.items()}
        self._filter = np.stack([np.zeros(self._inputs.width), np.ones(self._inputs.width)]).astype(np.float32)
        self._rng = seeding.generator(seed, "act")
        self.version = 0
        self.progress = 0.0

    def _views(self, vectors: np.ndarray) -> Layers:
        """The layers of vectors `[..., parameters]`, nothing copied."""
        lead, layers, at = vectors.shape[:-1], [], 0
        for inputs, outputs in self._shapes:
            weights = vectors[..., at : at + inputs * outputs].reshape(*lead, inputs, outputs)
            at += inputs * outputs
            layers.append((weights, vectors[..., at : at + outputs].reshape(*lead, 1, outputs)))
            at += outputs
        return layers

    # --- acting ---

    def initial_state(self, n: int) -> Columns:
        return {}

    def act(self, obs: Columns, state: Columns, mask: np.ndarray | None = None, explore: bool = True) -> Acted:
        x = self._seen(obs, empty_aligned((len(next(iter(obs.values()))), self._inputs.width), np.float32))
        for weights, biases in self._layers[:-1]:
            x = self._activated(x @ weights + biases)
        weights, biases = self._layers[-1]
        return Acted(self._choices.choose(x @ weights + biases, mask, self._rng if explore else None))

    def each(self, vectors: np.ndarray, rng: np.random.Generator) -> Each:
        """Row i acts by `vectors[i]`: one product of many small matrices for each layer."""
        n, layers = len(vectors), self._views(vectors)
        x = empty_aligned((n, 1, self._inputs.width), np.float32)
        outs = [empty_aligned((n, 1, outputs), np.float32) for _, outputs in self._shapes]
        drawing = rng if self._choices.draws else None

        def act(obs: Columns, mask: np.ndarray | None) -> np.ndarray:
            self._seen(obs, x[:, 0])
            h = x
            for (weights, biases), out in zip(layers, outs, strict=True):
                if h is not x:
                    self._activated(h)
                np.matmul(h, weights, out=out)
                out += biases
                h = out
            return self._choices.choose(h[:, 0], mask, drawing)

        return act

    def _activated(self, x: np.ndarray) -> np.ndarray:
        return np.tanh(x, out=x) if self.config.activation == "tanh" else np.maximum(x, 0, out=x)

    def _seen(self, obs: Columns, x: np.ndarray) -> np.ndarray:
        """Observations as the network's inputs, through the filter if there is one, into `x`."""
        self._inputs.write(obs, x)
        if self._moments:
            x -= self._filter[0]
            x *= self._filter[1]
            np.clip(x, -OBS_LIMIT, OBS_LIMIT, out=x)
        return x

    # --- observation filter ---

    @property
    def filtered(self) -> bool:
        return bool(self._moments)

    def observed(self, batch: Batch) -> dict[str, Moments]:
        return {path: moments_of(batch[path][batch["valid"]]) for path in self._moments}

    def merged(self, parts: Sequence[Mapping[str, Moments]]) -> dict[str, Moments]:
        found = {path: RunningMoments(moments.mean.shape) for path, moments in self._moments.items()}
        for part in parts:
            for path, moments in found.items():
                moments.merge(*part[path])
        return {path: (moments.count, moments.mean, moments.squares) for path, moments in found.items()}

    def observe(self, observed: Mapping[str, Moments]) -> None:
        for path, moments in observed.items():
            self._moments[path].merge(*moments)
        self._set_filter()

    def _set_filter(self) -> None:
        for path, moments in self._moments.items():
            place = self._inputs.places[path]
            self._filter[0, place], self._filter[1, place] = moments.mean.ravel(), moments.scale().ravel()

    # --- state ---

    def get_weights(self) -> Weights:
        beside = [self._filter.ravel()] if self._moments else []
        return Weights(np.concatenate([self._flat, *beside]), self.version, self.progress)

    def set_weights(self, weights: Weights) -> None:
        self._flat[:] = weights.flat[: self.parameters]
        if self._moments:
            self._filter[:] = weights.flat[self.parameters :].reshape(self._filter.shape)
        self.version, self.progress = weights.version, weights.progress

    def get_state(self, full: bool = False) -> dict[str, Any]:
        state = {
            "flat": self._flat.copy(),
            "filter": {path: moments.get_state() for path, moments in self._moments.items()},
            "version": self.version,
            "progress": self.progress,
        }
        return {**state, "rng": seeding.get_state(self._rng)} if full else state

    def set_state(self, state: dict[str, Any]) -> None:
        if state["flat"].shape != self._flat.shape:
            raise UsageError(f"the checkpoint has {state['flat'].size} parameters, this policy {self.parameters}")
        self._flat[:] = state["flat"]
        for path, moments in self._moments.items():
            moments.set_state(state["filter"][path])
        self._set_filter()
        self.version, self.progress = state["version"], state["progress"]
        if "rng" in state:
            seeding.set_state(self._rng, state["rng"])


class Inputs:
    """Every leaf of an observation beside the others in one row: numbers as they are, bytes from 0 to 1, choices as a
    one among zeros."""

    def __init__(self, space: Space) -> None:
        self._leaves = leaves(space, "obs")
        self.places: dict[str, slice] = {}
        self.width = 0
        for path, leaf in self._leaves.items():
            size = leaf.n if isinstance(leaf, Discrete) else math.prod(leaf.shape)
            size = sum(leaf.nvec) if isinstance(leaf, MultiDiscrete) else size
            self.places[path] = slice(self.width, self.width + size)
            self.width += size

    @property
    def floats(self) -> dict[str, Box]:
        """The leaves whose numbers have a scale of their own."""
        return {path: leaf for path, leaf in self._leaves.items() if isinstance(leaf, Box) and leaf.dtype != np.uint8}

    def write(self, obs: Columns, x: np.ndarray) -> None:
        for path, leaf in self._leaves.items():
            column, into = obs[path], x[:, self.places[path]]
            if isinstance(leaf, Discrete | MultiDiscrete):
                numbers = column.reshape(len(column), -1)
                starts = np.cumsum([0, *(leaf.nvec[:-1] if isinstance(leaf, MultiDiscrete) else ())])
                into[:] = 0.0
                into[np.arange(len(column))[:, None], numbers + starts] = 1.0
            elif leaf.dtype == np.uint8:
                np.multiply(column.reshape(len(column), -1), BYTE, out=into)
            else:
                into[:] = column.reshape(len(column), -1)
