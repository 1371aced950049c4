"""The loops without the library, pinned: plain torch, numpy and gymnasium at the speed that eager code has.

They do the work that Podium's own loops do (same env, network, sampling, log-probability, storage, one compute thread)
and nothing besides: no metrics, episode counts, checks, logs or checkpoints. Nothing in here imports Podium.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

LOG_2PI = math.log(2 * math.pi)
Act = Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]


class ActorCritic(nn.Module):
    """Separate tanh networks of 64 and 64 units: the action's parameters, and the value. `free` log standard deviations
    are learned beside them."""

    def __init__(self, inputs: int, outputs: int, free: int = 0) -> None:
        super().__init__()
        self.log_std = nn.Parameter(torch.zeros(free)) if free else None
        self.policy = _mlp(inputs, outputs, 0.01)
        self.value = _mlp(inputs, 1, 1.0)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        return self.policy(obs), self.value(obs).squeeze(-1)


class NatureActorCritic(nn.Module):
    """The CNN of the DQN paper over pictures [C, 84, 84] of bytes, one for the action's parameters and the value."""

    log_std = None

    def __init__(self, channels: int, outputs: int) -> None:
        super().__init__()
        gain, layers = math.sqrt(2), []
        for width, kernel, stride in ((32, 8, 4), (64, 4, 2), (64, 3, 1)):
            layers += [_initialised(nn.Conv2d(channels, width, kernel, stride), gain), nn.ReLU()]
            channels = width
        self.trunk = nn.Sequential(*layers, nn.Flatten(), _linear(64 * 7 * 7, 512, gain), nn.ReLU())
        self.policy, self.value = _linear(512, outputs, 0.01), _linear(512, 1, 1.0)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        features = self.trunk(obs / 255.0)
        return self.policy(features), self.value(features).squeeze(-1)


def _mlp(inputs: int, outputs: int, last_gain: float) -> nn.Sequential:
    gain = math.sqrt(2)
    hidden = [_linear(inputs, 64, gain), nn.Tanh(), _linear(64, 64, gain), nn.Tanh()]
    return nn.Sequential(*hidden, _linear(64, outputs, last_gain))


def _linear(inputs: int, outputs: int, gain: float) -> Any:
    return _initialised(nn.Linear(inputs, outputs), gain)


def _initialised(layer: Any, gain: float) -> Any:
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


@dataclass(frozen=True)
class Env:
    """A vector env as it comes, freshly reset to `first`. With `resets_late` the step after an episode's end is no step
    of the game: its action is ignored, and its observation begins the next episode."""

    vector: Any
    first: np.ndarray
    observation: Any
    action: Any
    n: int
    resets_late: bool


def make_env(name: str, n: int, args: Mapping[str, Any], seed: int = 0) -> Env:
    """A gymnasium id in its own vector class (or stepped one by one, if it has none), `atari:NAME` or `envpool:NAME`."""
    if name.startswith("atari:"):
        return _make_atari(name.removeprefix("atari:"), n, args, seed)
    if name.startswith("envpool:"):
        import envpool

        pool = envpool.make_gymnasium(name.removeprefix("envpool:"), num_envs=n, seed=seed, **args)
        return Env(pool, pool.reset()[0], pool.observation_space, pool.action_space, n, resets_late=True)
    import gymnasium

    mode = "sync" if gymnasium.spec(name).vector_entry_point is None else "vector_entry_point"
    vector = gymnasium.make_vec(name, num_envs=n, vectorization_mode=mode, **args)
    late = vector.metadata["autoreset_mode"] == gymnasium.vector.AutoresetMode.NEXT_STEP
    first = vector.reset(seed=seed)[0]
    return Env(vector, first, vector.single_observation_space, vector.single_action_space, n, late)


def _make_atari(game: str, n: int, args: Mapping[str, Any], seed: int) -> Env:
    """ale-py's vector env with the customary preprocessing and the reward as it is, stepped by every core."""
    from ale_py import AtariVectorEnv, roms

    rom = next(rom for rom in roms.get_all_rom_ids() if rom.replace("_", "") == game.lower())
    threads = min(len(os.sched_getaffinity(0)), n)
    vector = AtariVectorEnv(rom, n, num_threads=threads, reward_clipping=False, autoreset_mode="SameStep", **args)
    first = vector.reset(seed=seed + 1)[0]
    return Env(vector, first, vector.single_observation_space, vector.single_action_space, n, resets_late=False)


