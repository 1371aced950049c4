"""From an algorithm's settings to its evaluators under an optimizer, for each `--optimizer`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from podium.algorithms.common.central import CentralPolicy, CentralServer, Postprocess
from podium.core.errors import CallTimedOut, WorkerDied
from podium.core.spaces import Space, leaves
from podium.engine.base import Handle, Resources
from podium.engine.plan import GIB
from podium.engine.pool import Pool, Spawn
from podium.envs.make import playing
from podium.evaluation.evaluator import Evaluator
from podium.evaluation.replayed import DrawPlan, ReplayLearner
from podium.evaluation.sharded import Player, ReplayShard, ShardedLearner
from podium.optimizers.allreduce import AllReduce
from podium.optimizers.async_gradients import AsyncGradients
from podium.optimizers.async_replay import AsyncReplay
from podium.optimizers.async_samples import AsyncSamples
from podium.optimizers.base import Optimizer, SgdPlan
from podium.optimizers.multi_device import MultiDevice
from podium.optimizers.pace import Pace
from podium.optimizers.parameter_server import ParameterServer
from podium.optimizers.sync_replay import SyncReplay
from podium.optimizers.sync_samples import SyncSamples
from podium.policies.base import Policy
from podium.replay.base import Replay
from podium.replay.uniform import UniformReplay
from podium.serving.base import Client
from podium.serving.transports.near import NearClient

AT_ONCE, AT_ONCE_BYTES = 16, 4 << 20
DRAWS_AHEAD = 3
"""Calls for minibatches that are under way or wait for the learner, beside those that it learns on."""

SHARD_CALLS = 4
"""How many calls a shard has under way before it is asked for more."""

CONTROLLER_CALLS = 2
"""How many calls of the controller's the server takes beside one of each worker."""


@dataclass(frozen=True)
class Parts:
    """What an algorithm brings: its settings, where it runs, how its policy is made, how it goes over a batch, how a
    trajectory is finished where it was played, and, if it has one, what makes its replay (of a capacity, and which part of
    it), how minibatches are drawn from it, its capacity, and what makes that from which workers work out priorities."""

    config: Any
    setup: Any
    policy: Callable[..., Policy]
    sgd: SgdPlan
    postprocess: Postprocess
    replay: Callable[..., Callable[[], Replay]] | None = None
    draws: DrawPlan | None = None
    capacity: int = 0
    recent: Callable[[], UniformReplay] | None = None

    def learner(self, plays: bool = False, place: int = 0) -> Handle:
        """An evaluator that learns on the device of its place, and plays only if it is told to."""
        config = self._on_device(place)
        share = 0.5 if place == 0 and self.config.inference == "central" else 1.0  # the server has the other half
        resources = _gpu(config.device, share) + Resources(near=True)
        return self._spawn(self._policy(config, 0), 0, 0, plays, f"learner-{place}", resources)

    def replay_learner(self, plays: bool) -> Handle:
        """One that holds the replay it learns from."""
        assert self.replay is not None
        config = self._on_device(0)
        resources = _gpu(config.device) + Resources(near=True)
        kind = partial(ReplayLearner, make_replay=self.replay(self.capacity))
        return self._spawn(self._policy(config, 0), 0, 0, plays, "learner-0", resources, kind)

    def sharded_learner(self) -> Handle:
        """One that is handed its minibatches."""
        config = self._on_device(0)
        resources = _gpu(config.device) + Resources(near=True)
        return self._spawn(self._policy(config, 0), 0, 0, False, "learner-0", resources, ShardedLearner)

    def shard(self, index: int, replaced: int) -> Handle:
        """A part of the replay, with room for the envs of its workers."""
        assert self.replay is not None
        workers, shards = self.config.workers, self.config.sharded()
        own = len(range(index, workers + 1, shards))
        make_replay = self.replay(self.capacity * own // workers, index, replaced)
        return self.setup.engine.spawn(ReplayShard, make_replay, name=f"replay-{index}", resources=Resources(near=True))

    def player(self, index: int, replaced: int) -> Handle:
        """A worker that works out priorities."""
        return self.worker(index, replaced, partial(Player, make_recent=self.recent))

    def rank(self, index: int, replaced: int) -> Handle:
        """An evaluator that plays and learns."""
        config = self._on_device(index - 1)
        resources = self.config.each_worker + _gpu(config.device)
        return self._spawn(self._policy(config, index), index, replaced, True, f"worker-{index}", resources)

    def worker(self, index: int, replaced: int, kind: Callable[..., Evaluator] = Evaluator) -> Handle:
        """An evaluator that plays, with one compute thread and, unless it reserves a GPU, on the processor."""
        config = self.config.replace(threads=1, device="cuda" if self.config.gpus_per_worker else "cpu")
        policy, name = self._policy(config, index), f"worker-{index}"
        return self._spawn(policy, index, replaced, True, name, self.config.each_worker, kind)

    def asking_worker(self, client: Client, index: int, replaced: int) -> Handle:
        """An evaluator that plays as a server tells it to."""
        make_policy = partial(CentralPolicy, client, self.postprocess, self.config)
        return self._spawn(make_policy, index, replaced, True, f"worker-{index}", self.config.each_worker)

    def server(self) -> Handle:
        """The policy that plays for all workers, on the learner's device and with the first worker's random numbers. Where
        they play one after the other nobody waits for another's rows."""
        config, engine = self._on_device(0), self.setup.engine
        rows = (config.inference_batch or config.workers * config.envs) if engine.apart else None
        return engine.spawn(
            CentralServer,
            self._policy(config, 1),
            config.workers,
            config.envs,
            _row_bytes(self.setup.observation_space),
            rows,
            config.inference_wait_ms / 1000 if engine.apart else 0.0,
            name="server-0",
            resources=_gpu(config.device, 0.5) + Resources(near=True),
            callers=config.workers + CONTROLLER_CALLS,
        )

    def _on_device(self, place: int) -> Any:
        return self.config.replace(device=self.setup.engine.device(self.config.device, place))

    def _policy(self, config: Any, index: int) -> Callable[[], Policy]:
        seed = config.seed + 100_003 * index
        return partial(self.policy, config, self.setup.observation_space, self.setup.action_space, seed)

    def _spawn(
        self,
        make_policy: Callable[[], Any],
        index: int,
        replaced: int,
        plays: bool,
        name: str,
        resources: Resources,
        kind: Callable[..., Evaluator] = Evaluator,
    ) -> Handle:
        setup = self.setup
        make_env = partial(playing, setup.env, self.config.envs) if plays else None
        return setup.engine.spawn(
            kind,
            make_policy,
            make_env,
            seed=self.config.seed,
            index=index,
            replaced=replaced,
            players=max(self.config.workers, 1),
            name=name,
            resources=resources,
        )

    def workers(self, spawn: Spawn | None = None) -> Pool:
        """The evaluators that play beside the learner, or do more than that."""
        config, engine, server = self.config, self.setup.engine, None
        spawn = spawn or self.worker
        if config.inference == "central":
            server = self.server()
            spawn = partial(self.asking_worker, NearClient(engine, server))
        return Pool(
            engine,
            spawn,
            config.workers,
            max_failures=config.max_failures,
            time_limit=config.worker_timeout,
            server=server,
        )

    def samplers(self, learner: Handle) -> Pool:
        """The workers, or the learner where there are none; that is asked here alone."""
        if self.config.workers:
            return self.workers()
        return Pool.alone(self.setup.engine, learner)

    @property
    def learner_plays(self) -> bool:
        return not self.config.workers


def _gpu(device: str, share: float = 1.0) -> Resources:
    return Resources(gpus=share) if device.startswith("cuda") else Resources()


def _row_bytes(space: Space) -> int:
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in leaves(space, "obs").values())


