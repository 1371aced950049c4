"""REINFORCE (Williams, 1992): each action weighted by the return that followed it, with no value function."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import torch
from torch import Tensor

from podium.algorithms.common.on_policy import OnPolicyConfig, normalized, on_policy, shaped_rewards
from podium.core import returns
from podium.core.batch import Batch
from podium.core.config import Schedule, setting
from podium.policies.base import Policy
from podium.policies.torch import Minibatch, Out, Report


@dataclass(frozen=True)
class PGConfig(OnPolicyConfig):
    """PG's own settings; a fragment should hold several episodes."""

    steps: int = setting(500_000, "end after the first iteration with this many env steps", unit="env steps", low=1)
    fragment: int = setting(512, "steps per env in a sample", unit="steps", low=1)
    lr: float | Schedule = setting(3e-3, "Adam's step size", low=0, high=10)


def returns_to_go(policy: Policy, batch: Batch, now: SimpleNamespace) -> Batch:
    """What followed each step until its episode's end.

    There is no value function to stand for a future that was not seen, so rows whose episode goes on after the fragment
    teach nothing here (weight 0), and a time limit counts as an end: the return up to the limit is what PG improves.
    """
    done = (batch["terminated"] | batch["truncated"]).astype(np.float32)
    nothing = np.zeros_like(done)
    seen = returns.discounted(shaped_rewards(batch, now), nothing, done, done, now.gamma)
    ended = np.ascontiguousarray(np.maximum.accumulate(done[::-1], axis=0)[::-1])
    return batch.with_columns(**{"return": seen, "weight": ended})


def loss(out: Out, rows: Minibatch, now: SimpleNamespace) -> tuple[Tensor, Report]:
    """Minus the log-probability of each action, weighted by its return."""
    kept = rows["weight"] > 0
    weight = torch.zeros_like(rows["weight"])
    weight[kept] = normalized(rows["return"][kept], now)
    policy_loss = -(out.logp * weight).sum() / kept.sum().clamp(min=1)
    entropy = out.entropy.mean()
    return policy_loss - now.entropy * entropy, {"policy_loss": policy_loss, "entropy": entropy}


ALGORITHM = on_policy("pg", PGConfig, loss, returns_to_go)
