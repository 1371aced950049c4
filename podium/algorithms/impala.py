"""IMPALA (Espeholt et al., 2018): actor-critic on samples of older weights, corrected by V-trace."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

from torch import Tensor

from podium.algorithms.common.base import OptimizerName, Workers, optimizer, workers
from podium.algorithms.common.on_policy import VtraceConfig, as_played, normalized, on_policy, vtrace_targets
from podium.core.config import Schedule, setting
from podium.policies.torch import Minibatch, Out, Report


@dataclass(frozen=True)
class ImpalaConfig(VtraceConfig):
    """IMPALA's own settings. V-trace takes the place of GAE."""

    steps: int = setting(1_000_000, "end after the first iteration with this many env steps", unit="env steps", low=1)
    optimizer: OptimizerName = optimizer("async_samples")
    workers: Workers = workers(2)
    fragment: int = setting(16, "steps per env in a sample", unit="steps", low=1)
    lr: float | Schedule = setting(Schedule.parse("1e-3->0"), "Adam's step size", low=0, high=10)
    entropy: float | Schedule = setting(0.005, "weight of the entropy bonus", low=0)


def loss(out: Out, rows: Minibatch, now: SimpleNamespace) -> tuple[Tensor, Report]:
    """The policy gradient weighed by the clipped ratio, the loss to V-trace's value targets, and the entropy bonus."""
    advantage = normalized(rows["advantage"], now)
    policy_loss = -(out.logp * rows["rho"] * advantage).mean()
    value_loss = 0.5 * (out.value - rows["return"]).square().mean()
    total = policy_loss + now.value_coef * value_loss - now.entropy * out.entropy.mean()
    return total, {
        "policy_loss": policy_loss,
        "value_loss": value_loss,
        "entropy": out.entropy.mean(),
        "rho": rows["rho"].mean(),
        "kl": lambda: (rows["logp"] - out.logp).mean(),
    }


ALGORITHM = on_policy("impala", ImpalaConfig, loss, as_played, targets=vtrace_targets)
