"""What the algorithms that search by perturbations share: settings, and how they are put together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from podium.algorithms.common.base import (
    EVOLUTION_OPTIMIZERS,
    OPTIMIZERS,
    Algorithm,
    OptimizerName,
    RunConfig,
    Setup,
    optimizer,
)
from podium.core.config import setting
from podium.core.errors import ConfigError
from podium.core.spaces import Leaf, Space
from podium.engine.base import Handle, Resources
from podium.engine.pool import Pool
from podium.envs.make import playing
from podium.evaluation.search import Rule, Searcher
from podium.optimizers.base import Optimizer
from podium.optimizers.evolution import Evolution
from podium.policies.mlp import MlpPolicy

WHOLE_EPISODES = "it compares the returns of whole episodes, and learns from no sample"
FRAGMENTED = tuple(name for name in OPTIMIZERS if name not in EVOLUTION_OPTIMIZERS)
REFUSED = dict.fromkeys(FRAGMENTED, WHOLE_EPISODES)


@dataclass(frozen=True)
class EvolutionConfig(RunConfig):
    """Settings of a search around one vector of parameters."""

    optimizer: OptimizerName = optimizer("evolution")
    envs: int = setting(32, "rows of an evaluator's vector env, each with a perturbation of its own", low=1)
    fragment: int = setting(128, "steps per env in a sample", unit="steps", low=1, only=("optimizer", FRAGMENTED))
    device: Literal["cpu"] = setting("cpu", "where the networks live: the processor")
    threads: int = setting(1, "compute threads of the learner", low=1, high=1)
    eval_every: int | None = setting(50_000, "between evaluations on separate, uncounted envs", unit="env steps", low=1)
    rollouts: int = setting(1, "episodes that each perturbation plays", low=1)
    noise_table: int = setting(10_000_000, "numbers in the table of noise that all share", low=1)
    wait_for: float = setting(1.0, "share of the perturbations that an update waits for", above=0, high=1)
    late: Literal["use", "drop"] = setting("drop", "what comes after that: used in the next update, or dropped")
    longest: int = setting(100_000, "an episode that takes more is an error", unit="steps", low=1)
    hidden: tuple[int, ...] | None = setting((32, 32), "sizes of the hidden layers; none is a linear policy", low=1)
    activation: Literal["tanh", "relu"] = setting("tanh", "between the layers")
    squash: bool = setting(False, "squash continuous actions through tanh onto their bounds")
    normalize_obs: bool = setting(False, "normalise observations by their running mean and variance")
    sample_actions: bool = setting(False, "perturbations draw their choices instead of taking the best")
    action_noise: float = setting(0.0, "standard deviation of noise in perturbations' continuous actions", low=0)

    def check(self) -> None:
        super().check()
        if self.late != "drop" and self.wait_for == 1.0:
            raise ConfigError(f"--late {self.late} would not be read: --wait-for is 1, and nothing comes late")
        if self.envs % self.signs:
            raise ConfigError(f"--envs is {self.envs}, expected an even number: both of a pair are played side by side")
        if self.envs > self.directions_played * self.signs:
            raise ConfigError(
                f"--envs is {self.envs}, expected at most {self.directions_played * self.signs}: an update plays no more "
                "perturbations"
            )

    @property
    def signs(self) -> int:
        """How often each noise is played: as it is, and, where it is mirrored, the other way round."""
        return 1

    @property
    def directions_played(self) -> int:
        """Noises of an update."""
        raise NotImplementedError

    @property
    def kept(self) -> int:
        """Numbers that the rule keeps for each parameter."""
        return 0

    @property
    def parts(self) -> int:
        """In how many calls of workers an update's perturbations are played."""
        return -(-self.directions_played * self.signs // self.envs)


def search(
    name: str,
    config: type[EvolutionConfig],
    rule: Callable[[Any, int], Rule],
    presets: Mapping[str, Mapping[str, Any]] = {},
) -> Algorithm:
    """A search from its settings and its rule, which is made for settings and a number of parameters."""
    return Algorithm(name, config, MlpPolicy, partial(_build, rule), presets, REFUSED)


def _build(rule: Callable[[Any, int], Rule], config: EvolutionConfig, setup: Setup) -> Optimizer:
    learner = searcher(rule, config, setup, 0, 0)
    return Evolution(
        setup.engine,
        learner,
        _workers(rule, config, setup, learner),
        seed=config.seed,
        count=config.directions_played,
        each=config.envs // config.signs,
        table_size=config.noise_table,
        wait_for=config.wait_for,
        late=config.late,
    )


def _workers(rule: Callable[[Any, int], Rule], config: EvolutionConfig, setup: Setup, learner: Handle) -> Pool:
    """Those that play; the learner where there are none."""
    if not config.workers:
        return Pool.alone(setup.engine, learner)
    assert isinstance(config.workers, int)
    spawn = partial(searcher, rule, config, setup)
    most, limit = config.max_failures, config.worker_timeout
    return Pool(setup.engine, spawn, config.workers, max_failures=most, time_limit=limit)


def searcher(
    rule: Callable[[Any, int], Rule], config: EvolutionConfig, setup: Setup, index: int, replaced: int
) -> Handle:
    """The learner, or a worker from 1. All play the same perturbation alike, whoever was there before."""
    reserved = config.each_worker if index else Resources(near=True)
    plays = bool(index) or not config.workers
    return setup.engine.spawn(
        Searcher,
        partial(_policy, config, setup.observation_space, setup.action_space),
        partial(rule, config),
        partial(playing, setup.env, config.envs) if plays else None,
        seed=config.seed,
        rollouts=config.rollouts,
        longest=config.longest,
        name=f"worker-{index}" if index else "learner-0",
        resources=reserved,
    )


def _policy(config: EvolutionConfig, observation_space: Space, action_space: Leaf) -> MlpPolicy:
    return MlpPolicy(config, observation_space, action_space, config.seed)
