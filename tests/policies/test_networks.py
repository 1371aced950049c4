"""Networks: which observations they take, what they share, and memory against a step-by-step reference."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from podium.core.errors import UsageError
from podium.core.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple, leaves
from podium.policies.networks import (
    FEW,
    ActorCritic,
    Encoder,
    Memory,
    NatureCNN,
    NetSettings,
    UserModel,
    tanh_,
    user_module,
)

PLAIN = Box.of(-1, 1, (3,))


def image(*shape: int) -> Box:
    return Box.of(0, 255, shape, np.uint8)


def observations(space: Space, n: int, seed: int = 0) -> dict[str, Tensor]:
    rng = np.random.default_rng(seed)
    return {path: torch.from_numpy(np.array(leaf.sample(rng, n))) for path, leaf in leaves(space, "obs").items()}


# --- encoders ---


@pytest.mark.parametrize(
    ("shape", "width", "channels"),
    [
        ((84, 84, 4), 3136, 4),  # three layers to 64 maps of 7 x 7
        ((4, 84, 84), 3136, 4),
        ((84, 84), 3136, 1),
        ((10, 10, 3), 576, 3),  # two layers to 64 maps of 3 x 3
        ((3, 10, 10), 576, 3),
        ((10, 10), 576, 1),
        ((5, 5, 2), 576, 2),  # padded: 64 maps of 3 x 3
        ((12, 8, 8), 256, 12),  # more channels than pixels along a side, in both layouts
        ((8, 8, 12), 256, 12),
        ((60, 80, 3), 1536, 3),  # not square: 64 maps of 4 x 6
        ((3, 60, 80), 1536, 3),
    ],
)
def test_cnn_shapes(shape: tuple[int, ...], width: int, channels: int) -> None:
    cnn = NatureCNN(image(*shape))
    x = observations(image(*shape), 6)["obs"]
    assert next(iter(cnn.parameters())).shape[1] == channels
    assert cnn(x).shape == (6, width) and cnn.width == width
    torch.testing.assert_close(cnn(x.reshape(2, 3, *shape)).flatten(0, 1), cnn(x))


def test_both_image_layouts_are_the_same_picture() -> None:
    last, first = NatureCNN(image(84, 84, 4)), NatureCNN(image(4, 84, 84))
    first.load_state_dict(last.state_dict())
    x = observations(image(84, 84, 4), 2)["obs"]
    torch.testing.assert_close(last(x), first(x.permute(0, 3, 1, 2)))
    assert not torch.allclose(last(x), first(x.reshape(2, 4, 84, 84)))


def test_images_are_scaled_to_one() -> None:
    cnn = NatureCNN(image(10, 10, 3))
    x = torch.full((1, 10, 10, 3), 255, dtype=torch.uint8)
    torch.testing.assert_close(cnn(x), cnn.net(torch.ones(1, 3, 10, 10)))


def test_choices_become_one_hot_and_the_rest_stays() -> None:
    space = Dict(
        {
            "a": Discrete(3),
            "b": MultiDiscrete((2, 3)),
            "c": MultiBinary(2),
            "d": Box.of(-9, 9, (2, 2)),
            "e": Box.of(0, 255, (1,), np.uint8),
            "f": Tuple((Box.of(-9, 9, ()), Discrete(2))),
        }
    )
    obs = {
        "obs/a": torch.tensor([2]),
        "obs/b": torch.tensor([[1, 0]]),
        "obs/c": torch.tensor([[1, 0]], dtype=torch.int8),
        "obs/d": torch.tensor([[[1.0, 2.0], [3.0, 4.0]]], dtype=torch.float64),
        "obs/e": torch.tensor([[200]], dtype=torch.uint8),
        "obs/f/0": torch.tensor([-5.0]),
        "obs/f/1": torch.tensor([1]),
    }
    encoder = Encoder(space)
    expected = [0, 0, 1, 0, 1, 1, 0, 0, 1, 0, 1, 2, 3, 4, 200, -5, 0, 1]
    assert encoder(obs).tolist() == [expected] and encoder.width == len(expected)
    sequences = {path: part.expand(4, *part.shape) for path, part in obs.items()}
    assert encoder(sequences).tolist() == [[expected]] * 4


@pytest.mark.parametrize("memory", ["none", "lstm", "gru"])
@pytest.mark.parametrize(
    "space",
    [
        PLAIN,
        Discrete(4),
        image(10, 10, 3),
        Dict({"camera": image(10, 10), "speed": PLAIN, "gear": Discrete(3)}),
        Tuple((PLAIN, MultiBinary(2))),
    ],
    ids=str,
)
def test_every_observation_goes_through(space: Space, memory: str) -> None:
    net = ActorCritic(space, 5, 2, NetSettings(hidden=(8,), memory=memory, memory_size=7, log_std=-1.0))
    obs = observations(space, 6)
    if memory == "none":
        params, value, state = net(obs)
        assert (params.shape, value.shape, state) == ((6, 7), (6,), {})
    else:
        obs = {path: part.reshape(2, 3, *part.shape[1:]) for path, part in obs.items()}
        params, value, state = net(obs, net.initial_state(3), torch.zeros(2, 3, dtype=torch.bool))
        assert (params.shape, value.shape) == ((2, 3, 7), (2, 3))
        assert state.keys() == ({"state/h", "state/c"} if memory == "lstm" else {"state/h"})
        assert all(part.shape == (3, 7) for part in state.values())
    assert (params[..., 5:] == -1.0).all()


def test_no_hidden_layers_is_a_linear_function() -> None:
    net = ActorCritic(PLAIN, 2, 0, NetSettings(hidden=()))
    x = observations(PLAIN, 4)["obs"]
    torch.testing.assert_close(net({"obs": x})[0], net.policy_head(x))


@pytest.mark.parametrize(("shared", "trunks"), [(False, 2), (True, 1)])
def test_the_default_network_is_one_mlp_for_each_head_or_for_both(shared: bool, trunks: int) -> None:
    net = ActorCritic(PLAIN, 4, 0, NetSettings(hidden=(8, 6), shared=shared))
    counted = sum(parameter.numel() for parameter in net.parameters())
    assert counted == trunks * (3 * 8 + 8 + 8 * 6 + 6) + (6 * 4 + 4) + (6 * 1 + 1)


@pytest.mark.parametrize("activation", ["relu", "tanh", "elu", "silu"])
def test_relu_alone_keeps_scale(activation: str) -> None:
    """Biases begin at 0, so twice the input gives twice the output under relu alone."""
    net = ActorCritic(PLAIN, 2, 0, NetSettings(hidden=(8, 8), activation=activation))
    x = observations(PLAIN, 4)["obs"]
    once, twice = net({"obs": x}), net({"obs": 2 * x})
    for a, b in zip(once[:2], twice[:2], strict=True):
        assert torch.allclose(2 * a, b, rtol=1e-4, atol=1e-7) is (activation == "relu")


def test_layers_begin_orthogonal_with_the_gains_of_their_kind() -> None:
    net = ActorCritic(PLAIN, 2, 0, NetSettings(hidden=(8, 8)))
    layers = [part.detach() for name, part in net.named_parameters() if "weight" in name]
    matrices = [torch.linalg.svdvals(matrix) for layer in layers for matrix in (layer if layer.dim() == 3 else [layer])]
    gains = sorted(float(values.max()) for values in matrices)
    assert all(torch.allclose(values, values.max(), rtol=1e-4) for values in matrices)
    assert gains == pytest.approx([0.01, 1.0, *[math.sqrt(2)] * 4], rel=1e-4)


@pytest.mark.parametrize("space", [PLAIN, image(10, 10, 3)], ids=["plain", "image"])
@pytest.mark.parametrize(("shared", "touched"), [(False, False), (True, True)])
def test_the_value_loss_reaches_the_actor_only_through_a_shared_trunk(
    space: Space, shared: bool, touched: bool
) -> None:
    net = ActorCritic(space, 2, 0, NetSettings(hidden=(8,), shared=shared))
    obs = observations(space, 5)
    before = net(obs)[0].detach()
    value_loss = (net(obs)[1] - 3.0).square().mean()
    gradients = torch.autograd.grad(value_loss, list(net.parameters()), allow_unused=True, materialize_grads=True)
    with torch.no_grad():
        for parameter, gradient in zip(net.parameters(), gradients, strict=True):
            parameter.sub_(0.5 * gradient)
    assert torch.equal(net(obs)[0], before) is not touched


# --- memory ---


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def lstm_step(x: np.ndarray, h: np.ndarray, c: np.ndarray, w: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Hochreiter and Schmidhuber's cell with a forget gate; torch stacks input, forget, cell, output."""
    gates = x @ w["weight_ih_l0"].T + h @ w["weight_hh_l0"].T + w["bias_ih_l0"] + w["bias_hh_l0"]
    i, f, g, o = np.split(gates, 4, axis=1)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(c), c


