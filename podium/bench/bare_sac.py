"""SAC and TD3 without the library, pinned: plain torch, numpy and gymnasium, both critics as one batched product.

They do the work that Podium's own loops do (same env, networks, replay, one compute thread) and nothing besides: no
metrics, checks, logs, evaluations or checkpoints. Nothing in here imports Podium but the other pinned loops.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from podium.bench.bare import Env

LOG_2PI = math.log(2 * math.pi)
LOG_STD = (-20.0, 2.0)


@dataclass(frozen=True)
class Settings:
    """The settings that every contender of `bench learning --algo sac` (or td3) gets."""

    hidden: tuple[int, ...] = (256, 256)
    batch: int = 256
    buffer: int = 1_000_000
    learning_starts: int = 300
    lr: float = 3e-4
    gamma: float = 0.99
    tau: float = 0.005
    action_noise: float = 0.1
    policy_delay: int = 2
    target_noise: float = 0.2
    target_noise_clip: float = 0.5


class Layers(nn.Module):
    """`count` MLPs side by side, `[B, inputs]` to `[count, B, outputs]`."""

    def __init__(self, count: int, inputs: int, outputs: int, hidden: tuple[int, ...]) -> None:
        super().__init__()
        pairs = list(pairwise([inputs, *hidden, outputs]))
        self.weights = nn.ParameterList([_uniform((count, *pair), pair[0]) for pair in pairs])
        self.biases = nn.ParameterList([_uniform((count, 1, after), before) for before, after in pairs])
        self._layers = list(zip(self.weights, self.biases, strict=True))
        self.count = count

    def forward(self, x: Tensor) -> Tensor:
        x = x.expand(self.count, *x.shape)
        *inner, (weight, bias) = self._layers
        for inner_weight, inner_bias in inner:
            x = torch.baddbmm(inner_bias, x, inner_weight).relu_()
        return torch.baddbmm(bias, x, weight)


def _uniform(shape: tuple[int, ...], inputs: int) -> Tensor:
    bound = 1 / math.sqrt(inputs)
    return torch.empty(shape).uniform_(-bound, bound)


class Replay:
    """Transitions of one env in arrays."""

    def __init__(self, capacity: int, observed: int, acted: int) -> None:
        self.obs, self.after = (np.empty((capacity, observed), np.float32) for _ in range(2))
        self.action = np.empty((capacity, acted), np.float32)
        self.reward, self.goes_on = (np.empty(capacity, np.float32) for _ in range(2))
        self.capacity, self.added = capacity, 0
        self._rng = np.random.default_rng(0)

    def add(self, obs: np.ndarray, action: np.ndarray, reward: float, after: np.ndarray, terminated: bool) -> None:
        at = self.added % self.capacity
        self.obs[at], self.action[at], self.reward[at] = obs, action, reward
        self.after[at], self.goes_on[at] = after, not terminated
        self.added += 1

    def sample(self, count: int) -> list[Tensor]:
        index = self._rng.integers(min(self.added, self.capacity), size=count)
        columns = (self.obs, self.action, self.reward, self.after, self.goes_on)
        return [torch.from_numpy(column[index]) for column in columns]


class Loop:
    """One env step, and once there is enough one update."""

    def __init__(self, env: Env, settings: Settings, outputs: int, critics: int) -> None:
        self.env, self.settings = env, settings
        observed, self.d = env.observation.shape[0], env.action.shape[0]
        self.actor = Layers(1, observed, outputs, settings.hidden)
        self.critics = Layers(critics, observed + self.d, 1, settings.hidden)
        self.replay = Replay(settings.buffer, observed, self.d)
        self.updates = 0
        self._adam = {
            name: torch.optim.Adam(net.parameters(), lr=settings.lr, fused=True)
            for name, net in (("actor", self.actor), ("critics", self.critics))
        }
        self._scale, self._center = (
            (env.action.high - env.action.low) / 2,
            (env.action.high + env.action.low) / 2,
        )
        self._obs, self._over = env.first, False
        self._rng = np.random.default_rng(0)

    def iterate(self) -> int:
        """Step the env, learn, and return how many updates that were."""
        starting = self.replay.added < self.settings.learning_starts
        action = self._rng.uniform(-1, 1, (1, self.d)).astype(np.float32) if starting else self.explore()
        to_env = (self._center + self._scale * action).astype(np.float32)
        after, reward, terminated, truncated, _ = self.env.vector.step(to_env)
        if not self._over:
            self.replay.add(self._obs[0], action[0], reward[0], after[0], terminated[0])
        self._obs, self._over = after, bool(terminated[0] or truncated[0])
        if starting:
            return 0
        self.updates += 1
        self.update(*self.replay.sample(self.settings.batch))
        return 1

    @torch.inference_mode()
    def explore(self) -> np.ndarray:
        return self.act(torch.from_numpy(self._obs).float()).numpy()

    def act(self, obs: Tensor) -> Tensor:
        raise NotImplementedError

    def update(self, obs: Tensor, action: Tensor, reward: Tensor, after: Tensor, goes_on: Tensor) -> None:
        raise NotImplementedError

    def step(self, name: str, loss: Tensor) -> None:
        self._adam[name].zero_grad()
        loss.backward()
        self._adam[name].step()

    def learn_critics(self, obs: Tensor, action: Tensor, target: Tensor) -> None:
        self.critics.requires_grad_(True)
        error = self.critics(torch.cat([obs, action], -1))[..., 0] - target
        self.step("critics", 0.5 * (error * error).mean(-1).sum())
        self.critics.requires_grad_(False)

    @torch.no_grad()
    def follow(self, target: nn.Module, net: nn.Module) -> None:
        torch._foreach_lerp_(list(target.parameters()), list(net.parameters()), self.settings.tau)


class SAC(Loop):
    """Soft actor-critic with a learned weight of the entropy."""

    def __init__(self, env: Env, settings: Settings) -> None:
        super().__init__(env, settings, 2 * env.action.shape[0], 2)
        self.target = copy.deepcopy(self.critics).requires_grad_(False)
        self.log_weight = torch.zeros(1, requires_grad=True)
        self._adam["entropy"] = torch.optim.Adam([self.log_weight], lr=settings.lr, fused=True)

    def draw(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = self.actor(obs)[0].split(self.d, -1)
        log_std = log_std.clamp(*LOG_STD)
        noise = torch.randn_like(mean)
        raw = mean + log_std.exp() * noise
        slope = 2.0 * (math.log(2.0) - raw - nn.functional.softplus(-2.0 * raw))
        return raw.tanh(), (-0.5 * noise * noise - log_std - 0.5 * LOG_2PI - slope).sum(-1)

    def act(self, obs: Tensor) -> Tensor:
        return self.draw(obs)[0]

    def update(self, obs: Tensor, action: Tensor, reward: Tensor, after: Tensor, goes_on: Tensor) -> None:
        weight = self.log_weight.detach().exp()
        with torch.no_grad():
            following, logp = self.draw(after)
            worth = self.target(torch.cat([after, following], -1))[..., 0].amin(0)
            target = reward + self.settings.gamma * goes_on * (worth - weight * logp)
        self.learn_critics(obs, action, target)
        chosen, logp = self.draw(obs)
        worth = self.critics(torch.cat([obs, chosen], -1))[..., 0].amin(0)
        self.step("actor", (weight * logp - worth).mean())
        self.step("entropy", -(self.log_weight * (logp.detach() - self.d)).mean())
        self.follow(self.target, self.critics)


class TD3(Loop):
    """Twin delayed deep deterministic policy gradients."""

    def __init__(self, env: Env, settings: Settings) -> None:
        super().__init__(env, settings, env.action.shape[0], 2)
        self.target = copy.deepcopy(self.critics).requires_grad_(False)
        self.target_actor = copy.deepcopy(self.actor).requires_grad_(False)

    def act(self, obs: Tensor) -> Tensor:
        chosen = self.actor(obs)[0].tanh()
        return (chosen + self.settings.action_noise * torch.randn_like(chosen)).clamp(-1.0, 1.0)

    def update(self, obs: Tensor, action: Tensor, reward: Tensor, after: Tensor, goes_on: Tensor) -> None:
        settings = self.settings
        with torch.no_grad():
            meant = self.target_actor(after)[0].tanh()
            noise = settings.target_noise * torch.randn_like(meant)
            clip = settings.target_noise_clip
            following = (meant + noise.clamp(-clip, clip)).clamp(-1.0, 1.0)
            worth = self.target(torch.cat([after, following], -1))[..., 0].amin(0)
            target = reward + settings.gamma * goes_on * worth
        self.learn_critics(obs, action, target)
        if self.updates % settings.policy_delay == 0:
            chosen = self.actor(obs)[0].tanh()
            self.step("actor", -self.critics(torch.cat([obs, chosen], -1))[0].mean())
            self.follow(self.target, self.critics)
            self.follow(self.target_actor, self.actor)


LOOPS: dict[str, type[SAC] | type[TD3]] = {"sac": SAC, "td3": TD3}
