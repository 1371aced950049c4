"""Asynchronous advantage actor-critic (Mnih et al., 2016): A2C's loss, each worker's gradient applied as it comes."""

from __future__ import annotations

from dataclasses import dataclass

from podium.algorithms.a2c import A2CConfig, loss
from podium.algorithms.common.base import OptimizerName, Workers, optimizer, workers
from podium.algorithms.common.on_policy import advantages, on_policy


@dataclass(frozen=True)
class A3CConfig(A2CConfig):
    """A2C's settings, with workers of their own."""

    optimizer: OptimizerName = optimizer("async_gradients")
    workers: Workers = workers(2)


ALGORITHM = on_policy("a3c", A3CConfig, loss, advantages)