def sample_choice(logits: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Actions and their log-probabilities: where the cumulated softmax passes a uniform number."""
    logp = logits.log_softmax(-1)
    cumulated = logp.exp().cumsum(-1)
    draw = torch.rand(len(logits), 1, generator=rng) * cumulated[:, -1:]
    action = (cumulated <= draw).sum(-1).clamp_(max=logits.shape[-1] - 1)
    return action, logp.gather(-1, action[:, None])[:, 0]


def choice_log_prob(logits: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
    """The log-probabilities of actions, and the entropies."""
    logp = logits.log_softmax(-1)
    return logp.gather(-1, action[:, None])[:, 0], -(logp.exp() * logp).sum(-1)


def sample_normal(mean: Tensor, log_std: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Actions and their log-probabilities under independent normal distributions."""
    noise = torch.randn(mean.shape, generator=rng)
    logp = -0.5 * (noise * noise).sum(-1) - log_std.sum() - 0.5 * mean.shape[-1] * LOG_2PI
    return mean + log_std.exp() * noise, logp


def actor(env: Env, network: Any, rng: torch.Generator) -> Act:
    """From observations to (action, log-probability, value)."""
    if hasattr(env.action, "n"):

        def choose(obs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            logits, value = network(obs)
            return *sample_choice(logits, rng), value

        return choose

    def reach(obs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, value = network(obs)
        return *sample_normal(mean, network.log_std, rng), value

    return reach


def action_converter(space: Any) -> Callable[[np.ndarray], np.ndarray]:
    """Actions as the env takes them: choices counted from its start, numbers clipped to its bounds."""
    if hasattr(space, "n"):
        start = int(space.start)
        return (lambda action: action + start) if start else (lambda action: action)
    low, high, shape = space.low, space.high, space.shape
    return lambda action: np.minimum(np.maximum(action.reshape(-1, *shape), low), high)


def network_for(env: Env) -> nn.Module:
    """The default networks for an env, or for pictures the DQN paper's."""
    if len(env.observation.shape) == 3:
        return NatureActorCritic(env.observation.shape[0], int(env.action.n))
    inputs = env.observation.shape[0]
    if hasattr(env.action, "n"):
        return ActorCritic(inputs, int(env.action.n))
    size = math.prod(env.action.shape)
    return ActorCritic(inputs, size, free=size)


class Sampling:
    """Steps the env with the network and keeps what happens in arrays `[T, N]`, allocated once."""

    def __init__(self, env: Env, network: nn.Module, length: int, seed: int = 0) -> None:
        self.env, self.length = env, length
        self._act = actor(env, network, torch.Generator().manual_seed(seed))
        self._to_env = action_converter(env.action)
        choices = hasattr(env.action, "n")
        width = () if choices else (math.prod(env.action.shape),)
        shape = (length, env.n)
        self.obs = np.zeros((*shape, *env.observation.shape), env.observation.dtype)
        self.action = np.zeros((*shape, *width), np.int64 if choices else np.float32)
        self.logp, self.value, self.reward = (np.zeros(shape, np.float32) for _ in range(3))
        self.terminated, self.truncated = np.zeros(shape, bool), np.zeros(shape, bool)
        self.resetting = np.zeros(shape, bool)
        self._over = np.zeros(env.n, bool)
        self.next_obs = env.first

    @torch.inference_mode()
    def collect(self) -> int:
        """Fill the arrays once more and return how many steps of the game they hold."""
        act, to_env, step, obs = self._act, self._to_env, self.env.vector.step, self.next_obs
        for t in range(self.length):
            self.obs[t] = obs
            action, logp, value = act(torch.from_numpy(self.obs[t]).float())
            chosen = action.numpy()
            self.action[t], self.logp[t], self.value[t] = chosen, logp.numpy(), value.numpy()
            obs, self.reward[t], self.terminated[t], self.truncated[t], _ = step(to_env(chosen))
        self.next_obs = obs
        return self._count()

    def _count(self) -> int:
        if self.env.resets_late:
            self.resetting[0] = self._over
            np.logical_or(self.terminated[:-1], self.truncated[:-1], out=self.resetting[1:])
            self._over = self.terminated[-1] | self.truncated[-1]
        return self.resetting.size - int(np.count_nonzero(self.resetting))


@dataclass(frozen=True)
class PPOSettings:
    """The settings that every contender of `bench learning` gets."""

    envs: int = 8
    fragment: int = 32
    minibatch: int = 256
    epochs: int = 20
    lr: float = 1e-3
    gamma: float = 0.98
    gae_lambda: float = 0.8
    clip: float = 0.2
    value_coef: float = 0.5
    entropy: float = 0.0
    max_grad_norm: float = 0.5
    adam_eps: float = 1e-5


@dataclass(frozen=True)
class Rows:
    """Rows of a batch as tensors."""

    obs: Tensor
    action: Tensor
    logp: Tensor
    advantage: Tensor
    target: Tensor

    def take(self, index: Tensor) -> Rows:
        columns = (self.obs, self.action, self.logp, self.advantage, self.target)
        return Rows(*(column.index_select(0, index) for column in columns))


def ppo_loss(network: nn.Module, rows: Rows, settings: PPOSettings) -> Tensor:
    """The clipped surrogate, the value loss and the entropy bonus."""
    logits, value = network(rows.obs)
    logp, entropy = choice_log_prob(logits, rows.action)
    ratio = (logp - rows.logp).exp()
    advantage = (rows.advantage - rows.advantage.mean()) / (rows.advantage.std() + 1e-8)
    clipped = ratio.clamp(1 - settings.clip, 1 + settings.clip)
    policy_loss = -torch.min(ratio * advantage, clipped * advantage).mean()
    value_loss = 0.5 * (value - rows.target).square().mean()
    return policy_loss + settings.value_coef * value_loss - settings.entropy * entropy.mean()


def gae(
    reward: np.ndarray,
    value: np.ndarray,
    last_value: np.ndarray,
    terminated: np.ndarray,
    truncated: np.ndarray,
    gamma: float,
    lam: float,
) -> np.ndarray:
    """Advantages where the row after an episode's end shows its final observation, as envs that reset late have it."""
    advantage = np.zeros_like(reward)
    following, carried = last_value, np.zeros_like(last_value)
    for t in range(len(reward) - 1, -1, -1):
        delta = reward[t] + gamma * following * ~terminated[t] - value[t]
        carried = delta + gamma * lam * carried * ~(terminated[t] | truncated[t])
        advantage[t], following = carried, value[t]
    return advantage


class PPO:
    """PPO as one would write it by hand in a file, for an env of choices that resets late."""

    def __init__(self, env: Env, network: nn.Module, settings: PPOSettings, seed: int = 0) -> None:
        self.network, self.settings = network, settings
        self.sampling = Sampling(env, network, settings.fragment, seed)
        self.optimizer = torch.optim.Adam(network.parameters(), lr=settings.lr, eps=settings.adam_eps)

    def iterate(self) -> int:
        """Sample a fragment, learn on it, and return how many steps of the game it held."""
        steps = self.sampling.collect()
        self._update(self._rows())
        return steps

    def _rows(self) -> Rows:
        kept, settings = self.sampling, self.settings
        with torch.inference_mode():
            last_value = self.network(torch.from_numpy(kept.next_obs).float())[1].numpy()
        advantage = gae(
            kept.reward,
            kept.value,
            last_value,
            kept.terminated,
            kept.truncated,
            settings.gamma,
            settings.gae_lambda,
        )
        played = ~kept.resetting
        columns = (kept.obs, kept.action, kept.logp, advantage, advantage + kept.value)
        return Rows(*(torch.from_numpy(column[played]) for column in columns))

    def _update(self, rows: Rows) -> None:
        settings, parameters = self.settings, list(self.network.parameters())
        for _ in range(settings.epochs):
            for index in torch.randperm(len(rows.obs)).split(settings.minibatch):
                loss = ppo_loss(self.network, rows.take(index), settings)
                self.optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(parameters, settings.max_grad_norm)
                self.optimizer.step()
