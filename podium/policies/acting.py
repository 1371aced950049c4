"""How an actor's output becomes actions: numbers between bounds, drawn or with noise added, or one of several choices.

Critics see numbers from -1 to 1 whatever the bounds are, and entropies are of these.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from podium.core.errors import UsageError
from podium.core.spaces import Box, Columns, Discrete, Leaf
from podium.policies.distributions import LOG_2PI, Categorical

NOISE = "state/noise"
LOG_STD = (-20.0, 2.0)
UNIFORM_SHARE = 0.89
"""Of the entropy of choices that are all alike: what is left to them by default."""

Critic = Callable[[Tensor | None], Tensor]  # from actions to `[critics, B, outputs]`


class Acting(Protocol):
    """`sizes`: how many numbers an actor says, how many of an action a critic is given, and how many it says of a state.
    `chosen` actions are as critics see them; `to_env` makes them the env's, `from_env` does the reverse."""

    sizes: tuple[int, int, int]

    def initial_state(self, n: int) -> Columns: ...
    def mode(self, params: Tensor, mask: Tensor | None) -> Tensor: ...
    def explore(
        self, params: Tensor, mask: Tensor | None, state: Columns, now: SimpleNamespace, rng: torch.Generator
    ) -> tuple[Tensor, Columns]: ...
    def anything(self, n: int, mask: Tensor | None, rng: torch.Generator) -> Tensor: ...
    def to_env(self, chosen: Tensor) -> np.ndarray: ...
    def from_env(self, action: Tensor) -> Tensor: ...
    def worth(self, critics: Critic, chosen: Tensor) -> Tensor: ...


class Bounded:
    """Numbers between bounds, whatever says them."""

    sizes: tuple[int, int, int]

    def __init__(self, box: Box, device: torch.device) -> None:
        self.shape, self.d = box.shape, int(np.prod(box.shape))
        self._low, self._high = (np.asarray(bound, np.float32) for bound in (box.low, box.high))
        low, high = (
            torch.tensor(np.asarray(bound, np.float32).reshape(-1), device=device) for bound in (box.low, box.high)
        )
        self._center, self._scale = (high + low) / 2, (high - low) / 2

    def initial_state(self, n: int) -> Columns:
        return {}

    def anything(self, n: int, mask: Tensor | None, rng: torch.Generator) -> Tensor:
        return torch.rand(n, self.d, generator=rng, device=rng.device) * 2 - 1

    def to_env(self, chosen: Tensor) -> np.ndarray:
        action = (self._center + self._scale * chosen).cpu().numpy().reshape(-1, *self.shape)
        return np.clip(action, self._low, self._high)

    def from_env(self, action: Tensor) -> Tensor:
        return (action.float().reshape(len(action), self.d) - self._center) / self._scale

    def worth(self, critics: Critic, chosen: Tensor) -> Tensor:
        """What each critic says of these actions, `[critics, B]`."""
        return critics(chosen)[..., 0]


