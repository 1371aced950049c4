"""What a network may say of an action's return: its mean, a distribution over fixed places, or quantiles; and the loss
of each against what the next state promises."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

SLOPE = 1e-3
"""Of the line beside the root, so that the rescaling has an inverse that is not steep."""


def shrink(x: Tensor) -> Tensor:
    """Large returns made small (Pohlen et al., 2018): the root of 1 + |x| less 1, with x's sign, and a thousandth of x."""
    return x.sign() * ((x.abs() + 1.0).sqrt() - 1.0) + SLOPE * x


def stretch(x: Tensor) -> Tensor:
    """The inverse of `shrink`, in a form that takes no small difference of large numbers."""
    over = x.abs() + 1.0 + SLOPE
    root = 2.0 * over / ((1.0 + 4.0 * SLOPE * over).sqrt() + 1.0)
    return x.sign() * (root.square() - 1.0)


@dataclass(frozen=True)
class Scale:
    """How returns are learned: `learned` of a return is what the network says, `worth` of that is the return."""

    learned: Callable[[Tensor], Tensor]
    worth: Callable[[Tensor], Tensor]


def _as_it_is(x: Tensor) -> Tensor:
    return x


PLAIN, RESCALED = Scale(_as_it_is, _as_it_is), Scale(shrink, stretch)


class Value(Protocol):
    """`outputs` are `[..., size]` of an action, `mean` the mean return that they stand for. The loss of what was said of
    the taken actions `[B, size]`, given what is said of the next state's `[B, size]`, for each row; and how wrong each
    row was, for priorities."""

    size: int

    def mean(self, outputs: Tensor) -> Tensor: ...
    def loss(self, taken: Tensor, following: Tensor, gain: Tensor, discount: Tensor) -> tuple[Tensor, Tensor]: ...


class Mean:
    """The mean alone, with the Huber loss."""

    size = 1

    def __init__(self, scale: Scale = PLAIN) -> None:
        self.scale = scale

    def mean(self, outputs: Tensor) -> Tensor:
        return self.scale.worth(outputs[..., 0])

    def loss(self, taken: Tensor, following: Tensor, gain: Tensor, discount: Tensor) -> tuple[Tensor, Tensor]:
        target = self.scale.learned(gain + discount * self.scale.worth(following[:, 0]))
        error = target - taken[:, 0]
        return huber(error), error.detach().abs()


class Categorical:
    """Probabilities of `size` returns from `low` to `high` (C51; Bellemare et al., 2017), as logits; they lie evenly on
    the scale that is learned."""

    def __init__(self, low: float, high: float, size: int, device: torch.device, scale: Scale = PLAIN) -> None:
        self.low, self.high = scale.learned(torch.tensor([low, high])).tolist()
        self.size, self.scale = size, scale
        self.support = torch.linspace(self.low, self.high, size, device=device)
        self.returns = scale.worth(self.support)

    def mean(self, outputs: Tensor) -> Tensor:
        return outputs.softmax(-1) @ self.returns

    def project(self, probabilities: Tensor, gain: Tensor, discount: Tensor) -> Tensor:
        """The distribution of gain + discount * return, each place's share given to the two nearest of the support."""
        places = self.scale.learned(gain[:, None] + discount[:, None] * self.returns).clamp(self.low, self.high)
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

    def __init__(self, size: int, device: torch.device, scale: Scale = PLAIN) -> None:
        self.size, self.scale = size, scale
        self.levels = (torch.arange(size, device=device) + 0.5) / size

    def mean(self, outputs: Tensor) -> Tensor:
        return self.scale.worth(outputs).mean(-1)

    def loss(self, taken: Tensor, following: Tensor, gain: Tensor, discount: Tensor) -> tuple[Tensor, Tensor]:
        """Every target pulls at every quantile: upwards by its level, downwards by the rest."""
        target = self.scale.learned(gain[:, None] + discount[:, None] * self.scale.worth(following))
        error = target[:, None, :] - taken[:, :, None]
        pull = (self.levels[:, None] - (error.detach() < 0).to(error.dtype)).abs()
        loss = (pull * huber(error)).mean(2).sum(1)
        return loss, loss.detach()


def huber(error: Tensor) -> Tensor:
    """Half the square up to 1, and from there on a straight line."""
    size = error.abs()
    inside = size.clamp(max=1.0)
    return inside * (size - 0.5 * inside)
