"""Deep deterministic policy gradients (Lillicrap et al., 2016)."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from podium.algorithms.common.actor_q import PointConfig, actor_q
from podium.algorithms.common.tuned import tuned
from podium.core.config import setting
from podium.core.spaces import Leaf
from podium.policies.acting import Point, deterministic
from podium.policies.actor_q import Nets, squared
from podium.policies.torch import Minibatch, Report


@dataclass(frozen=True)
class DDPGConfig(PointConfig):
    """DDPG's own settings."""

    critics: int = setting(1, "of which the least is believed", low=1, high=100)


def loss(nets: Nets, rows: Minibatch, now: SimpleNamespace) -> tuple[dict[str, Tensor], Tensor, Report]:
    """The critic towards the rewards and the worth of the target's next action; the actor towards what it calls good."""
    with torch.no_grad():
        following = nets.acting.mode(nets.target.act(nets.after), None)
        target = rows["return"] + rows["discount"] * nets.acting.worth(nets.targets(), following).amin(0)
    critic_loss, errors = squared(nets.errors(target), rows["weight"])
    chosen = nets.acting.mode(nets.model.act(nets.obs), None)
    worth = nets.acting.worth(nets.frozen(), chosen).amin(0)
    losses = {"actor": -worth.mean(), "critic": critic_loss}
    return losses, errors, {"q": lambda: worth.mean(), "td_error": lambda: errors.mean()}


def make_acting(config: Any, space: Leaf, where: torch.device) -> Point:
    return deterministic("ddpg", config, space, where)


ALGORITHM = actor_q("ddpg", DDPGConfig, loss, make_acting, tuned("ddpg"))
