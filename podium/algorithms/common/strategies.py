"""From an algorithm's settings to its evaluators under an optimizer, for each `--optimizer`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from podium.engine.base import Handle, Resources
from podium.engine.pool import Pool
from podium.envs.make import make
from podium.evaluation.evaluator import Evaluator
from podium.optimizers.allreduce import AllReduce
from podium.optimizers.async_gradients import AsyncGradients
from podium.optimizers.async_samples import AsyncSamples
from podium.optimizers.base import Optimizer, SgdPlan
from podium.optimizers.multi_device import MultiDevice
from podium.optimizers.parameter_server import ParameterServer
from podium.optimizers.sync_samples import SyncSamples
from podium.policies.base import Policy

GIB = 1 << 30


@dataclass(frozen=True)
class Parts:
    """What an algorithm brings: its settings, where it runs, how its policy is made, and how it goes over a batch."""

    config: Any
    setup: Any
    policy: Callable[..., Policy]
    sgd: SgdPlan

    def learner(self, plays: bool = False, place: int = 0, device: str | None = None) -> Handle:
        """An evaluator that learns, and plays only if it is told to; its device may be another than the settings'."""
        config = self.config if device is None else self.config.replace(device=device)
        return self._spawn(config, 0, 0, plays, f"learner-{place}", Resources())

    def worker(self, index: int, replaced: int) -> Handle:
        """An evaluator that plays; they count from 1."""
        config = self.config
        resources = Resources(config.cpus_per_worker, config.gpus_per_worker, int(config.memory_per_worker * GIB))
        return self._spawn(config, index, replaced, True, f"worker-{index}", resources)

    def _spawn(self, config: Any, index: int, replaced: int, plays: bool, name: str, resources: Resources) -> Handle:
        setup = self.setup
        seed = config.seed + 100_003 * index
        make_policy = partial(self.policy, config, setup.observation_space, setup.action_space, seed)
        make_env = partial(make, setup.env, config.envs) if plays else None
        return setup.engine.spawn(
            Evaluator,
            make_policy,
            make_env,
            seed=config.seed,
            index=index,
            replaced=replaced,
            name=name,
            resources=resources,
        )

    def workers(self) -> Pool:
        """The evaluators that play beside the learner."""
        config = self.config
        return Pool(
            self.setup.engine,
            self.worker,
            config.workers,
            max_failures=config.max_failures,
            time_limit=config.worker_timeout,
        )

    def samplers(self, learner: Handle) -> Pool:
        """The workers, or the learner where there are none; that is asked here alone."""
        if self.config.workers:
            return self.workers()
        return Pool(self.setup.engine, lambda index, replaced: learner, 1, max_failures=0, time_limit=float("inf"))

    @property
    def learner_plays(self) -> bool:
        return not self.config.workers


def sync_samples(parts: Parts) -> Optimizer:
    learner = parts.learner(plays=parts.learner_plays)
    return SyncSamples(parts.setup.engine, learner, parts.samplers(learner), parts.config.fragment, parts.sgd)


def allreduce(parts: Parts) -> Optimizer:
    return AllReduce(parts.setup.engine, parts.workers(), parts.config.fragment, parts.sgd)


def multi_device(parts: Parts) -> Optimizer:
    config = parts.config
    devices = [f"cuda:{i}" if config.device == "cuda" else config.device for i in range(config.learners)]
    learners = [parts.learner(parts.learner_plays and i == 0, i, device) for i, device in enumerate(devices)]
    samplers = parts.samplers(learners[0])
    memory = None if config.device_memory is None else int(config.device_memory * GIB)
    return MultiDevice(parts.setup.engine, learners, samplers, config.fragment, parts.sgd, memory)


def async_gradients(parts: Parts) -> Optimizer:
    learner = parts.learner()
    return AsyncGradients(parts.setup.engine, learner, parts.workers(), parts.config.fragment, parts.sgd)


def parameter_server(parts: Parts) -> Optimizer:
    config = parts.config

    def rule(progress: float) -> tuple[float, float | None]:
        now = config.at(progress)
        return now.lr, now.max_grad_norm

    return ParameterServer(
        parts.setup.engine,
        parts.learner(),
        parts.workers(),
        config.fragment,
        parts.sgd,
        shards=config.shards,
        rule=rule,
        eps=config.adam_eps,
        synchronous=config.synchronous,
    )


def async_samples(parts: Parts) -> Optimizer:
    config = parts.config
    return AsyncSamples(
        parts.setup.engine,
        parts.learner(),
        parts.workers(),
        config.fragment,
        parts.sgd,
        samples=config.samples,
        queue=config.queue,
        max_lag=config.max_lag,
    )


STRATEGIES: dict[str, Callable[[Parts], Optimizer]] = {
    "sync_samples": sync_samples,
    "allreduce": allreduce,
    "multi_device": multi_device,
    "async_gradients": async_gradients,
    "parameter_server": parameter_server,
    "async_samples": async_samples,
}
