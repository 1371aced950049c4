"""What the algorithms that learn from a replay share: settings, the replay, and what it may not be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np

from podium.algorithms.common.base import OPTIMIZERS, REPLAY_OPTIMIZERS, OptimizerName, RunConfig, Setup, optimizer
from podium.algorithms.common.on_policy import sgd, shaped_rewards
from podium.algorithms.common.strategies import STRATEGIES, Parts
from podium.core import seeding
from podium.core.batch import Batch
from podium.core.config import Schedule, setting
from podium.core.errors import ConfigError
from podium.core.spaces import Frames, Leaf, Space
from podium.engine.plan import GIB
from podium.envs.make import frames_of
from podium.evaluation.replayed import Draws
from podium.optimizers.base import Optimizer
from podium.policies.base import Policy
from podium.replay.base import Replay, row_bytes
from podium.replay.prioritized import PrioritizedReplay
from podium.replay.uniform import UniformReplay

ONLY_REPLAY = "it learns from a replay, which that has none of"
SHARDED = ("async_replay",)
REFUSED = {name: ONLY_REPLAY for name in OPTIMIZERS if name not in REPLAY_OPTIMIZERS}


@dataclass(frozen=True)
class ReplayConfig(RunConfig):
    """Settings of what is kept of the past, and how it is learned from."""

    optimizer: OptimizerName = optimizer("sync_replay")
    eval_every: int | None = setting(2000, "between evaluations on separate, uncounted envs", unit="env steps", low=1)
    buffer: int = setting(50_000, "transitions that are kept", low=1)
    buffer_memory: float | None = setting(None, "keep fewer where they would take more than this", unit="GiB", above=0)
    batch: int = setting(64, "transitions in a minibatch", low=1)
    learning_starts: int = setting(1000, "before the first update", unit="env steps", low=0)
    train_every: float = setting(1.0, "for each update; 0.5 makes two updates for each", unit="env steps", above=0)
    log_every: int = setting(
        128, "between rows of metrics.jsonl, at least", unit="env steps", low=1, only=("optimizer", ("sync_replay",))
    )
    n_step: int = setting(1, "rewards that are summed before the value of what follows", unit="steps", low=1, high=1000)
    prioritized: bool = setting(False, "draw transitions by how wrong the policy was about them")
    alpha: float = setting(0.6, "priorities are errors to this power", low=0, high=1, only=("prioritized", (True,)))
    beta: float | Schedule = setting(
        Schedule.parse("0.4->1"), "how far weights make up for priorities", low=0, high=1, only=("prioritized", (True,))
    )
    replay_shards: int = setting(
        2, "parts of the replay, one for each worker at most", low=1, high=1024, only=("optimizer", SHARDED)
    )
    broadcast_every: int = setting(
        16, "after which the workers get new weights", unit="updates", low=1, only=("optimizer", SHARDED)
    )
    pacing: Literal["both", "learner", "samplers", "none"] = setting(
        "both", "who waits for the other, so that --train-every is kept", only=("optimizer", SHARDED)
    )
    lr: float | Schedule = setting(3e-4, "Adam's step size", low=0, high=10)
    gamma: float | Schedule = setting(0.99, "discount per step", low=0, high=1)
    max_grad_norm: float | Schedule | None = setting(10.0, "longer gradients are scaled down to this norm", above=0)
    adam_eps: float = setting(1e-8, "Adam's epsilon", above=0)
    model: Any | None = setting(
        None, "your own network, as module:function of (space, outputs) that returns an nn.Module"
    )
    hidden: tuple[int, ...] = setting((64, 64), "sizes of the hidden layers", low=1)
    activation: Literal["tanh", "relu", "elu", "silu"] = setting("relu", "between the layers")
    normalize_obs: bool = setting(False, "normalise observations by their running mean and variance")
    reward_scale: float | Schedule = setting(1.0, "rewards are multiplied by this before learning", above=0)
    reward_clip: float | None = setting(None, "then clipped to plus and minus this", above=0)

    def check(self) -> None:
        super().check()
        if self.batch > self.buffer:
            raise ConfigError(f"--buffer is {self.buffer}, expected at least --batch, which is {self.batch}")
        least, what = self.least()
        if self.buffer < least:
            raise ConfigError(f"--buffer is {self.buffer}, expected at least {least}: {what}")
        if self.smallest_shard(self.buffer) < self.batch:
            raise ConfigError(
                f"--buffer is {self.buffer}, of which the smallest of {self.sharded()} shards has "
                f"{self.smallest_shard(self.buffer)}, expected at least --batch in each, which is {self.batch}"
            )

    def sharded(self) -> int:
        """How many shards there are: none is without a worker."""
        if self.optimizer not in SHARDED or not isinstance(self.workers, int):
            return 1
        return max(min(self.replay_shards, self.workers), 1)

    def smallest_shard(self, capacity: int) -> int:
        """Its part of the capacity: each has that of its workers."""
        if self.sharded() == 1 or not isinstance(self.workers, int):
            return capacity
        return capacity * (self.workers // self.sharded()) // self.workers

    def capacity(self, observation: Space, action: Leaf, frames: Mapping[str, Frames]) -> int:
        """Transitions that are kept: --buffer, or what fits into --buffer-memory."""
        each = self.row_bytes(observation, action, frames)
        if self.buffer_memory is None or self.buffer * each <= self.buffer_memory * GIB:
            return self.buffer
        fitting, least = int(self.buffer_memory * GIB) // each, max(self.batch, self.least()[0])
        if fitting < least:
            raise ConfigError(
                f"--buffer-memory {self.buffer_memory:g} holds {fitting} transitions of {each:,} bytes, expected at least "
                f"{least}"
            )
        if self.smallest_shard(fitting) < self.batch:
            raise ConfigError(
                f"--buffer-memory {self.buffer_memory:g} holds {fitting} transitions of {each:,} bytes, of which the "
                f"smallest of {self.sharded()} shards has {self.smallest_shard(fitting)}, expected at least --batch in "
                f"each, which is {self.batch}"
            )
        return fitting

    def replay(self, frames: Mapping[str, Frames], capacity: int, *part: int) -> Callable[[], Replay]:
        """What makes the replay that the settings ask for, or a part of it (which, and how many held its place before),
        where no algorithm need be known."""
        kept: dict[str, Any] = {
            "seed": seeding.integer(self.seed, "replay", *part),
            "frames": frames,
            "n_step": self.n_step,
        }
        if self.prioritized:
            return partial(PrioritizedReplay, capacity, alpha=self.alpha, **kept)
        return partial(UniformReplay, capacity, **kept)

    def recent(self, frames: Mapping[str, Frames]) -> Callable[[], UniformReplay] | None:
        """What makes room for the rows that a worker's fragment makes transitions of, if it is to say how wrong the policy
        is about them."""
        rows = self.envs * (self.fragment + self.n_step + 1)
        return partial(UniformReplay, rows, frames=frames, n_step=self.n_step) if self.prioritized else None

    def row_bytes(self, observation: Space, action: Leaf, frames: Mapping[str, Frames]) -> int:
        """What a transition takes up."""
        return row_bytes(observation, action, frames, self.prioritized)

    def least(self) -> tuple[int, str]:
        """Transitions without which nothing could be learned, and what they are."""
        least = self._streams() * (self.fragment + self.n_step)
        return least, f"what all envs play in --fragment {self.fragment} and --n-step {self.n_step} steps"

    def _streams(self) -> int:
        return self.envs * max(self.workers, 1) if isinstance(self.workers, int) else self.envs


def shape_rewards(policy: Policy, batch: Batch, now: Any) -> Batch:
    """The rewards go into the replay as learning sees them."""
    return batch.with_columns(reward=shaped_rewards(batch, now).astype(np.float32))


def draws(config: Any, progress: float) -> Draws:
    now = config.at(progress)
    return Draws(config.batch, now.gamma, now.beta if config.prioritized else 0.0)


def replayed(config: ReplayConfig, setup: Setup, policy: Any) -> Optimizer:
    """The algorithm over its optimizer."""
    return STRATEGIES[config.optimizer](parts_of(config, setup, policy))


def parts_of(config: ReplayConfig, setup: Setup, policy: Any) -> Parts:
    """What an optimizer puts together."""
    frames = frames_of(setup.env)
    capacity = config.capacity(setup.observation_space, setup.action_space, frames)
    return Parts(
        config,
        setup,
        policy,
        lambda progress, update: sgd(config, progress, update),
        shape_rewards,
        partial(config.replay, frames),
        partial(draws, config),
        capacity,
        config.recent(frames),
    )