def gru_step(x: np.ndarray, h: np.ndarray, w: dict[str, np.ndarray]) -> np.ndarray:
    """Cho's unit in torch's form, in which the reset gate acts on the transformed state."""
    a = np.split(x @ w["weight_ih_l0"].T + w["bias_ih_l0"], 3, axis=1)
    b = np.split(h @ w["weight_hh_l0"].T + w["bias_hh_l0"], 3, axis=1)
    r, z = sigmoid(a[0] + b[0]), sigmoid(a[1] + b[1])
    return (1 - z) * np.tanh(a[2] + r * b[2]) + z * h


def reference(memory: Memory, x: np.ndarray, state: dict[str, np.ndarray], start: np.ndarray) -> np.ndarray:
    weights = {name: part.detach().numpy().astype(np.float64) for name, part in memory.rnn.named_parameters()}
    h, c = state["state/h"], state.get("state/c")
    outputs = []
    for t in range(len(x)):
        h = np.where(start[t][:, None], 0, h)
        if c is not None:
            h, c = lstm_step(x[t], h, np.where(start[t][:, None], 0, c), weights)
        else:
            h = gru_step(x[t], h, weights)
        outputs.append(h)
    return np.stack(outputs)


@pytest.mark.parametrize("kind", ["lstm", "gru"])
@pytest.mark.parametrize("starts", [[], [(0, 0), (0, 1)], [(0, 1), (3, 0), (3, 1), (4, 1), (6, 0)]])
def test_memory_equals_a_reference_that_goes_step_by_step(kind: str, starts: list[tuple[int, int]]) -> None:
    torch.manual_seed(3)
    memory = Memory(kind, 4, 5)
    for name, parameter in memory.rnn.named_parameters():
        if "bias" in name:
            nn.init.normal_(parameter)
    rng = np.random.default_rng(1)
    x = rng.normal(size=(7, 2, 4))
    state = {name: rng.normal(size=(2, 5)) for name in memory.initial_state(2)}
    start = np.zeros((7, 2), bool)
    for t, n in starts:
        start[t, n] = True
    ours, after = memory(
        torch.tensor(x, dtype=torch.float32),
        {name: torch.tensor(part, dtype=torch.float32) for name, part in state.items()},
        torch.tensor(start),
    )
    expected = reference(memory, x, state, start)
    np.testing.assert_allclose(ours.detach().numpy(), expected, atol=1e-5)
    np.testing.assert_allclose(after["state/h"].detach().numpy(), expected[-1], atol=1e-5)
    if starts:
        without = reference(memory, x, state, np.zeros_like(start))
        assert not np.allclose(ours.detach().numpy(), without, atol=1e-3)


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_no_gradient_flows_over_the_start_of_an_episode(kind: str) -> None:
    memory = Memory(kind, 3, 4)
    x = torch.randn(6, 2, 3, requires_grad=True)
    start = torch.zeros(6, 2, dtype=torch.bool)
    start[3, 0] = True
    y, _ = memory(x, memory.initial_state(2), start)
    (gradient,) = torch.autograd.grad(y[5].sum(), x)
    assert (gradient[:3, 0] == 0).all() and (gradient[3:, 0] != 0).any(-1).all()
    assert (gradient[:3, 1] != 0).any(-1).all()


