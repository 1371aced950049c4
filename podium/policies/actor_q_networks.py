"""Networks of an actor and of critics that say what its actions are worth; several critics are one batched product."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from podium.core.spaces import Space
from podium.policies.networks import ACTIVATIONS, Encoder, Model, UserModel, as_it_is

NORM_EPS = 1e-5
Obs = Mapping[str, Tensor]


@dataclass(frozen=True)
class ActorQSettings:
    """The shape of the default networks."""

    hidden: tuple[int, ...] = (256, 256)
    activation: str = "relu"
    critics: int = 2
    layer_norm: bool = False
    critic_dropout: float = 0.0


class Layers(nn.Module):
    """`count` MLPs of one shape side by side, `[B, inputs]` to `[count, B, outputs]`. A layer is one batched product for
    all of them. Dropout and norm stand between a hidden layer and its activation."""

    def __init__(
        self,
        count: int,
        inputs: int,
        outputs: int,
        hidden: tuple[int, ...],
        activation: str,
        norm: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.count, self.dropout = count, dropout
        self.activation = ACTIVATIONS[activation]
        sizes = list(pairwise([inputs, *hidden, outputs]))
        self.weights = nn.ParameterList([_uniform((count, *pair), pair[0]) for pair in sizes])
        self.biases = nn.ParameterList([_uniform((count, 1, size), before) for before, size in sizes])
        normed = hidden if norm else ()
        self.scales = nn.ParameterList([torch.ones(count, 1, size) for size in normed])
        self.shifts = nn.ParameterList([torch.zeros(count, 1, size) for size in normed])
        # Past the lists, which are slow to walk.
        self._parts = [list(each) for each in (self.weights, self.biases, self.scales, self.shifts)]

    def forward(self, x: Tensor, rng: torch.Generator | None = None, frozen: int = 0) -> Tensor:
        """With `rng` hidden units are dropped. The first so many that are `frozen` let a gradient through to `x` and keep it
        from their parameters; the others are not asked then."""
        weights, biases, scales, shifts = (
            ([part.detach()[:frozen] for part in each] if frozen else each) for each in self._parts
        )
        x = x.expand(frozen or self.count, *x.shape)
        last = len(weights) - 1
        for i, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
            if i == last and weight.shape[-1] == 1:  # a product with one column is slower than its sum
                return (x * weight.mT).sum(-1, keepdim=True) + bias
            x = torch.baddbmm(bias, x, weight)
            if i == last:
                break
            if self.dropout and rng is not None:
                kept = torch.rand(x.shape, generator=rng, device=x.device) >= self.dropout
                x = x * kept / (1.0 - self.dropout)
            if scales:
                x = torch.addcmul(shifts[i], nn.functional.layer_norm(x, x.shape[-1:], eps=NORM_EPS), scales[i])
            x = self.activation(x)
        return x


class Actor(Model):
    """Observations to the parameters of actions."""

    def __init__(self, space: Space, outputs: int, net: ActorQSettings) -> None:
        super().__init__()
        self.encoder = Encoder(space)
        self._encode = encoding(self.encoder)
        self.layers = Layers(1, self.encoder.width, outputs, net.hidden, net.activation)

    def forward(self, obs: Obs, state: object = None, start: object = None) -> Tensor:
        return self.layers.forward(self._encode(obs))[0]


class Critics(nn.Module):
    """What each of the critics says: `[critics, B, outputs]` of observations and `[B, inputs]` of the actions there, of
    which there are none where a critic says what each of all choices is worth. They share what encodes observations."""

    def __init__(self, space: Space, inputs: int, outputs: int, net: ActorQSettings) -> None:
        super().__init__()
        self.encoder = Encoder(space)
        self._encode = encoding(self.encoder)
        width = self.encoder.width + inputs
        self.layers = Layers(
            net.critics, width, outputs, net.hidden, net.activation, net.layer_norm, net.critic_dropout
        )

    def forward(self, obs: Obs, action: Tensor | None, rng: torch.Generator | None = None, frozen: int = 0) -> Tensor:
        if frozen:
            with torch.no_grad():
                x = self._encode(obs)
        else:
            x = self._encode(obs)
        return self.layers.forward(x if action is None else torch.cat([x, action], -1), rng, frozen)


class ActorQ(Model):
    """An actor, its critics, and the logarithm of the entropy's weight where that is learned, in this order: the parts of
    the flat vector by which they learn. `module` stands in the default actor's place if it is given."""

    def __init__(
        self,
        space: Space,
        sizes: tuple[int, int, int],
        net: ActorQSettings,
        weight: float | None = None,
        module: nn.Module | None = None,
    ) -> None:
        super().__init__()
        outputs, inputs, said = sizes
        self.actor: nn.Module = Actor(space, outputs, net) if module is None else UserModel(module, space, 0)
        self.critic = Critics(space, inputs, said, net)
        self.entropy = None if weight is None else nn.ParameterList([torch.tensor([math.log(weight)])])

    def train(self, mode: bool = True) -> ActorQ:
        """Of the default networks none is other in learning than in acting; walking through them takes its time."""
        return super().train(mode) if isinstance(self.actor, UserModel) else self

    def act(self, obs: Obs) -> Tensor:
        """The parameters of actions."""
        said = self.actor.forward(obs)
        return said[0] if isinstance(said, tuple) else said


def encoding(encoder: Encoder) -> Callable[[Obs], Tensor]:
    """What it does; a lone vector needs nothing."""
    return as_it_is if encoder.trivial else encoder.forward


def _uniform(shape: tuple[int, ...], inputs: int) -> Tensor:
    bound = 1 / math.sqrt(inputs)
    return torch.empty(shape).uniform_(-bound, bound)
