"""R2D2 (Kapturowski et al., 2019): DQN with a memory, which learns from sequences that begin with a stored state."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

from podium.algorithms.common.base import Algorithm, Setup
from podium.algorithms.common.off_policy import REFUSED, replayed, shape_rewards
from podium.algorithms.dqn import DQNConfig, loss
from podium.core import seeding
from podium.core.config import Schedule, setting, show
from podium.core.errors import ConfigError
from podium.core.spaces import Frames, Leaf, Space
from podium.optimizers.base import Optimizer
from podium.policies.q import discrete
from podium.policies.q_sequences import SequenceQPolicy
from podium.replay.base import Replay, row_bytes
from podium.replay.sequences import SequenceReplay

STATES = {"lstm": 2, "gru": 1}
"""Vectors of a memory's state."""


@dataclass(frozen=True)
class R2D2Config(DQNConfig):
    """DQN's settings with those of a memory, and the paper's choice of parts; the sizes are for small tasks."""

    lr: float | Schedule = setting(1e-3, "Adam's step size", low=0, high=10)
    gamma: float | Schedule = setting(0.997, "discount per step", low=0, high=1)
    hidden: tuple[int, ...] = setting((64,), "sizes of the hidden layers", low=1)
    memory: Literal["lstm", "gru"] = setting("lstm", "a recurrent layer after the encoder")
    memory_size: int = setting(64, "units of the recurrent layer", low=1)
    batch: int = setting(32, "sequences in a minibatch", low=1)
    sequence: int = setting(60, "rows of an env that are drawn together, those of --burn-in among them", low=1)
    burn_in: int = setting(10, "of a sequence, which only lead the state to the others", unit="rows", low=0)
    sequence_every: int = setting(10, "from the beginning of one sequence to that of the next", unit="rows", low=1)
    train_every: float = setting(16.0, "for each update; 0.5 makes two updates for each", unit="env steps", above=0)
    n_step: int = setting(5, "rewards that are summed before the value of what follows", unit="steps", low=1, high=1000)
    prioritized: bool = setting(True, "draw sequences by how wrong the policy was about them")
    alpha: float = setting(0.9, "priorities are errors to this power", low=0, high=1, only=("prioritized", (True,)))
    beta: float | Schedule = setting(
        0.6, "how far weights make up for priorities", low=0, high=1, only=("prioritized", (True,))
    )
    eta: float = setting(
        0.9,
        "a sequence's error: this share of the greatest of its rows, the rest of their mean",
        low=0,
        high=1,
        only=("prioritized", (True,)),
    )
    double: bool = setting(True, "the network chooses the next action, its target says what that is worth")
    dueling: bool = setting(True, "one stream of layers for the state's value, one for what actions add")
    rescale: bool = setting(True, "learn returns on a scale on which large ones are small")

    def check(self) -> None:
        super().check()
        if self.model is not None:
            raise ConfigError(f"--model {show(self.model)} would not be read: r2d2's network has a memory of its own")
        if self.burn_in >= self.sequence:
            raise ConfigError(
                f"--burn-in is {self.burn_in}, expected less than --sequence, which is {self.sequence}: the rows behind "
                "it are learned from"
            )
        if self.n_step > self.sequence - self.burn_in:
            raise ConfigError(
                f"--n-step is {self.n_step}, expected at most {self.sequence - self.burn_in}, the rows of --sequence "
                f"{self.sequence} behind --burn-in {self.burn_in}"
            )

    def replay(self, frames: Mapping[str, Frames], capacity: int, *part: int) -> Callable[[], Replay]:
        return partial(
            SequenceReplay,
            capacity,
            length=self.sequence - self.burn_in,
            burn_in=self.burn_in,
            every=self.sequence_every,
            seed=seeding.integer(self.seed, "replay", *part),
            frames=frames,
            alpha=self.alpha if self.prioritized else 0.0,
            eta=self.eta,
        )

    def recent(self, frames: Mapping[str, Frames]) -> None:
        """Sequences come in with the greatest priority: a worker would have to hold whole ones to know another."""

    def row_bytes(self, observation: Space, action: Leaf, frames: Mapping[str, Frames]) -> int:
        """With the stored state; sequences that are drawn alike have priorities too."""
        return row_bytes(observation, action, frames, True) + 4 * STATES[self.memory] * self.memory_size

    def least(self) -> tuple[int, str]:
        """As many sequences as a minibatch has: with fewer there would never be one."""
        streams = self._streams()
        each = self.sequence - 1 + self.sequence_every * math.ceil(self.batch / streams)
        drawn = f"a --batch of {self.batch} --sequence {self.sequence} rows long, one each --sequence-every "
        return max(
            (streams * each, f"{drawn}{self.sequence_every} of {streams} envs"),
            (
                streams * (self.fragment + self.sequence),
                f"what all envs play in --fragment {self.fragment} and --sequence {self.sequence} steps",
            ),
        )


def make_policy(config: R2D2Config, observation_space: Space, action_space: Leaf, seed: int) -> SequenceQPolicy:
    return SequenceQPolicy(config, observation_space, action_space, loss=loss, postprocess=shape_rewards, seed=seed)


def build(config: R2D2Config, setup: Setup) -> Optimizer:
    discrete(setup.action_space)
    return replayed(config, setup, make_policy)


ALGORITHM = Algorithm("r2d2", R2D2Config, make_policy, build, refused=REFUSED)