# --- the user's own ---


class Plain(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.policy, self.value = nn.Linear(inputs, outputs), nn.Linear(inputs, 1)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        return self.policy(obs), self.value(obs)


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        return self.layer(obs["speed"]) * obs["pair"][1]


def test_a_users_module_sees_a_tensor_and_gets_its_free_parameters() -> None:
    module = Plain(3, 2)
    model = UserModel(module, PLAIN, 2, log_std=-0.5)
    x = observations(PLAIN, 4)["obs"]
    params, value, state = model({"obs": x})
    torch.testing.assert_close(params, torch.cat([module.policy(x), torch.full((4, 2), -0.5)], -1))
    torch.testing.assert_close(value, module.value(x)[:, 0])
    assert state == {} and model.initial_state(4) == {}


def test_a_users_module_sees_dicts_and_tuples_as_the_space_has_them() -> None:
    space = Dict({"speed": PLAIN, "pair": Tuple((Discrete(2), Box.of(-1, 1, (1,))))})
    module, obs = Named(), observations(space, 4)
    params, value, _ = UserModel(module, space, 0)(obs)
    torch.testing.assert_close(params, module.layer(obs["obs/speed"]) * obs["obs/pair/1"])
    assert value.tolist() == [0, 0, 0, 0]


def test_a_model_is_a_function_of_the_spaces_or_a_module_that_each_policy_copies() -> None:
    made = user_module(lambda space, outputs: Plain(math.prod(space.shape), outputs), PLAIN, 5)
    assert made(torch.zeros(2, 3))[0].shape == (2, 5)
    given = Plain(3, 5)
    copied = user_module(given, PLAIN, 5)
    assert isinstance(copied, Plain) and copied is not given
    assert torch.equal(copied.policy.weight, given.policy.weight)


def test_a_function_that_makes_something_else_is_refused() -> None:
    with pytest.raises(UsageError, match=r"the model function returned int, expected a torch nn\.Module"):
        user_module(lambda space, outputs: 3, PLAIN, 2)


def test_tanh_by_way_of_the_sigmoid_is_tanh_with_its_gradient() -> None:
    x = torch.linspace(-12, 12, 2 * FEW)
    given, exact = x.clone().requires_grad_(), x.double().requires_grad_()
    ours, theirs = tanh_(given * 1), torch.tanh(exact)
    assert (ours - theirs).abs().max() < 3e-7
    slope, true_slope = (torch.autograd.grad(y.sum(), a)[0] for y, a in ((ours, given), (theirs, exact)))
    assert (slope - true_slope).abs().max() < 5e-7
    few = x[:FEW:2].clone()
    assert torch.equal(tanh_(few.clone()), torch.tanh(few))
