"""Networks from observations to (action parameters, value): MLP or CNN encoders, optional LSTM or GRU memory."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from podium.core.errors import UsageError
from podium.core.spaces import Box, Discrete, Leaf, MultiDiscrete, Space, leaves, unflatten

FEW = 4096
"""Numbers below which the call of an operation costs more than its arithmetic."""


def tanh_(x: Tensor) -> Tensor:
    """tanh, on a processor by way of the sigmoid, right to 2e-7: torch's vectorized sigmoid takes a ninth of the time of
    its tanh, which would be a fifth of an update of a small network."""
    if x.device.type != "cpu" or x.numel() < FEW:
        return torch.tanh_(x)
    return x.mul_(2.0).sigmoid_().mul(2.0).sub_(1.0)


# In place where the gradient needs the output alone: it saves an allocation a layer.
ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "tanh": tanh_,
    "relu": torch.relu_,
    "elu": partial(nn.functional.elu, inplace=True),
    "silu": nn.functional.silu,
}
State = dict[str, Tensor]


@dataclass(frozen=True)
class NetSettings:
    """The shape of the default networks."""

    hidden: tuple[int, ...] = (64, 64)
    activation: str = "tanh"
    memory: str = "none"
    memory_size: int = 64
    shared: bool = False
    log_std: float = 0.0


class Model(nn.Module):
    """What a torch policy holds: observations (and state) to action parameters, value and next state."""

    recurrent = False

    def initial_state(self, n: int) -> State:
        return {}


class ActorCritic(Model):
    """Encoders, an optional memory, trunks and two heads. With `shared` the heads have one trunk, else each its own; a
    memory is always shared, and so is what feeds it.

    `forward` takes rows `[B, ...]`. With a memory it takes `[T, N, ...]` and the state and episode starts with them.
    """

    def __init__(self, space: Space, outputs: int, free: int, net: NetSettings) -> None:
        super().__init__()
        self.recurrent = net.memory != "none"
        count = 1 if net.shared else 2
        learned = any(is_image(leaf) for leaf in leaves(space, "obs").values())
        encoders = [Encoder(space) for _ in range(count if learned and not self.recurrent else 1)]
        self.encoders = nn.ModuleList(encoders)
        # A lone vector needs no encoding; else the encoders, past their list, which is slow to walk.
        self._encoders = [as_it_is] if encoders[0].trivial else encoders
        self.memory = Memory(net.memory, encoders[0].width, net.memory_size) if self.recurrent else None
        self.trunks = Trunks(
            count, net.memory_size if self.recurrent else encoders[0].width, net.hidden, net.activation
        )
        width = self.trunks.width
        self.policy_head = _orthogonal(nn.Linear(width, outputs), 0.01)
        self.value_head = _orthogonal(nn.Linear(width, 1), 1.0)
        self.free = nn.Parameter(torch.full((free,), net.log_std)) if free else None
        self._heads = [(head.weight, head.bias) for head in (self.policy_head, self.value_head)]

    def forward(
        self, obs: Mapping[str, Tensor], state: State | None = None, start: Tensor | None = None
    ) -> tuple[Tensor, Tensor, State]:
        features = [encoder(obs) for encoder in self._encoders]
        next_state: State = {}
        if self.memory is not None:
            assert state is not None and start is not None
            remembered, next_state = self.memory(features[0], state, start)
            features = [remembered]
        outputs = self.trunks.forward(features)
        policy_head, value_head = self._heads
        params = nn.functional.linear(outputs[0], *policy_head)
        free = self.free
        if free is not None:
            params = torch.cat([params, free.expand(*params.shape[:-1], -1)], -1)
        return params, nn.functional.linear(outputs[-1], *value_head).squeeze(-1), next_state

    def initial_state(self, n: int) -> State:
        return self.memory.initial_state(n) if self.memory is not None else {}


class Trunks(nn.Module):
    """Several MLPs of one shape side by side. A layer is one batched product for all of them: at the size of most
    policies an operation's call costs as much as its arithmetic."""

    def __init__(self, count: int, inputs: int, hidden: tuple[int, ...], activation: str) -> None:
        super().__init__()
        self.count = count
        self.activation = ACTIVATIONS[activation]
        sizes = [inputs, *hidden]
        self.width = sizes[-1]
        self.weights = nn.ParameterList([torch.empty(count, *pair) for pair in pairwise(sizes)])
        self.biases = nn.ParameterList([torch.zeros(count, 1, size) for size in hidden])
        for weight in self.weights:
            for mlp in weight.data:
                nn.init.orthogonal_(mlp, math.sqrt(2))
        self._layers = list(zip(self.weights, self.biases, strict=True))  # past the lists, which are slow to walk

    def forward(self, features: list[Tensor]) -> Sequence[Tensor]:
        """Each trunk's output; one feature tensor serves them all, or there is one for each."""
        lead = features[0].shape[:-1]
        x = features[0].expand(self.count, *features[0].shape) if len(features) == 1 else torch.stack(features)
        x = x.flatten(1, -2) if len(lead) > 1 else x
        for weight, bias in self._layers:
            x = self.activation(torch.baddbmm(bias, x, weight))
        return x.unbind(0) if len(lead) == 1 else x.unflatten(1, lead).unbind(0)


