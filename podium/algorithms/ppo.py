"""Proximal policy optimization (Schulman et al., 2017): several clipped passes over each sample."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import torch
from torch import Tensor
from torch.nn.functional import mse_loss as squared_error

from podium.algorithms.common.on_policy import (
    OLD_SAMPLES,
    ONE_GRADIENT,
    ActorCriticConfig,
    CriticConfig,
    advantages,
    normalized,
    on_policy,
)
from podium.algorithms.common.tuned import tuned
from podium.core.config import Schedule, setting
from podium.policies.torch import Minibatch, Out, Report


@dataclass(frozen=True)
class ClippedConfig(CriticConfig):
    """The settings of the clipped passes; the defaults are for small classic control tasks."""

    steps: int = setting(100_000, "end after the first iteration with this many env steps", unit="env steps", low=1)
    fragment: int = setting(128, "steps per env in a sample", unit="steps", low=1)
    minibatch: int = setting(64, "rows per gradient step", unit="rows", low=1)
    epochs: int | Schedule = setting(10, "passes over each sample", low=1)
    lr: float | Schedule = setting(Schedule.parse("1e-3->0"), "Adam's step size", low=0, high=10)
    clip: float | Schedule = setting(0.2, "how far the probability ratio may leave 1 with profit", low=0)
    value_clip: float | Schedule | None = setting(None, "how far a value may move in one update", above=0)
    target_kl: float | Schedule | None = setting(None, "skip the remaining passes above 1.5 times this KL", above=0)


@dataclass(frozen=True)
class PPOConfig(ClippedConfig, ActorCriticConfig):
    """PPO's own settings."""


def loss(out: Out, rows: Minibatch, now: SimpleNamespace) -> tuple[Tensor, Report]:
    """The clipped surrogate, the value loss and the entropy bonus."""
    log_ratio = out.logp - rows["logp"]
    ratio = log_ratio.exp()
    advantage = normalized(rows["advantage"], now)
    # The paper's minimum of the ratio and the clipped ratio, times the advantage: beyond the clip there is no profit.
    most = advantage + now.clip * advantage.abs()
    policy_loss = -torch.min(ratio * advantage, most).mean()

    error = squared_error(out.value, rows["return"], reduction="none")
    if now.value_clip is not None:
        near = rows["value"] + (out.value - rows["value"]).clamp(-now.value_clip, now.value_clip)
        error = torch.max(error, squared_error(near, rows["return"], reduction="none"))
    value_loss = 0.5 * error.mean()

    total = policy_loss + now.value_coef * value_loss
    if now.entropy:
        total = total - now.entropy * out.entropy.mean()
    return total, {
        "policy_loss": policy_loss,
        "value_loss": value_loss,
        "entropy": lambda: out.entropy.mean(),
        "kl": lambda: (ratio - 1 - log_ratio).mean(),
        "clipped": lambda: ((ratio - 1).abs() > now.clip).float().mean(),
    }


REFUSED = {"async_samples": OLD_SAMPLES, "async_gradients": ONE_GRADIENT, "parameter_server": ONE_GRADIENT}
ALGORITHM = on_policy("ppo", PPOConfig, loss, advantages, presets=tuned("ppo"), refused=REFUSED)
