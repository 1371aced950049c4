"""Action distributions over a network's output: sample, log-probability, entropy, mode; one family per action space."""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from podium.core.errors import UsageError
from podium.core.spaces import Box, Discrete, Leaf, MultiBinary, MultiDiscrete

LOG_2PI = math.log(2 * math.pi)
ILLEGAL = -1e9
EDGE = 1e-6
"""How near to its bounds, as a share, a squashed action is told apart from them."""


class Family(Protocol):
    """`params` are `[B, size]`; `free` parameters follow them, learned but not a function of the observation. `sample`
    and `mode` give (action, log-probability); `entropy` needs the actions where it can only be estimated."""

    size: int
    free: int

    def sample(self, params: Tensor, mask: Tensor | None, rng: torch.Generator) -> tuple[Tensor, Tensor]: ...
    def mode(self, params: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]: ...
    def log_prob(self, params: Tensor, action: Tensor, mask: Tensor | None) -> Tensor: ...
    def entropy(self, params: Tensor, action: Tensor, mask: Tensor | None) -> Tensor: ...


class Categorical:
    """One of n choices."""

    def __init__(self, n: int) -> None:
        self.size, self.free = n, 0

    def sample(self, params: Tensor, mask: Tensor | None, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        logp = _log_softmax(params, mask)
        # The first choice at which the cumulated probability passes a uniform number: one draw per row. An illegal
        # choice adds nothing, and the clamp keeps rounding at the very top on the last legal one.
        cumulated = logp.exp().cumsum(-1)
        draw = torch.rand(len(params), 1, generator=rng, device=params.device) * cumulated[:, -1:]
        action = (cumulated <= draw).sum(-1).clamp_(max=self.size - 1)
        return action, logp.gather(-1, action[:, None])[:, 0]

    def mode(self, params: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        logp, action = _log_softmax(params, mask).max(-1)
        return action, logp

    def log_prob(self, params: Tensor, action: Tensor, mask: Tensor | None) -> Tensor:
        return -F.cross_entropy(_legal(params, mask), action, reduction="none")

    def entropy(self, params: Tensor, action: Tensor, mask: Tensor | None) -> Tensor:
        logp = _log_softmax(params, mask)
        return -(logp.exp() * logp).sum(-1)


class MultiCategorical:
    """Several independent choices; log-probabilities and entropies add up."""

    def __init__(self, nvec: tuple[int, ...]) -> None:
        self.nvec = nvec
        self.size, self.free = sum(nvec), 0
        self._parts = [Categorical(n) for n in nvec]

    def _split(self, params: Tensor, mask: Tensor | None) -> list[tuple[Categorical, Tensor, Tensor | None]]:
        masks = mask.split(self.nvec, -1) if mask is not None else [None] * len(self.nvec)
        return list(zip(self._parts, params.split(self.nvec, -1), masks, strict=True))

    def sample(self, params: Tensor, mask: Tensor | None, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        actions, logps = zip(*(part.sample(p, m, rng) for part, p, m in self._split(params, mask)), strict=True)
        return torch.stack(actions, -1), sum(logps[1:], logps[0])

    def mode(self, params: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        actions, logps = zip(*(part.mode(p, m) for part, p, m in self._split(params, mask)), strict=True)
        return torch.stack(actions, -1), sum(logps[1:], logps[0])

    def log_prob(self, params: Tensor, action: Tensor, mask: Tensor | None) -> Tensor:
        parts = enumerate(self._split(params, mask))
        return torch.stack([part.log_prob(p, action[:, i], m) for i, (part, p, m) in parts]).sum(0)

    def entropy(self, params: Tensor, action: Tensor, mask: Tensor | None) -> Tensor:
        parts = enumerate(self._split(params, mask))
        return torch.stack([part.entropy(p, action[:, i], m) for i, (part, p, m) in parts]).sum(0)


class Bernoulli:
    """n independent zeros and ones, from logits."""

    def __init__(self, n: int) -> None:
        self.size, self.free = n, 0

    def sample(self, params: Tensor, mask: Tensor | None, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        draw = torch.rand(params.shape, generator=rng, device=params.device)
        return self._with_logp(params, draw < params.sigmoid())

    def mode(self, params: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        return self._with_logp(params, params > 0)

    def _with_logp(self, params: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        return action.to(torch.int8), self.log_prob(params, action, None)

    def log_prob(self, params: Tensor, action: Tensor, mask: Tensor | None) -> Tensor:
        return -F.binary_cross_entropy_with_logits(params, action.to(params.dtype), reduction="none").sum(-1)

    def entropy(self, params: Tensor, action: Tensor, mask: Tensor | None) -> Tensor:
        return (F.softplus(params) - params.sigmoid() * params).sum(-1)


class Gaussian:
    """A diagonal normal distribution: `params` are the means, then the log standard deviations."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape
        self.d = int(np.prod(shape))
        self.size, self.free = self.d, self.d

    def _split(self, params: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = params.split(self.d, -1)
        return mean, log_std.clamp(-20.0, 2.0)

    def sample(self, params: Tensor, mask: Tensor | None, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        mean, log_std = self._split(params)
        noise = torch.randn(mean.shape, generator=rng, device=mean.device)
        logp = -0.5 * (noise * noise).sum(-1) - log_std.sum(-1) - 0.5 * self.d * LOG_2PI
        return (mean + log_std.exp() * noise).reshape(-1, *self.shape), logp

    def mode(self, params: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        mean, log_std = self._split(params)
        return mean.reshape(-1, *self.shape), -log_std.sum(-1) - 0.5 * self.d * LOG_2PI

    def log_prob(self, params: Tensor, action: Tensor, mask: Tensor | None) -> Tensor:
        mean, log_std = self._split(params)
        noise = (action.reshape(mean.shape) - mean) * (-log_std).exp()
        return -0.5 * (noise * noise).sum(-1) - log_std.sum(-1) - 0.5 * self.d * LOG_2PI

    def entropy(self, params: Tensor, action: Tensor, mask: Tensor | None) -> Tensor:
        return self._split(params)[1].sum(-1) + 0.5 * self.d * (1.0 + LOG_2PI)

    def moved(self, params: Tensor, action: Tensor) -> Tensor:
        """The same actions as functions of the parameters: mean plus deviation times the noise that made them."""
        mean, log_std = self._split(params)
        noise = ((action.reshape(mean.shape) - mean) * (-log_std).exp()).detach()
        return mean + log_std.exp() * noise


class SquashedGaussian:
    """A normal distribution squeezed through tanh onto the action bounds, with the log-probability of the result.

    The log-probability is always worked out from the action as it is stored, so that acting and learning agree to the
    last bit also where tanh saturates. The entropy has no closed form: its estimate at the sampled noise moves with the
    parameters, since the gradient of minus the log-probability of given actions averages to nothing.
    """

    def __init__(self, low: np.ndarray, high: np.ndarray) -> None:
        self.gaussian = Gaussian(low.shape)
        self.size, self.free = self.gaussian.size, self.gaussian.free
        self.center = torch.as_tensor((high + low) / 2, dtype=torch.float32)
        self.scale = torch.as_tensor((high - low) / 2, dtype=torch.float32)

    def _squash(self, raw: Tensor) -> Tensor:
        return self.center.to(raw.device) + self.scale.to(raw.device) * raw.tanh()

    def _unsquash(self, action: Tensor) -> Tensor:
        unit = (action - self.center.to(action.device)) / self.scale.to(action.device)
        return unit.clamp(-1 + EDGE, 1 - EDGE).atanh()

    def _volume(self, raw: Tensor) -> Tensor:
        """log |d action / d raw|, in the form that stays finite where tanh saturates."""
        flat = raw.reshape(len(raw), -1)
        log_slope = 2.0 * (math.log(2.0) - flat - F.softplus(-2.0 * flat))
        return (log_slope + self.scale.to(raw.device).log().reshape(1, -1)).sum(-1)

    def sample(self, params: Tensor, mask: Tensor | None, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        action = self._squash(self.gaussian.sample(params, mask, rng)[0])
        return action, self.log_prob(params, action, mask)

    def mode(self, params: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        action = self._squash(self.gaussian.mode(params, mask)[0])
        return action, self.log_prob(params, action, mask)

    def log_prob(self, params: Tensor, action: Tensor, mask: Tensor | None) -> Tensor:
        raw = self._unsquash(action)
        return self.gaussian.log_prob(params, raw, mask) - self._volume(raw)

    def entropy(self, params: Tensor, action: Tensor, mask: Tensor | None) -> Tensor:
        moved = self.gaussian.moved(params, self._unsquash(action))
        return self.gaussian.entropy(params, action, mask) + self._volume(moved)


def family_for(space: Leaf, squash: bool = False) -> Family:
    """The distribution that fits an action space."""
    if squash and not (isinstance(space, Box) and space.bounded):
        raise UsageError(f"--squash true needs a bounded Box of actions; this env has {space}")
    if isinstance(space, Discrete):
        return Categorical(space.n)
    if isinstance(space, MultiDiscrete):
        return MultiCategorical(space.nvec)
    if isinstance(space, MultiBinary):
        return Bernoulli(space.n)
    if squash:
        return SquashedGaussian(space.low, space.high)
    return Gaussian(space.shape)


def _legal(logits: Tensor, mask: Tensor | None) -> Tensor:
    return logits if mask is None else logits.masked_fill(~mask, ILLEGAL)


def _log_softmax(logits: Tensor, mask: Tensor | None) -> Tensor:
    return _legal(logits, mask).log_softmax(-1)