class UserModel(Model):
    """A module of the user's own: it takes the observation (a tensor, or a dict or tuple of them as the env's space has
    it) and returns (action parameters, value), or the action parameters alone. Free parameters are added here."""

    def __init__(self, module: nn.Module, space: Space, free: int, log_std: float = 0.0) -> None:
        super().__init__()
        self.module = module
        self.space = space
        self.free = nn.Parameter(torch.full((free,), log_std)) if free else None

    def forward(
        self, obs: Mapping[str, Tensor], state: State | None = None, start: Tensor | None = None
    ) -> tuple[Tensor, Tensor, State]:
        singles = {path: part.float() if part.is_floating_point() else part for path, part in obs.items()}
        out = self.module(unflatten(self.space, singles, "obs"))
        params, value = out if isinstance(out, tuple) else (out, out.new_zeros(len(out)))
        if self.free is not None:
            params = torch.cat([params, self.free.expand(len(params), -1)], -1)
        return params, value.reshape(len(params)), {}


class Memory(nn.Module):
    """An LSTM or GRU over `[T, N, features]` whose state begins at zero wherever an episode starts. `keep` is what the
    bias of the gate that keeps the state begins at: the greater, the longer it is kept before anything is learned."""

    def __init__(self, kind: str, inputs: int, size: int, keep: float = 0.0) -> None:
        super().__init__()
        self.kind, self.size = kind, size
        self.rnn: nn.LSTM | nn.GRU = nn.LSTM(inputs, size) if kind == "lstm" else nn.GRU(inputs, size)
        for name, parameter in self.rnn.named_parameters():
            if "weight" in name:
                nn.init.orthogonal_(parameter)
            else:
                nn.init.zeros_(parameter)
        self.rnn.get_parameter("bias_ih_l0").data[size : 2 * size] = keep  # of either kind the second gate

    def initial_state(self, n: int) -> State:
        names = ("state/h", "state/c") if self.kind == "lstm" else ("state/h",)
        return {name: torch.zeros(n, self.size) for name in names}

    def forward(self, x: Tensor, state: State, start: Tensor) -> tuple[Tensor, State]:
        parts = list(self.stretches(x, state, start))
        outputs = [y for _, y, _ in parts]
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs), parts[-1][2]

    def stretches(self, x: Tensor, state: State, start: Tensor) -> Iterator[tuple[int, Tensor, State]]:
        """One call of the library's kernel per stretch without a start, which is exact and has no loop over steps: the
        row that it ends before, its outputs, and the state there, where no start has made it zero yet."""
        cuts = [0, *(torch.nonzero(start.any(1)).flatten().tolist()), len(x)]
        for begin, end in zip(cuts, cuts[1:], strict=False):
            if begin == end:
                continue
            keep = (~start[begin]).to(x.dtype)[:, None]
            state = {name: part * keep for name, part in state.items()}
            y, state = self._run(x[begin:end], state)
            yield end, y, state

    def _run(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        if self.kind == "lstm":
            y, (h, c) = self.rnn(x, (state["state/h"][None], state["state/c"][None]))
            return y, {"state/h": h[0], "state/c": c[0]}
        y, h = self.rnn(x, state["state/h"][None])
        return y, {"state/h": h[0]}


class Encoder(nn.Module):
    """Every leaf of the observation as one feature vector: images through a CNN, choices one-hot, the rest as it is."""

    def __init__(self, space: Space) -> None:
        super().__init__()
        self.leaves = leaves(space, "obs")
        networks = {_module_name(path): NatureCNN(leaf) for path, leaf in self.leaves.items() if is_image(leaf)}
        self.images = nn.ModuleDict(networks)
        self.trivial = [len(leaf.shape) == 1 and isinstance(leaf, Box) for leaf in self.leaves.values()] == [True]
        self.width = sum(network.width for network in networks.values())
        self.width += sum(_plain_width(leaf) for leaf in self.leaves.values() if not is_image(leaf))

    def forward(self, obs: Mapping[str, Tensor]) -> Tensor:
        parts = [self._features(path, leaf, obs[path]) for path, leaf in self.leaves.items()]
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)

    def _features(self, path: str, leaf: Leaf, x: Tensor) -> Tensor:
        if is_image(leaf):
            return self.images[_module_name(path)](x)
        if isinstance(leaf, Discrete):
            return nn.functional.one_hot(x.long(), leaf.n).float()
        if isinstance(leaf, MultiDiscrete):
            return torch.cat([nn.functional.one_hot(x[..., i].long(), n).float() for i, n in enumerate(leaf.nvec)], -1)
        return x.float() if len(leaf.shape) == 1 else x.float().reshape(*x.shape[: x.dim() - len(leaf.shape)], -1)


