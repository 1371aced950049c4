"""Parts of one vector of parameters that learn each at its own pace: a step size, moments and clipping for each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from podium.policies.adam import Adam


class Groups:
    """Adam on each named part, `(first, end)` of the vector."""

    def __init__(self, vector: Tensor, parts: Mapping[str, tuple[int, int]], eps: float) -> None:
        self.parts = dict(parts)
        self._adams = {name: Adam(vector[first:end], eps) for name, (first, end) in parts.items()}

    def step(self, gradient: Tensor, lrs: Mapping[str, float], most: float | None) -> None:
        """One update of the parts that have a step size here; each is clipped by its own norm."""
        for name, lr in lrs.items():
            first, end = self.parts[name]
            part = gradient[first:end]
            if most is not None:
                part = part * (most / (torch.linalg.vector_norm(part) + 1e-6)).clamp(max=1.0)
            self._adams[name].step(part, lr)

    def get_state(self) -> dict[str, Any]:
        return {name: adam.get_state() for name, adam in self._adams.items()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        for name, adam in self._adams.items():
            adam.set_state(state[name])
