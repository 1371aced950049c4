"""Adam (Kingma and Ba, 2015) over one flat vector: a handful of whole-vector operations, and its state as plain arrays."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor


class Adam:
    """Updates a vector in place. torch's own optimizer spends most of a small update in looking after groups and hooks,
    which one vector has no use for."""

    def __init__(self, vector: Tensor, eps: float, betas: tuple[float, float] = (0.9, 0.999)) -> None:
        self._vector, self._eps, self._betas = vector, eps, betas
        self._mean, self._square = torch.zeros_like(vector), torch.zeros_like(vector)
        self._steps = 0

    @torch.no_grad()
    def step(self, gradient: Tensor, lr: float) -> None:
        """One update against the gradient."""
        first, second = self._betas
        self._steps += 1
        self._mean.lerp_(gradient, 1 - first)
        self._square.mul_(second).addcmul_(gradient, gradient, value=1 - second)
        # The second moment's bias stands in front, and beside epsilon, instead of under every root.
        bias = math.sqrt(1 - second**self._steps)
        spread = self._square.sqrt().add_(self._eps * bias)
        self._vector.addcdiv_(self._mean, spread, value=-lr * bias / (1 - first**self._steps))

    def get_state(self) -> dict[str, np.ndarray | int]:
        mean, square = (part.cpu().numpy().copy() for part in (self._mean, self._square))
        return {"mean": mean, "square": square, "steps": self._steps}

    def set_state(self, state: dict[str, np.ndarray | int]) -> None:
        self._mean.copy_(torch.as_tensor(state["mean"]))
        self._square.copy_(torch.as_tensor(state["square"]))
        self._steps = int(state["steps"])
