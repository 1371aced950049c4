"""What the on-policy algorithms share: settings of the network and the loss, and how a trajectory is finished."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import partial
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import torch

from podium.algorithms.common.base import EVOLUTION_OPTIMIZERS, REPLAY_OPTIMIZERS, Algorithm, RunConfig, Setup
from podium.algorithms.common.strategies import STRATEGIES, Parts
from podium.core import returns, seeding
from podium.core.batch import Batch
from podium.core.config import Schedule, flag, setting, show
from podium.core.errors import ConfigError
from podium.core.imports import load_attribute
from podium.core.spaces import Leaf, Space
from podium.optimizers.base import Optimizer
from podium.policies.base import Policy, Sgd
from podium.policies.torch import Loss, Postprocess, Targets, TorchPolicy
from podium.policies.trajectory import next_values

OLD_SAMPLES = (
    "its samples would be older than the weights that learn on them, which V-trace alone makes good (impala, appo)"
)
REPLAYED = "it learns from what its policy has just done, not from a replay of long ago"
PERTURBED = "it has a loss to go down, and that compares the returns of perturbed weights"
ONE_GRADIENT = "it makes several passes over a sample, and a worker sends one gradient for each"


@dataclass(frozen=True)
class OnPolicyConfig(RunConfig):
    """Settings of a policy (and value) network trained on what it just did."""

    lr: float | Schedule = setting(3e-4, "Adam's step size", low=0, high=10)
    gamma: float | Schedule = setting(0.99, "discount per step", low=0, high=1)
    entropy: float | Schedule = setting(0.0, "weight of the entropy bonus", low=0)
    max_grad_norm: float | Schedule | None = setting(0.5, "longer gradients are scaled down to this norm", above=0)
    adam_eps: float = setting(1e-5, "Adam's epsilon", above=0)
    model: Any | None = setting(
        None, "your own network, as module:function of (space, outputs) that returns an nn.Module"
    )
    hidden: tuple[int, ...] = setting((64, 64), "sizes of the hidden layers", low=1)
    activation: Literal["tanh", "relu", "elu", "silu"] = setting("tanh", "between the layers")
    memory: Literal["none", "lstm", "gru"] = setting("none", "a recurrent layer after the encoder")
    memory_size: int = setting(64, "units of the recurrent layer", low=1, only=("memory", ("lstm", "gru")))
    log_std: float = setting(0.0, "log standard deviation of continuous actions at the start", low=-20, high=2)
    squash: bool = setting(False, "squash continuous actions through tanh onto their bounds")
    normalize_obs: bool = setting(False, "normalise observations by their running mean and variance")
    reward_scale: float | Schedule = setting(1.0, "rewards are multiplied by this before learning", above=0)
    reward_clip: float | None = setting(None, "then clipped to plus and minus this", above=0)
    normalize_advantage: bool = setting(True, "give the advantages of a minibatch mean 0 and variance 1")

    def check(self) -> None:
        super().check()
        if self.model is not None:
            for name in ("hidden", "activation", "memory", "shared"):
                default = next((f.default for f in fields(self) if f.name == name), None)
                if getattr(self, name, default) != default:
                    raise ConfigError(
                        f"{flag(name)} {show(getattr(self, name))} would not be read: --model brings its own"
                    )


@dataclass(frozen=True)
class CriticConfig(OnPolicyConfig):
    """Settings of the algorithms that learn a value function too."""

    value_coef: float | Schedule = setting(0.5, "weight of the value loss", low=0)
    shared: bool = setting(False, "one trunk for policy and value instead of one each")


@dataclass(frozen=True)
class ActorCriticConfig(CriticConfig):
    """Settings of those whose advantages are GAE's."""

    gae_lambda: float | Schedule = setting(0.95, "GAE's trade of bias for variance", low=0, high=1)


@dataclass(frozen=True)
class VtraceConfig(CriticConfig):
    """Settings of those whose advantages are V-trace's."""

    rho_clip: float = setting(1.0, "V-trace's limit of the ratio that weighs an error", above=0)
    c_clip: float = setting(1.0, "V-trace's limit of the ratio that carries later errors back", above=0)


def shaped_rewards(batch: Batch, now: SimpleNamespace) -> np.ndarray:
    """The rewards as learning sees them."""
    rewards = batch["reward"] * np.float32(now.reward_scale)
    return rewards if now.reward_clip is None else rewards.clip(-now.reward_clip, now.reward_clip)


