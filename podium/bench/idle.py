"""Samplers, learners and policies that do nothing, so that what is measured is what goes on around them. No framework is
imported here: worker processes stay small."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from podium.core.batch import Batch
from podium.core.spaces import Columns
from podium.evaluation.sample import Report
from podium.policies.base import Acted, Learned, Reduce, Sgd, Weights


class Sampler:
    """Returns the same bytes each time."""

    def __init__(self, nbytes: int) -> None:
        self._sample = np.zeros(nbytes, np.uint8)

    def sample(self, steps: int, weights: Weights) -> np.ndarray:
        return self._sample


class Learner:
    """Has the samples brought to it, and does nothing with them."""

    def get_weights(self, progress: float) -> Weights:
        return Weights(np.zeros(1, np.float32), 0, progress)

    def learn(self, samples: Sequence[Any], sgd: Sgd) -> Report:
        return Report()


class ConstantPolicy:
    """Many parameters, the same gradient each time, and one action."""

    def __init__(self, parameters: int) -> None:
        self.parameters, self.version, self.progress = parameters, 0, 0.0
        self._flat = np.zeros(parameters, np.float32)
        self._gradient = np.full(parameters, 1e-3, np.float32)

    def initial_state(self, n: int) -> Columns:
        return {}

    def act(self, obs: Columns, state: Columns, mask: np.ndarray | None = None, explore: bool = True) -> Acted:
        return Acted(np.zeros(len(obs["obs"]), np.int64))

    def values(self, obs: Columns, state: Columns) -> np.ndarray:
        return np.zeros(len(obs["obs"]), np.float32)

    def postprocess(self, batch: Batch) -> Batch:
        return batch

    def load(self, batch: Batch, limit: int | None = None) -> Batch:
        return batch

    def learn(self, batch: Batch, sgd: Sgd, reduce: Reduce | None = None) -> Learned:
        return Learned({})

    def gradients(self, batch: Batch, sgd: Sgd) -> tuple[np.ndarray, dict[str, float]]:
        return self._gradient, {"gradient_norm": 1.0}

    def apply(self, flat: np.ndarray, sgd: Sgd) -> None:
        self.version += 1

    def observed(self, batch: Batch) -> Mapping[str, Any]:
        return {}

    def observe(self, observed: Mapping[str, Any]) -> None:
        """It has no filters."""

    def get_weights(self) -> Weights:
        return Weights(self._flat, self.version, self.progress)

    def set_weights(self, weights: Weights) -> None:
        self._flat, self.version, self.progress = weights.flat, weights.version, weights.progress

    def get_state(self, full: bool = False) -> dict[str, Any]:
        return {"flat": self._flat, "version": self.version, "progress": self.progress}

    def set_state(self, state: dict[str, Any]) -> None:
        self._flat, self.version, self.progress = state["flat"], state["version"], state["progress"]
