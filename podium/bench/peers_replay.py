"""Stable-Baselines3's algorithms that learn from a replay, with the settings of a Podium run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from podium.core.errors import UsageError


def make_peer(algo: str, config: Any, env: Any) -> Any:
    """Its model with the same settings, networks included; what it has no word for is refused."""
    if algo not in SETTINGS:
        raise UsageError(f"--algo {algo} has no peer, expected one of {', '.join(SETTINGS)}")
    import stable_baselines3

    kind, own = SETTINGS[algo]
    shared = {
        "learning_rate": _number(config, "lr"),
        "buffer_size": config.buffer,
        "learning_starts": config.learning_starts,
        "batch_size": config.batch,
        "gamma": _number(config, "gamma"),
        "device": "cpu",
        "seed": config.seed,
        **_rhythm(config),
    }
    return getattr(stable_baselines3, kind)("MlpPolicy", env, **{**shared, **own(config, env)})


def _rhythm(config: Any) -> dict[str, int]:
    """So many env steps between rounds of so many updates: at least a step of every env."""
    steps = max(round(config.train_every), config.envs)
    if steps % config.envs or config.train_every != int(config.train_every):
        raise UsageError(f"--train-every {config.train_every:g} is nothing that sb3 has for {config.envs} envs")
    return {"train_freq": steps // config.envs, "gradient_steps": max(steps // int(config.train_every), 1)}


def _dqn(config: Any, env: Any) -> dict[str, Any]:
    _plain(config, "double", "dueling", "prioritized", "noisy", n_step=1, distribution="none")
    first, (share, last) = config.epsilon.points[0], config.epsilon.points[1]
    return {
        "exploration_initial_eps": first[1],
        "exploration_final_eps": last,
        "exploration_fraction": share,
        "target_update_interval": int(config.target_every * config.train_every),
        "max_grad_norm": _number(config, "max_grad_norm"),
        "policy_kwargs": {**_networks(config), **_pictures(env.observation_space)},
    }


def _sac(config: Any, env: Any) -> dict[str, Any]:
    _plain(config, "prioritized", "layer_norm", n_step=1, max_grad_norm=None, critic_dropout=0.0)
    return {
        "tau": _number(config, "tau"),
        "ent_coef": f"auto_{config.entropy_start:g}" if config.entropy == "auto" else _number(config, "entropy"),
        "target_entropy": "auto" if config.target_entropy is None else config.target_entropy,
        "policy_kwargs": _networks(config),
    }


def _td3(config: Any, env: Any) -> dict[str, Any]:
    return _noisy(config, env) | {
        "policy_delay": config.policy_delay,
        "target_policy_noise": _number(config, "target_noise"),
        "target_noise_clip": _number(config, "target_noise_clip"),
    }


def _noisy(config: Any, env: Any) -> dict[str, Any]:
    import numpy as np
    from stable_baselines3.common.noise import NormalActionNoise

    _plain(config, "prioritized", "layer_norm", n_step=1, max_grad_norm=None, critic_dropout=0.0, noise_kind="gaussian")
    size = env.action_space.shape
    noise = NormalActionNoise(np.zeros(size), np.full(size, _number(config, "action_noise")))
    return {"tau": _number(config, "tau"), "action_noise": noise, "policy_kwargs": _networks(config)}


SETTINGS: Mapping[str, tuple[str, Callable[[Any, Any], dict[str, Any]]]] = {
    "dqn": ("DQN", _dqn),
    "sac": ("SAC", _sac),
    "td3": ("TD3", _td3),
    "ddpg": ("DDPG", _noisy),
}


def _plain(config: Any, *off: str, **expected: Any) -> None:
    for name, value in {**dict.fromkeys(off, False), **expected}.items():
        if getattr(config, name) != value:
            raise UsageError(f"{name} is {getattr(config, name)!r}, which sb3 has no word for; expected {value!r}")


def _number(config: Any, name: str) -> float:
    value = getattr(config, name)
    if not isinstance(value, int | float):
        raise UsageError(f"{name} is {value}, expected one number: sb3 is given the same")
    return float(value)


def _networks(config: Any) -> dict[str, Any]:
    from torch import nn

    kinds = {"relu": nn.ReLU, "tanh": nn.Tanh, "elu": nn.ELU, "silu": nn.SiLU}
    return {"net_arch": list(config.hidden), "activation_fn": kinds[config.activation]}


def _pictures(space: Any) -> dict[str, Any]:
    """For pictures that its own convolutions are too large for: Podium's."""
    from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
    from torch import Tensor

    from podium.core.spaces import Box
    from podium.policies.networks import NatureCNN

    if len(space.shape) != 3:
        return {}

    class Pictures(BaseFeaturesExtractor):
        def __init__(self, observed: Any) -> None:
            network = NatureCNN(Box(observed.low, observed.high, observed.dtype))
            super().__init__(observed, features_dim=network.width)
            self.network = network

        def forward(self, x: Tensor) -> Tensor:
            return self.network(x)

    return {"features_extractor_class": Pictures, "normalize_images": False}
