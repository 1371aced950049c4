"""Ape-X (Horgan et al., 2018): DQN with its parts, whose workers play on and on into a replay that lies in shards."""

from __future__ import annotations

from dataclasses import dataclass

from podium.algorithms.common.base import Algorithm, OptimizerName, Workers, optimizer, workers
from podium.algorithms.common.off_policy import REFUSED
from podium.algorithms.common.tuned import tuned
from podium.algorithms.dqn import DQNConfig, build, make_policy
from podium.core.config import Schedule, setting


@dataclass(frozen=True)
class ApexConfig(DQNConfig):
    """Ape-X's own settings; the defaults are for small classic control tasks."""

    optimizer: OptimizerName = optimizer("async_replay")
    workers: Workers = workers(2)
    fragment: int = setting(8, "steps per env in a sample", unit="steps", low=1)
    hidden: tuple[int, ...] = setting((64, 64), "sizes of the hidden layers", low=1)
    n_step: int = setting(3, "rewards that are summed before the value of what follows", unit="steps", low=1, high=1000)
    prioritized: bool = setting(True, "draw transitions by how wrong the policy was about them")
    double: bool = setting(True, "the network chooses the next action, its target says what that is worth")
    dueling: bool = setting(True, "one stream of layers for the state's value, one for what actions add")
    epsilon: float | Schedule = setting(0.4, "share of random actions", low=0, high=1)
    epsilon_spread: float = setting(7.0, "of all envs the last has epsilon to 1 plus this power", low=0)


ALGORITHM = Algorithm("apex", ApexConfig, make_policy, build, tuned("apex"), REFUSED)