class Squashed(Bounded):
    """A normal distribution through tanh (Haarnoja et al., 2018); the actor says means and log standard deviations."""

    def __init__(self, box: Box, device: torch.device) -> None:
        super().__init__(box, device)
        self.sizes = 2 * self.d, self.d, 1
        self.usual_entropy = -float(self.d)

    def mode(self, params: Tensor, mask: Tensor | None) -> Tensor:
        return params[:, : self.d].tanh()

    def explore(
        self, params: Tensor, mask: Tensor | None, state: Columns, now: SimpleNamespace, rng: torch.Generator
    ) -> tuple[Tensor, Columns]:
        return self.draw(params, torch.randn(len(params), self.d, generator=rng, device=params.device))[0], state

    def draw(self, params: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Actions as functions of the parameters, and their log-probabilities: the normal's, less the logarithm of tanh's
        slope 1 - tanh(x)^2, in the form 2 (log 2 - x - softplus(-2x)) that stays finite where tanh saturates."""
        mean, log_std = params.split(self.d, -1)
        log_std = log_std.clamp(*LOG_STD)
        raw = mean + log_std.exp() * noise
        normal = -0.5 * noise * noise - log_std
        slope = (raw + F.softplus(-2.0 * raw)) * -2.0
        logp = (normal - slope).sum(-1) - self.d * (0.5 * LOG_2PI + 2.0 * math.log(2.0))
        return raw.tanh(), logp

    def expected(
        self, params: Tensor, critics: Critic, mask: Tensor | None, rng: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """What the least critic says of an action that is drawn, and the action's log-probability."""
        noise = torch.randn(len(params), self.d, generator=rng, device=params.device)
        chosen, logp = self.draw(params, noise)
        return self.worth(critics, chosen).amin(0), logp


class Point(Bounded):
    """One action, through tanh (Lillicrap et al., 2016); exploring adds noise of `now.action_noise` half widths of the
    bounds, each time anew or, for `ou`, as a process that wanders and is drawn back (Uhlenbeck and Ornstein, 1930)."""

    def __init__(self, box: Box, device: torch.device, wanders: bool = False) -> None:
        super().__init__(box, device)
        self.sizes = self.d, self.d, 1
        self._wanders = wanders

    def initial_state(self, n: int) -> Columns:
        return {NOISE: np.zeros((n, self.d), np.float32)} if self._wanders else {}

    def mode(self, params: Tensor, mask: Tensor | None) -> Tensor:
        return params.tanh()

    def explore(
        self, params: Tensor, mask: Tensor | None, state: Columns, now: SimpleNamespace, rng: torch.Generator
    ) -> tuple[Tensor, Columns]:
        noise = now.action_noise * torch.randn(params.shape, generator=rng, device=params.device)
        if self._wanders:
            noise = noise + (1.0 - now.ou_theta) * torch.tensor(state[NOISE], device=params.device)
            state = {NOISE: noise.cpu().numpy()}
        return (params.tanh() + noise).clamp(-1.0, 1.0), state


class Choices:
    """One of n choices (Christodoulou, 2019): critics say of each what it is worth, and means over them are exact."""

    def __init__(self, space: Discrete) -> None:
        self.n = space.n
        self.sizes = space.n, 0, space.n
        self.usual_entropy = UNIFORM_SHARE * math.log(space.n)
        self._family = Categorical(space.n)

    def initial_state(self, n: int) -> Columns:
        return {}

    def mode(self, params: Tensor, mask: Tensor | None) -> Tensor:
        return self._family.mode(params, mask)[0]

    def explore(
        self, params: Tensor, mask: Tensor | None, state: Columns, now: SimpleNamespace, rng: torch.Generator
    ) -> tuple[Tensor, Columns]:
        return self._family.sample(params, mask, rng)[0], state

    def anything(self, n: int, mask: Tensor | None, rng: torch.Generator) -> Tensor:
        return self._family.sample(torch.zeros(n, self.n, device=rng.device), mask, rng)[0]

    def to_env(self, chosen: Tensor) -> np.ndarray:
        return chosen.cpu().numpy()

    def from_env(self, action: Tensor) -> Tensor:
        return action

    def worth(self, critics: Critic, chosen: Tensor) -> Tensor:
        said = critics(None)
        return said.gather(-1, chosen.expand(len(said), -1)[..., None])[..., 0]

    def expected(
        self, params: Tensor, critics: Critic, mask: Tensor | None, rng: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """The means over all choices of what the least critic says, and of their log-probabilities."""
        legal = params if mask is None else params.masked_fill(~mask, -1e9)
        logp = legal.log_softmax(-1)
        share = logp.exp()
        return (share * critics(None).amin(0)).sum(-1), (share * logp).sum(-1)


def bounded(algorithm: str, space: Leaf, instead: str) -> Box:
    """A space of numbers between finite bounds; any other is refused with what fits it."""
    if isinstance(space, Box) and space.bounded and space.dtype.kind == "f" and (space.low < space.high).all():
        return space
    if not isinstance(space, Box):
        raise UsageError(f"{algorithm} needs a Box of actions, and this env has {space}: {instead}")
    raise UsageError(
        f"{algorithm} needs a Box of actions between finite bounds, and this env has {space}: give it bounds with a "
        "wrapper such as gymnasium's ClipAction or RescaleAction, or take ppo or a2c"
    )


def stochastic(algorithm: str, space: Leaf, device: torch.device) -> Squashed | Choices:
    """Of an algorithm whose actor says a distribution."""
    if isinstance(space, Discrete):
        return Choices(space)
    return Squashed(bounded(algorithm, space, "ppo, a2c, pg, impala and appo take those"), device)


def deterministic(algorithm: str, config: Any, space: Leaf, device: torch.device) -> Point:
    """Of an algorithm whose actor says the action."""
    instead = "dqn and sac take Discrete actions" if isinstance(space, Discrete) else "ppo, a2c and pg take those"
    return Point(bounded(algorithm, space, instead), device, config.noise_kind == "ou")
