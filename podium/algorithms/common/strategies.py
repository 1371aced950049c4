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
from podium.evaluation.replayed import DrawPlan, ReplayLearner
from podium.optimizers.allreduce import AllReduce
from podium.optimizers.async_gradients import AsyncGradients
from podium.optimizers.async_samples import AsyncSamples
from podium.optimizers.base import Optimizer, SgdPlan
from podium.optimizers.multi_device import MultiDevice
from podium.optimizers.parameter_server import ParameterServer
from podium.optimizers.sync_replay import SyncReplay
from podium.optimizers.sync_samples import SyncSamples
from podium.policies.base import Policy
from podium.replay.base import Replay

GIB = 1 << 30


@dataclass(frozen=True)
class Parts:
    """What an algorithm brings: its settings, where it runs, how its policy is made, and how it goes over a batch."""

    config: Any
    setup: Any
    policy: Callable[..., Policy]
    sgd: SgdPlan
    replay: Callable[[], Replay] | None = None
    draws: DrawPlan | None = None

    def learner(self, plays: bool = False, place: int = 0) -> Handle:
        """An evaluator that learns on the device of its place, and plays only if it is told to."""
        config = self._on_device(place)
        return self._spawn(config, 0, 0, plays, f"learner-{place}", _gpu(config.device) + Resources(near=True))

    def replay_learner(self, plays: bool) -> Handle:
        """One that holds the replay it learns from."""
        assert self.replay is not None
        config = self._on_device(0)
        resources = _gpu(config.device) + Resources(near=True)
        kind = partial(ReplayLearner, make_replay=self.replay)
        return self._spawn(config, 0, 0, plays, "learner-0", resources, kind)

    def rank(self, index: int, replaced: int) -> Handle:
        """An evaluator that plays and learns."""
        config = self._on_device(index - 1)
        return self._spawn(config, index, replaced, True, f"worker-{index}", self._reserved() + _gpu(config.device))

    def worker(self, index: int, replaced: int) -> Handle:
        """An evaluator that plays, with one compute thread and, unless it reserves a GPU, on the processor."""
        config = self.config.replace(threads=1, device="cuda" if self.config.gpus_per_worker else "cpu")
        return self._spawn(config, index, replaced, True, f"worker-{index}", self._reserved())

    def _on_device(self, place: int) -> Any:
        return self.config.replace(device=self.setup.engine.device(self.config.device, place))

    def _reserved(self) -> Resources:
        config = self.config
        return Resources(config.cpus_per_worker, config.gpus_per_worker, int(config.memory_per_worker * GIB))

    def _spawn(
        self,
        config: Any,
        index: int,
        replaced: int,
        plays: bool,
        name: str,
        resources: Resources,
        kind: Callable[..., Evaluator] = Evaluator,
    ) -> Handle:
        setup = self.setup
        seed = config.seed + 100_003 * index
        make_policy = partial(self.policy, config, setup.observation_space, setup.action_space, seed)
        make_env = partial(make, setup.env, config.envs) if plays else None
        return setup.engine.spawn(
            kind,
            make_policy,
            make_env,
            seed=config.seed,
            index=index,
            replaced=replaced,
            name=name,
            resources=resources,
        )

    def workers(self, learning: bool = False) -> Pool:
        """The evaluators that play beside the learner, or learn too."""
        config = self.config
        return Pool(
            self.setup.engine,
            self.rank if learning else self.worker,
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


def _gpu(device: str) -> Resources:
    return Resources(gpus=1.0) if device.startswith("cuda") else Resources()


def sync_samples(parts: Parts) -> Optimizer:
    learner = parts.learner(plays=parts.learner_plays)
    return SyncSamples(parts.setup.engine, learner, parts.samplers(learner), parts.config.fragment, parts.sgd)


def allreduce(parts: Parts) -> Optimizer:
    return AllReduce(parts.setup.engine, parts.workers(learning=True), parts.config.fragment, parts.sgd)


def multi_device(parts: Parts) -> Optimizer:
    config = parts.config
    learners = [parts.learner(parts.learner_plays and place == 0, place) for place in range(config.learners)]
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


def sync_replay(parts: Parts) -> Optimizer:
    config = parts.config
    assert parts.draws is not None
    learner = parts.replay_learner(plays=parts.learner_plays)
    return SyncReplay(
        parts.setup.engine,
        learner,
        parts.samplers(learner),
        config.fragment,
        parts.sgd,
        parts.draws,
        starts=config.learning_starts,
        every=config.train_every,
    )


STRATEGIES: dict[str, Callable[[Parts], Optimizer]] = {
    "sync_samples": sync_samples,
    "allreduce": allreduce,
    "multi_device": multi_device,
    "async_gradients": async_gradients,
    "parameter_server": parameter_server,
    "async_samples": async_samples,
    "sync_replay": sync_replay,
}
