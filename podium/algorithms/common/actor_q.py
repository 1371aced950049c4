"""What the algorithms with an actor and critics share: settings, and how their policy is made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch

from podium.algorithms.common.base import Algorithm, Setup
from podium.algorithms.common.off_policy import REFUSED, ReplayConfig, replayed, shape_rewards
from podium.core.config import Schedule, setting
from podium.core.imports import load_attribute
from podium.core.spaces import Leaf, Space
from podium.optimizers.base import Optimizer
from podium.policies.acting import Acting
from podium.policies.actor_q import ActorQLoss, ActorQPolicy
from podium.policies.devices import device


@dataclass(frozen=True)
class ActorQConfig(ReplayConfig):
    """Settings of an actor and its critics; the defaults are those of the papers' physics tasks."""

    envs: int = setting(1, "envs per evaluator, stepped together", low=1)
    fragment: int = setting(8, "steps per env in a sample", unit="steps", low=1)
    eval_every: int | None = setting(10_000, "between evaluations on separate, uncounted envs", unit="env steps", low=1)
    buffer: int = setting(1_000_000, "transitions that are kept", low=1)
    batch: int = setting(256, "transitions in a minibatch", low=1)
    hidden: tuple[int, ...] = setting((256, 256), "sizes of the hidden layers", low=1)
    max_grad_norm: float | Schedule | None = setting(
        None, "longer gradients of the actor, and of the critics, are scaled down to this norm", above=0
    )
    lr: float | Schedule = setting(3e-4, "Adam's step size", low=0, high=10)
    actor_lr: float | Schedule | None = setting(None, "the actor's own; none is --lr", low=0, high=10)
    tau: float | Schedule = setting(0.005, "share of the way that targets go to the networks", above=0, high=1)
    critics: int = setting(2, "of which the least is believed", low=1, high=100)
    layer_norm: bool = setting(False, "normalise the critics' hidden layers")
    critic_dropout: float = setting(
        0.0, "share of the critics' hidden units that are dropped in learning", low=0, high=0.99
    )


@dataclass(frozen=True)
class PointConfig(ActorQConfig):
    """Settings of those whose actor says one action, to which exploring adds noise."""

    lr: float | Schedule = setting(1e-3, "Adam's step size", low=0, high=10)
    noise_kind: Literal["gaussian", "ou"] = setting("gaussian", "exploration noise: new at each step, or wandering")
    action_noise: float | Schedule = setting(0.1, "its standard deviation, in half widths of the bounds", low=0)
    ou_theta: float = setting(
        0.15,
        "share by which wandering noise is drawn back",
        unit="per step",
        above=0,
        high=1,
        only=("noise_kind", ("ou",)),
    )


MakeActing = Callable[[Any, Leaf, torch.device], Acting]


def actor_q(
    name: str,
    config: type[ActorQConfig],
    loss: ActorQLoss,
    make_acting: MakeActing,
    presets: Mapping[str, Mapping[str, Any]],
) -> Algorithm:
    """An algorithm from its loss and its way of acting."""
    policy = partial(_make_policy, loss, make_acting)

    def build(settings: Any, setup: Setup) -> Optimizer:
        make_acting(settings, setup.action_space, torch.device("cpu"))  # refuses actions that do not fit
        return replayed(settings, setup, policy)

    return Algorithm(name, config, policy, build, presets, REFUSED)


def _make_policy(
    loss: ActorQLoss, make_acting: MakeActing, settings: Any, observation_space: Space, action_space: Leaf, seed: int
) -> ActorQPolicy:
    """At the module's level, so that it can be sent to where an evaluator is spawned."""
    model = load_attribute(settings.model, "model") if isinstance(settings.model, str) else settings.model
    return ActorQPolicy(
        settings,
        observation_space,
        action_space,
        acting=make_acting(settings, action_space, device(settings.device)),
        loss=loss,
        postprocess=shape_rewards,
        model=model,
        seed=seed,
    )
