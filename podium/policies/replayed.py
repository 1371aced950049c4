"""What policies that learn from a replay share: a target that follows the networks, and errors of what was drawn."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from podium.core.batch import Batch
from podium.core.spaces import leaves
from podium.policies.base import Learned, Reduce, Sgd
from podium.policies.torch import Loaded, Minibatch, TorchPolicy, flatten

NEXT = "next/"


class ReplayedPolicy(TorchPolicy):
    """It learns from what a replay gives: `return`, `discount`, `weight`, and the observations that followed under `next/`.
    The filter of observations sees rows when they are played, not each time that they are drawn."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._target: Any = copy.deepcopy(self.model)
        self._target_flat = flatten(list(self._target.parameters()))
        self._buffers = list(zip(self._target.buffers(), self.model.buffers(), strict=True))
        self._paths = list(leaves(self.observation_space, "obs"))
        self._errors = np.zeros(0, np.float32)

    def learn(self, batch: Batch | Loaded, sgd: Sgd, reduce: Reduce | None = None) -> Learned:
        """A gradient step on what was drawn; `error` says of each how wrong the policy was about it."""
        return Learned(super().learn(batch, sgd, reduce).metrics, {"error": self._errors})

    @torch.no_grad()
    def priorities(self, batch: Batch) -> np.ndarray:
        """How wrong the policy is about each of such transitions, by what whoever plays has of it."""
        now = self.config.at(self.progress)
        minibatch, _ = next(self._ready(batch, now).minibatches(None, np.random.default_rng(0)))
        return self._errors_of(minibatch, now).cpu().numpy()

    def _errors_of(self, minibatch: Minibatch, now: SimpleNamespace) -> torch.Tensor:
        raise NotImplementedError

    def _see(self, batch: Batch, reduce: Reduce | None) -> None:
        """Rows were seen when they were played."""

    @torch.no_grad()
    def _follow(self, share: float = 1.0) -> None:
        """The target goes a share of the way to the networks."""
        self._target_flat.lerp_(self._flat, share)
        for mine, theirs in self._buffers:
            mine.copy_(theirs)

    def get_state(self, full: bool = False) -> dict[str, Any]:
        state = super().get_state(full)
        if full:
            state["target"] = self._target_flat.cpu().numpy().copy()
        return state

    def set_state(self, state: dict[str, Any]) -> None:
        super().set_state(state)
        self._follow()
        if "target" in state:
            self._target_flat.copy_(torch.from_numpy(state["target"].copy()))
