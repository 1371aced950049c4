"""What an algorithm is: its settings, its policy, and how it is put together over an engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from podium.core.config import Config, setting
from podium.core.errors import ConfigError, UsageError, known_names
from podium.core.spaces import Leaf, Space
from podium.engine.base import Engine
from podium.envs.make import EnvSpec, make
from podium.evaluation.evaluator import Evaluator
from podium.optimizers.base import Optimizer, SgdPlan
from podium.optimizers.sync_samples import SyncSamples
from podium.policies.base import Policy


@dataclass(frozen=True)
class RunConfig(Config):
    """The settings that every algorithm has."""

    steps: int = setting(1_000_000, "end after the first iteration with this many env steps", unit="env steps", low=1)
    seed: int = setting(0, "every random number comes from it", low=0)
    stop_return: float | None = setting(None, "end when the mean return reaches this")
    envs: int = setting(8, "envs per evaluator, stepped together", low=1)
    fragment: int = setting(128, "steps per env in a sample", unit="steps", low=1)
    workers: int = setting(
        0, "evaluators that sample beside the learner; with none the learner samples", low=0, high=4096
    )
    engine: Literal["local"] = setting("local", "where the evaluators run")
    optimizer: Literal["sync_samples"] = setting("sync_samples", "the distribution strategy")
    device: str = setting("cpu", "where the networks live: cpu, cuda, cuda:1, auto")
    threads: int = setting(1, "compute threads of the learner", low=1, high=1024)
    checkpoint_every: int | None = setting(
        50_000, "between checkpoints; none writes only the last", unit="env steps", low=1
    )
    keep: int = setting(3, "checkpoints that stay, beside latest and best", low=1)
    eval_every: int | None = setting(None, "between evaluations on separate, uncounted envs", unit="env steps", low=1)
    eval_episodes: int = setting(20, "episodes per evaluation", low=1)
    env_args: Any = setting({}, "arguments of the env, as --env-arg k=v", internal=True)
    env_processes: int = setting(0, "processes that step the envs; 0 steps them in the evaluator", low=0, high=1024)
    frame_stack: int = setting(1, "observations in a row that the policy sees", low=1)
    time_limit: int | None = setting(None, "cut episodes after this many steps", unit="steps", low=1)
    rescale_actions: bool = setting(False, "let the policy act from -1 to 1 whatever the env's bounds")

    def check(self) -> None:
        if self.env_processes > self.envs:
            raise ConfigError(f"--env-processes is {self.env_processes}, expected at most --envs, which is {self.envs}")


@dataclass(frozen=True)
class Setup:
    """What a run brings to an algorithm: where to run, the env, its spaces."""

    engine: Engine
    env: EnvSpec
    observation_space: Space
    action_space: Leaf


PolicyMaker = Callable[[Any, Space, Leaf, int], Policy]
Build = Callable[[Any, Setup], Optimizer]


@dataclass(frozen=True)
class Algorithm:
    """A frozen config, a policy and a way to build; presets are named sets of settings."""

    name: str
    config: type[RunConfig]
    policy: PolicyMaker
    build: Build
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def configure(self, preset: str | None, given: Mapping[str, Any]) -> RunConfig:
        """The checked settings: what was given, over the preset's, over the defaults."""
        if preset is not None and preset not in self.presets:
            raise UsageError(f"{self.name} has no preset {preset!r}{known_names(preset, self.presets)}")
        return self.config.build({**(self.presets[preset] if preset else {}), **given})


def sync_samples(config: Any, setup: Setup, policy: PolicyMaker, sgd: SgdPlan) -> SyncSamples:
    """A learner and its samplers under synchronous samples. Here alone it is asked whether there are workers."""
    make_env = partial(make, setup.env, config.envs)

    def spawn(index: int, env: Any) -> Any:
        make_policy = partial(
            policy, config, setup.observation_space, setup.action_space, config.seed + 100_003 * index
        )
        name = "learner" if index == 0 else f"worker-{index}"
        return setup.engine.spawn(Evaluator, make_policy, env, seed=config.seed, index=index, name=name)

    learner = spawn(0, None if config.workers else make_env)
    workers = [spawn(index, make_env) for index in range(1, config.workers + 1)]
    return SyncSamples(setup.engine, learner, workers or [learner], config.fragment, sgd)