def advantages(policy: Policy, batch: Batch, now: SimpleNamespace) -> Batch:
    """GAE advantages, and the returns that the value function is to learn."""
    terminated, done = batch["terminated"], batch["terminated"] | batch["truncated"]
    values = batch["value"]
    advantage = returns.gae(
        shaped_rewards(batch, now),
        values,
        next_values(policy, batch),
        terminated.astype(np.float32),
        done.astype(np.float32),
        now.gamma,
        now.gae_lambda,
    )
    return batch.with_columns(**{"advantage": advantage, "return": advantage + values})


def vtrace_targets(
    policy: TorchPolicy, batch: Batch, now: SimpleNamespace, logp: np.ndarray, values: np.ndarray
) -> dict[str, np.ndarray]:
    """Value targets and advantages (Espeholt et al., 2018) for experience of older weights, from what the current policy
    says of it; `rho` is the clipped ratio of the two."""
    terminated, done = batch["terminated"], batch["terminated"] | batch["truncated"]
    log_ratio = logp - batch["logp"]
    rho = np.exp(log_ratio).clip(max=now.rho_clip)
    targets, weighed = returns.vtrace(
        shaped_rewards(batch, now),
        values,
        next_values(policy, batch.with_columns(value=values)),
        terminated.astype(np.float32),
        done.astype(np.float32),
        log_ratio,
        now.gamma,
        now.rho_clip,
        now.c_clip,
    )
    return {"return": targets, "advantage": weighed / np.maximum(rho, np.float32(1e-6)), "rho": rho}


def as_played(policy: Policy, batch: Batch, now: SimpleNamespace) -> Batch:
    """Nothing is known where it was played: the targets are worked out where it is learned on."""
    return batch


def normalized(advantage: torch.Tensor, now: SimpleNamespace) -> torch.Tensor:
    """The advantages with mean 0 and variance 1, if the settings ask for it."""
    if not now.normalize_advantage or len(advantage) < 2:
        return advantage
    deviation, mean = torch.std_mean(advantage)
    return (advantage - mean) / (deviation + 1e-8)


def on_policy(
    name: str,
    config: type[OnPolicyConfig],
    loss: Loss,
    postprocess: Postprocess,
    model: Any = None,
    presets: Mapping[str, Mapping[str, Any]] = {},
    targets: Targets | None = None,
    refused: Mapping[str, str] | None = None,
) -> Algorithm:
    """An on-policy algorithm from its settings and the functions of the paper's policy graph. `refused` are the
    optimizers under which it makes no sense, each with the reason; with `targets` it bears older weights' samples."""

    policy = partial(_make_policy, loss, postprocess, targets, model)

    def build(settings: Any, setup: Setup) -> Optimizer:
        parts = Parts(settings, setup, policy, lambda progress, update: sgd(settings, progress, update), postprocess)
        return STRATEGIES[settings.optimizer](parts)

    if refused is None:
        refused = {} if targets is not None else {"async_samples": OLD_SAMPLES}
    never = {**dict.fromkeys(REPLAY_OPTIMIZERS, REPLAYED), **dict.fromkeys(EVOLUTION_OPTIMIZERS, PERTURBED)}
    return Algorithm(name, config, policy, build, presets, {**refused, **never})


def _make_policy(
    loss: Loss,
    postprocess: Postprocess,
    targets: Targets | None,
    model: Any,
    settings: Any,
    observation_space: Space,
    action_space: Leaf,
    seed: int,
) -> TorchPolicy:
    """At the module's level, so that it can be sent to where an evaluator is spawned."""
    own = load_attribute(settings.model, "model") if isinstance(settings.model, str) else settings.model
    chosen = own if own is not None else model
    return TorchPolicy(
        settings,
        observation_space,
        action_space,
        loss=loss,
        postprocess=postprocess,
        targets=targets,
        model=chosen,
        seed=seed,
    )


def sgd(settings: Any, progress: float, update: int) -> Sgd:
    """How to go over the batch of an update: once and whole, unless the algorithm has settings that say otherwise."""
    now = settings.at(progress)
    target_kl = getattr(now, "target_kl", None)
    return Sgd(
        progress=progress,
        seed=seeding.integer(settings.seed, "sgd", update),
        epochs=round(getattr(now, "epochs", 1)),
        minibatch=getattr(now, "minibatch", None),
        stop_above=None if target_kl is None else ("kl", 1.5 * target_kl),
    )
