"""Networks from observations to what is said of every action: plain, dueling, noisy, recurrent, or a user's own."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import torch
from torch import Tensor, nn

from podium.core.spaces import Space, unflatten
from podium.policies.networks import ACTIVATIONS, Encoder, Memory, Model, State

HEAD_GAIN = 0.01
KEEP = 2.0
"""Of a memory's gate at the start: what it saw 30 steps ago is not gone before there is anything to learn from it."""


@dataclass(frozen=True)
class QSettings:
    """The shape of the default networks."""

    hidden: tuple[int, ...] = (64, 64)
    activation: str = "relu"
    dueling: bool = False
    noisy: bool = False
    noise: float = 0.5
    memory: str = "none"
    memory_size: int = 64


class QModel(Model):
    """Observations to `[B, actions, size]`. `renew` draws the noise of noisy layers anew, `still` takes it away."""

    def q(self, obs: Mapping[str, Tensor]) -> Tensor:
        raise NotImplementedError

    def step(self, obs: Mapping[str, Tensor], state: State) -> tuple[Tensor, State]:
        """With the recurrent state before and after, where there is one."""
        return self.q(obs), {}

    def renew(self, rng: torch.Generator) -> None:
        for layer in self._noisy:
            layer.renew(rng)

    def still(self) -> None:
        for layer in self._noisy:
            layer.still()

    @cached_property
    def _noisy(self) -> list[NoisyLinear]:
        return [layer for layer in self.modules() if isinstance(layer, NoisyLinear)]


class QNetwork(QModel):
    """An encoder, an optional memory, and one stream of layers, or two: then one says what the state is worth, the other
    what each action adds to the mean of all (dueling; Wang et al., 2016)."""

    def __init__(self, space: Space, actions: int, size: int, net: QSettings) -> None:
        super().__init__()
        self.actions, self.size = actions, size
        self.encoder = Encoder(space)
        self.recurrent = net.memory != "none"
        width = net.memory_size if self.recurrent else self.encoder.width
        self.memory = Memory(net.memory, self.encoder.width, net.memory_size, KEEP) if self.recurrent else None
        outputs = [actions * size, size] if net.dueling else [actions * size]
        self.streams = nn.ModuleList([Stream(width, count, net) for count in outputs])

    def train(self, mode: bool = True) -> QNetwork:
        """No layer of it learns otherwise than it acts: there is nothing to tell them, at every update."""
        return self

    def q(self, obs: Mapping[str, Tensor]) -> Tensor:
        return self._said(self.encoder(obs))

    def step(self, obs: Mapping[str, Tensor], state: State) -> tuple[Tensor, State]:
        if self.memory is None:
            return super().step(obs, state)
        x = self.encoder(obs)[None]
        (_, y, after), *_ = self.memory.stretches(x, state, x.new_zeros(x.shape[:2], dtype=torch.bool))
        return self._said(y[0]), after

    def unroll(self, obs: Mapping[str, Tensor], state: State, start: Tensor) -> tuple[Tensor, list[tuple[int, State]]]:
        """`[T, N, actions, size]` of rows `[T, N]`, and the state before each row with a start and after the last."""
        assert self.memory is not None
        parts = list(self.memory.stretches(self.encoder(obs), state, start))
        return self._said(torch.cat([y for _, y, _ in parts])), [(end, after) for end, _, after in parts]

    def initial_state(self, n: int) -> State:
        return self.memory.initial_state(n) if self.memory is not None else {}

    def _said(self, x: Tensor) -> Tensor:
        said = [stream(x) for stream in self.streams]
        each = said[0].unflatten(-1, (self.actions, self.size))
        if len(said) == 1:
            return each
        return said[1][..., None, :] + each - each.mean(-2, keepdim=True)


class Stream(nn.Module):
    """Layers with an activation between them."""

    def __init__(self, inputs: int, outputs: int, net: QSettings) -> None:
        super().__init__()
        sizes = list(pairwise([inputs, *net.hidden, outputs]))
        gains = [math.sqrt(2)] * len(net.hidden) + [HEAD_GAIN]
        self.layers = nn.ModuleList(
            [
                NoisyLinear(*pair, net.noise) if net.noisy else _linear(*pair, gain)
                for pair, gain in zip(sizes, gains, strict=True)
            ]
        )
        self.activation = ACTIVATIONS[net.activation]

    def forward(self, x: Tensor) -> Tensor:
        *inner, head = self.layers
        for layer in inner:
            x = self.activation(layer(x))
        return head(x)


class NoisyLinear(nn.Module):
    """A linear layer whose weights have learned amounts of factorised noise (Fortunato et al., 2018). The noise itself
    is no part of its state: whoever needs some draws it."""

    def __init__(self, inputs: int, outputs: int, amount: float) -> None:
        super().__init__()
        bound = 1 / math.sqrt(inputs)
        self.weight = nn.Parameter(torch.empty(outputs, inputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(outputs).uniform_(-bound, bound))
        self.weight_noise = nn.Parameter(torch.full((outputs, inputs), amount * bound))
        self.bias_noise = nn.Parameter(torch.full((outputs,), amount * bound))
        self._drawn: tuple[Tensor, Tensor] | None = None

    def renew(self, rng: torch.Generator) -> None:
        outputs, inputs = self.weight.shape
        drawn = torch.randn(outputs + inputs, generator=rng, device=self.weight.device)
        scaled = drawn.sign() * drawn.abs().sqrt()
        self._drawn = scaled[:outputs], scaled[outputs:]

    def still(self) -> None:
        self._drawn = None

    def forward(self, x: Tensor) -> Tensor:
        if self._drawn is None:
            return nn.functional.linear(x, self.weight, self.bias)
        rows, columns = self._drawn
        weight = self.weight + self.weight_noise * torch.outer(rows, columns)
        return nn.functional.linear(x, weight, self.bias + self.bias_noise * rows)


class UserQ(QModel):
    """A module of the user's own: it takes the observation as the env's space has it and returns `[B, actions * size]`."""

    def __init__(self, module: nn.Module, space: Space, actions: int, size: int) -> None:
        super().__init__()
        self.module, self.space = module, space
        self.actions, self.size = actions, size

    def q(self, obs: Mapping[str, Tensor]) -> Tensor:
        singles = {path: part.float() if part.is_floating_point() else part for path, part in obs.items()}
        return self.module(unflatten(self.space, singles, "obs")).unflatten(-1, (self.actions, self.size))


def _linear(inputs: int, outputs: int, gain: float) -> nn.Linear:
    layer = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer
