"""Twin delayed deep deterministic policy gradients (Fujimoto et al., 2018)."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from podium.algorithms.common.actor_q import PointConfig, actor_q
from podium.algorithms.common.tuned import tuned
from podium.core.config import Schedule, setting
from podium.core.spaces import Leaf
from podium.policies.acting import Point, deterministic
from podium.policies.actor_q import Nets, squared
from podium.policies.torch import Minibatch, Report


@dataclass(frozen=True)
class TD3Config(PointConfig):
    """TD3's own settings."""

    policy_delay: int = setting(2, "of the critics for each of the actor and of the targets", unit="updates", low=1)
    target_noise: float | Schedule = setting(
        0.2, "standard deviation of the noise on the targets' actions, in half widths of the bounds", low=0
    )
    target_noise_clip: float | Schedule = setting(0.5, "where that noise is clipped", low=0)


def loss(nets: Nets, rows: Minibatch, now: SimpleNamespace) -> tuple[dict[str, Tensor], Tensor, Report]:
    """Critics towards the rewards and the least worth of a next action with noise; now and then the actor towards what the
    first critic calls good."""
    with torch.no_grad():
        meant = nets.acting.mode(nets.target.act(nets.after), None)
        drawn = torch.randn(meant.shape, generator=nets.rng, device=meant.device)
        chosen = smoothed(meant, drawn, now.target_noise, now.target_noise_clip)
        worth = nets.acting.worth(nets.targets(), chosen).amin(0)
        target = rows["return"] + rows["discount"] * worth
    critic_loss, errors = squared(nets.errors(target), rows["weight"])
    losses = {"critic": critic_loss}
    if nets.update % now.policy_delay == 0:
        chosen = nets.acting.mode(nets.model.act(nets.obs), None)
        losses["actor"] = -nets.acting.worth(nets.frozen(first=1), chosen).mean()
    return losses, errors, {"q": lambda: worth.mean(), "td_error": lambda: errors.mean()}


def smoothed(meant: Tensor, drawn: Tensor, noise: float, clip: float) -> Tensor:
    """Actions with clipped noise, within their bounds."""
    return (meant + (noise * drawn).clamp(-clip, clip)).clamp(-1.0, 1.0)


def make_acting(config: Any, space: Leaf, where: torch.device) -> Point:
    return deterministic("td3", config, space, where)


ALGORITHM = actor_q("td3", TD3Config, loss, make_acting, tuned("td3"))
