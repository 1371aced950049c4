"""Deep Q-learning (Mnih et al., 2015) with the parts of Rainbow (Hessel et al., 2018), each a setting of its own."""

from __future__ import annotations

from dataclasses import dataclass, fields
from types import SimpleNamespace
from typing import Literal

from torch import Tensor

from podium.algorithms.common.base import Algorithm, Setup
from podium.algorithms.common.off_policy import REFUSED, ReplayConfig, replayed, shape_rewards
from podium.algorithms.common.tuned import tuned
from podium.core.config import Schedule, flag, setting, show
from podium.core.errors import ConfigError
from podium.core.imports import load_attribute
from podium.core.spaces import Leaf, Space
from podium.optimizers.base import Optimizer
from podium.policies.q import QPolicy, Said, discrete
from podium.policies.torch import Minibatch, Report

DISTRIBUTIONS = ("categorical", "quantile")


@dataclass(frozen=True)
class DQNConfig(ReplayConfig):
    """DQN's own settings; the defaults are for small classic control tasks."""

    steps: int = setting(100_000, "end after the first iteration with this many env steps", unit="env steps", low=1)
    fragment: int = setting(1, "steps per env in a sample", unit="steps", low=1)
    lr: float | Schedule = setting(1e-3, "Adam's step size", low=0, high=10)
    hidden: tuple[int, ...] = setting((128, 128), "sizes of the hidden layers", low=1)
    train_every: float = setting(2.0, "for each update; 0.5 makes two updates for each", unit="env steps", above=0)
    epsilon: float | Schedule = setting(Schedule.parse("1->0.04@0.1"), "share of random actions", low=0, high=1)
    epsilon_spread: float = setting(0.0, "of all envs the last has epsilon to 1 plus this power", low=0)
    target_every: int = setting(128, "after which the target network follows", unit="updates", low=1)
    double: bool = setting(False, "the network chooses the next action, its target says what that is worth")
    dueling: bool = setting(False, "one stream of layers for the state's value, one for what actions add")
    noisy: bool = setting(False, "explore by noise in the layers")
    noise: float = setting(0.5, "how much of it at the start", above=0, only=("noisy", (True,)))
    distribution: Literal["none", "categorical", "quantile"] = setting(
        "none", "learn the return's distribution: by fixed places (C51) or by quantiles (QR-DQN)"
    )
    atoms: int = setting(51, "places or quantiles", low=2, high=10_000, only=("distribution", DISTRIBUTIONS))
    v_min: float = setting(-100.0, "the lowest place", only=("distribution", ("categorical",)))
    v_max: float = setting(100.0, "the highest place", only=("distribution", ("categorical",)))
    rescale: bool = setting(False, "learn returns on a scale on which large ones are small")

    def check(self) -> None:
        super().check()
        if self.v_min >= self.v_max:
            raise ConfigError(f"--v-min is {self.v_min:g}, expected less than --v-max, which is {self.v_max:g}")
        if self.model is not None:
            brought = {field.name: field.default for field in fields(self)}
            for name in ("hidden", "activation", "dueling", "noisy"):
                if getattr(self, name) != brought[name]:
                    raise ConfigError(
                        f"{flag(name)} {show(getattr(self, name))} would not be read: --model brings its own"
                    )


def loss(said: Said, rows: Minibatch, now: SimpleNamespace) -> tuple[Tensor, Tensor, Report]:
    """Towards the rewards and the discounted worth of the next state's best action, as the target network sees it."""
    best = said.best(said.next_online if now.double else said.next_target)
    following = said.of(said.next_target, best)
    taken = said.of(said.outputs, said.action)
    losses, errors = said.value.loss(taken, following, rows["return"], rows["discount"])
    return losses, errors, {"td_error": lambda: errors.mean()}


def make_policy(config: DQNConfig, observation_space: Space, action_space: Leaf, seed: int) -> QPolicy:
    model = load_attribute(config.model, "model") if isinstance(config.model, str) else config.model
    return QPolicy(
        config, observation_space, action_space, loss=loss, postprocess=shape_rewards, model=model, seed=seed
    )


def build(config: DQNConfig, setup: Setup) -> Optimizer:
    discrete(setup.action_space)
    return replayed(config, setup, make_policy)


ALGORITHM = Algorithm("dqn", DQNConfig, make_policy, build, tuned("dqn"), REFUSED)
