"""Advantage actor-critic: one gradient step on each short sample, all envs in step."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

from torch import Tensor

from podium.algorithms.common.on_policy import ActorCriticConfig, advantages, normalized, on_policy
from podium.core.config import Schedule, setting
from podium.policies.torch import Minibatch, Out, Report


@dataclass(frozen=True)
class A2CConfig(ActorCriticConfig):
    """A2C's own settings."""

    steps: int = setting(500_000, "end after the first iteration with this many env steps", unit="env steps", low=1)
    fragment: int = setting(8, "steps per env in a sample", unit="steps", low=1)
    lr: float | Schedule = setting(Schedule.parse("1e-3->0"), "Adam's step size", low=0, high=10)


def loss(out: Out, rows: Minibatch, now: SimpleNamespace) -> tuple[Tensor, Report]:
    """The policy gradient with a learned baseline, the value loss and the entropy bonus."""
    policy_loss = -(out.logp * normalized(rows["advantage"], now)).mean()
    value_loss = 0.5 * (out.value - rows["return"]).square().mean()
    total = policy_loss + now.value_coef * value_loss
    if now.entropy:
        total = total - now.entropy * out.entropy.mean()
    return total, {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": lambda: out.entropy.mean()}


ALGORITHM = on_policy("a2c", A2CConfig, loss, advantages)
