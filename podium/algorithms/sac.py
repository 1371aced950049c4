"""Soft actor-critic (Haarnoja et al., 2018): an actor that is paid for its entropy, and critics the least of which counts."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Literal

import torch
from torch import Tensor

from podium.algorithms.common.actor_q import ActorQConfig, actor_q
from podium.algorithms.common.tuned import tuned
from podium.core.config import Schedule, setting
from podium.core.spaces import Leaf
from podium.policies.acting import Choices, Squashed, stochastic
from podium.policies.actor_q import Nets, squared
from podium.policies.torch import Minibatch, Report


@dataclass(frozen=True)
class SACConfig(ActorQConfig):
    """SAC's own settings."""

    entropy: float | Schedule | Literal["auto"] = setting(
        "auto", "weight of the entropy; auto learns the one that keeps it at --target-entropy", low=0
    )
    entropy_start: float = setting(1.0, "where that begins", above=0, only=("entropy", ("auto",)))
    entropy_lr: float | Schedule | None = setting(
        None, "Adam's step size for it; none is --lr", low=0, high=10, only=("entropy", ("auto",))
    )
    target_entropy: float | None = setting(
        None, "of actions from -1 to 1; none is less one for each number, or 0.89 log n", only=("entropy", ("auto",))
    )


def loss(nets: Nets, rows: Minibatch, now: SimpleNamespace) -> tuple[dict[str, Tensor], Tensor, Report]:
    """Critics towards the rewards and what the actor would make of the next state, entropy included; the actor towards
    what critics call good, and entropy; the entropy's weight towards where the actor keeps the entropy that it should."""
    learned = nets.model.entropy
    weight = now.entropy if learned is None else learned[0].detach().exp()
    with torch.no_grad():
        worth, logp = nets.acting.expected(nets.model.act(nets.after), nets.targets(), nets.next_mask, nets.rng)
        target = rows["return"] + rows["discount"] * (worth - weight * logp)
    critic_loss, errors = squared(nets.errors(target), rows["weight"])

    worth, logp = nets.acting.expected(nets.model.act(nets.obs), nets.frozen(), nets.mask, nets.rng)
    losses = {"actor": (weight * logp - worth).mean(), "critic": critic_loss}
    if learned is not None:
        usual = nets.acting.usual_entropy
        losses["entropy"] = entropy_loss(learned[0], logp, usual if now.target_entropy is None else now.target_entropy)
    report: Report = {
        "entropy": lambda: -logp.mean(),
        "entropy_weight": lambda: torch.as_tensor(weight).mean(),
        "q": lambda: worth.mean(),
        "td_error": lambda: errors.mean(),
    }
    return losses, errors, report


def entropy_loss(log_weight: Tensor, logp: Tensor, target: float) -> Tensor:
    """Its gradient raises the weight where there is less entropy than the target, and lowers it where there is more."""
    return -(log_weight * (logp.detach() + target)).mean()


def make_acting(config: Any, space: Leaf, where: torch.device) -> Squashed | Choices:
    return stochastic("sac", space, where)


ALGORITHM = actor_q("sac", SACConfig, loss, make_acting, tuned("sac"))