class NatureCNN(nn.Module):
    """The three-layer CNN of the DQN paper, for images `[C, H, W]` or `[H, W, C]` of bytes; smaller kernels below 36 px."""

    def __init__(self, leaf: Leaf) -> None:
        super().__init__()
        shape = leaf.shape if len(leaf.shape) == 3 else (1, *leaf.shape)
        self.channels_last = shape[1] != shape[2] and (shape[0] == shape[1] or shape[0] > shape[2])
        channels, height, width = (shape[2], shape[0], shape[1]) if self.channels_last else shape
        self.dims = len(leaf.shape)
        layers = [(32, 8, 4), (64, 4, 2), (64, 3, 1)] if min(height, width) >= 36 else [(32, 3, 1), (64, 3, 2)]
        modules: list[nn.Module] = []
        for out, kernel, stride in layers:
            conv = nn.Conv2d(channels, out, kernel, stride, padding=1 if min(height, width) < 8 else 0)
            modules += [_orthogonal(conv, math.sqrt(2)), nn.ReLU()]
            channels = out
        self.net = nn.Sequential(*modules, nn.Flatten())
        with torch.no_grad():
            self.width = self.net(torch.zeros(1, *(shape[2:] + shape[:2] if self.channels_last else shape))).shape[1]

    def forward(self, x: Tensor) -> Tensor:
        lead = x.shape[: x.dim() - self.dims]
        x = x.reshape(-1, *x.shape[len(lead) :])
        x = x[:, None] if self.dims == 2 else x.permute(0, 3, 1, 2) if self.channels_last else x
        return self.net(x.float() / 255.0).reshape(*lead, self.width)


def as_it_is(obs: Mapping[str, Tensor]) -> Tensor:
    (x,) = obs.values()
    return x.float()


def _plain_width(leaf: Leaf) -> int:
    if isinstance(leaf, Discrete):
        return leaf.n
    return sum(leaf.nvec) if isinstance(leaf, MultiDiscrete) else math.prod(leaf.shape)


def is_image(leaf: Leaf) -> bool:
    """Bytes in two or three dimensions."""
    return isinstance(leaf, Box) and leaf.dtype.name == "uint8" and len(leaf.shape) in (2, 3)


def _orthogonal(layer: Any, gain: float) -> Any:
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


def _module_name(path: str) -> str:
    return path.replace("/", "_").replace(".", "_")


def user_module(given: Any, space: Space, outputs: int) -> nn.Module:
    """A module, or a function `(space, outputs) -> module`, as a module. One that was given as it is gets copied: every
    policy has parameters of its own."""
    module = copy.deepcopy(given) if isinstance(given, nn.Module) else given(space, outputs)
    if not isinstance(module, nn.Module):
        raise UsageError(f"the model function returned {type(module).__name__}, expected a torch nn.Module")
    return module