def sync_samples(parts: Parts) -> Optimizer:
    learner = parts.learner(plays=parts.learner_plays)
    return SyncSamples(parts.setup.engine, learner, parts.samplers(learner), parts.config.fragment, parts.sgd)


def allreduce(parts: Parts) -> Optimizer:
    return AllReduce(parts.setup.engine, parts.workers(parts.rank), parts.config.fragment, parts.sgd)


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
        log_every=config.log_every,
    )


def async_replay(parts: Parts) -> Optimizer:
    config, engine = parts.config, parts.setup.engine
    assert parts.draws is not None
    learner = parts.sharded_learner()
    shards = Pool(
        engine,
        parts.shard,
        config.sharded(),
        depth=SHARD_CALLS,
        max_failures=config.max_failures,
        time_limit=config.worker_timeout,
        replaces=(WorkerDied, CallTimedOut),
        bears_losses=True,
    )
    pace = Pace(
        config.learning_starts,
        config.train_every,
        config.envs * config.fragment,
        config.workers,
        learner_waits=config.pacing in ("both", "learner"),
        samplers_wait=config.pacing in ("both", "samplers"),
    )
    return AsyncReplay(
        engine,
        learner,
        parts.workers(parts.player),
        shards,
        config.fragment,
        parts.sgd,
        parts.draws,
        pace,
        at_once=at_once(config, parts.setup.observation_space),
        ahead=DRAWS_AHEAD if engine.apart else 1,  # here the next draw may write over what the last one gave
        broadcast_every=config.broadcast_every,
    )


def at_once(config: Any, observation: Space) -> int:
    """Minibatches in a call: as many as make its cost small, unless they are large."""
    return max(min(AT_ONCE, AT_ONCE_BYTES // (2 * _row_bytes(observation) * config.batch)), 1)


STRATEGIES: dict[str, Callable[[Parts], Optimizer]] = {
    "sync_samples": sync_samples,
    "allreduce": allreduce,
    "multi_device": multi_device,
    "async_gradients": async_gradients,
    "parameter_server": parameter_server,
    "async_samples": async_samples,
    "sync_replay": sync_replay,
    "async_replay": async_replay,
}
