"""What a network may say of an action's return: its mean, a distribution over fixed places, or quantiles; and the loss
of each against what the next state promises."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor


class Value(Protocol):
    """`outputs` are `[..., size]` of an action. The loss of what was said of the taken actions `[B, size]`, given what is
    said of the next state's `[B, size]`, for each row; and how wrong each row was, for priorities."""

    size: int

    def mean(self, outputs: Tensor) -> Tensor: ...
    def loss(self, taken: Tensor, following: Tensor, gain: Tensor, discount: Tensor) -> tuple[Tensor, Tensor]: ...


class Mean:
    """The mean alone, with the Huber loss."""

    size = 1

    def mean(self, outputs: Tensor) -> Tensor:
        return outputs[..., 0]

    def loss(self, taken: Tensor, following: Tensor, gain: Tensor, discount: Tensor) -> tuple[Tensor, Tensor]:
        target = gain + discount * following[:, 0]
        error = target - taken[:, 0]
        return huber(error), error.detach().abs()


class Categorical:
    """Probabilities of `size` returns, evenly from `low` to `high` (C51; Bellemare et al., 2017), as logits."""

    def __init__(self, low: float, high: float, size: int, device: torch.device) -> None:
        self.low, self.high, self.size = low, high, size
        self.support = torch.linspace(low, high, size, device=device)

    def mean(self, outputs: Tensor) -> Tensor:
        return outputs.softmax(-1) @ self.support

    def project(self, probabilities: Tensor, gain: Tensor, discount: Tensor) -> Tensor:
        """The distribution of gain + discount * return, each place's share given to the two nearest of the support."""
        places = (gain[:, None] + discount[:, None] * self.support).clamp(self.low, self.high)
        steps = (places - self.low) / ((self.high - self.low) / (self.size - 1))
        number = torch.arange(self.size, device=steps.device)
        shares = (1.0 - (steps[:, None, :] - number[:, None]).abs()).clamp(min=0.0)
        return (shares @ probabilities[:, :, None])[..., 0]

    def loss(self, taken: Tensor, following: Tensor, gain: Tensor, discount: Tensor) -> tuple[Tensor, Tensor]:
        target = self.project(following.softmax(-1), gain, discount)
        cross = -(target * taken.log_softmax(-1)).sum(-1)
        divergence = cross.detach() + torch.xlogy(target, target).sum(-1)
        return cross, divergence.clamp(min=0.0)


class Quantiles:
    """The return's quantiles at the middles of `size` equal parts (QR-DQN; Dabney et al., 2018)."""

    def __init__(self, size: int, device: torch.device) -> None:
        self.size = size
        self.levels = (torch.arange(size, device=device) + 0.5) / size

    def mean(self, outputs: Tensor) -> Tensor:
        return outputs.mean(-1)

    def loss(self, taken: Tensor, following: Tensor, gain: Tensor, discount: Tensor) -> tuple[Tensor, Tensor]:
        """Every target pulls at every quantile: upwards by its level, downwards by the rest."""
        target = gain[:, None] + discount[:, None] * following
        error = target[:, None, :] - taken[:, :, None]
        pull = (self.levels[:, None] - (error.detach() < 0).to(error.dtype)).abs()
        loss = (pull * huber(error)).mean(2).sum(1)
        return loss, loss.detach()


def huber(error: Tensor) -> Tensor:
    """Half the square up to 1, and from there on a straight line."""
    size = error.abs()
    inside = size.clamp(max=1.0)
    return inside * (size - 0.5 * inside)
