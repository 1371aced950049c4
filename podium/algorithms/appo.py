"""Asynchronous PPO: PPO's clipped passes on samples of older weights, with V-trace's advantages."""

from __future__ import annotations

from dataclasses import dataclass

from podium.algorithms.common.base import OptimizerName, Workers, optimizer, workers
from podium.algorithms.common.on_policy import ONE_GRADIENT, VtraceConfig, as_played, on_policy, vtrace_targets
from podium.algorithms.ppo import ClippedConfig, loss
from podium.core.config import Schedule, setting


@dataclass(frozen=True)
class APPOConfig(ClippedConfig, VtraceConfig):
    """PPO's settings, for shorter samples and fewer passes over each. V-trace takes the place of GAE."""

    steps: int = setting(1_000_000, "end after the first iteration with this many env steps", unit="env steps", low=1)
    optimizer: OptimizerName = optimizer("async_samples")
    workers: Workers = workers(2)
    fragment: int = setting(64, "steps per env in a sample", unit="steps", low=1)
    minibatch: int = setting(128, "rows per gradient step", unit="rows", low=1)
    epochs: int | Schedule = setting(4, "passes over each sample", low=1)


REFUSED = {"async_gradients": ONE_GRADIENT, "parameter_server": ONE_GRADIENT}
ALGORITHM = on_policy("appo", APPOConfig, loss, as_played, targets=vtrace_targets, refused=REFUSED)
