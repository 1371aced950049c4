"""Adam over a flat vector: numbers by hand, and torch's own optimizer as a second opinion."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from podium.policies.adam import Adam


def test_the_first_step_is_the_learning_rate_against_the_sign() -> None:
    """After one step mean / (1 - 0.9) is the gradient and sqrt(square / (1 - 0.999)) its size: the step is lr * sign."""
    vector = torch.tensor([1.0, 1.0, 1.0])
    Adam(vector, eps=0.0).step(torch.tensor([0.5, -4.0, 1e-3]), lr=0.1)
    assert vector.tolist() == pytest.approx([0.9, 1.1, 0.9], abs=1e-6)


def test_the_second_step_by_hand() -> None:
    """Gradients 1 then 3: mean (0.1 * 0.9 + 0.3) / 0.19 = 2.0526316, square (0.000999 + 0.009) / 0.001999 = 5.0020010,
    so that the second step is 0.1 * 2.0526316 / (2.2365154 + 0.5) and the first 0.1 / 1.5."""
    vector = torch.tensor([0.0])
    adam = Adam(vector, eps=0.5)
    adam.step(torch.tensor([1.0]), lr=0.1)
    assert vector.item() == pytest.approx(-0.0666667, abs=1e-6)
    adam.step(torch.tensor([3.0]), lr=0.1)
    assert vector.item() == pytest.approx(-0.0666667 - 0.0750090, abs=1e-6)


def test_it_follows_torchs_adam() -> None:
    rng = torch.Generator().manual_seed(0)
    mine = torch.randn(50, generator=rng)
    theirs = torch.nn.Parameter(mine.clone())
    adam, reference = Adam(mine, eps=1e-5), torch.optim.Adam([theirs], lr=1e-2, eps=1e-5)
    for _ in range(20):
        gradient = torch.randn(50, generator=rng)
        theirs.grad = gradient.clone()
        reference.step()
        adam.step(gradient, lr=1e-2)
    assert torch.allclose(mine, theirs.detach(), atol=1e-6)


def test_it_goes_on_from_its_state_bit_for_bit() -> None:
    gradients = [torch.full((4,), float(i)) for i in range(1, 5)]
    whole, parted = torch.zeros(4), torch.zeros(4)
    straight, first = Adam(whole, eps=1e-8), Adam(parted, eps=1e-8)
    for gradient in gradients[:2]:
        straight.step(gradient, lr=0.1)
        first.step(gradient, lr=0.1)
    second = Adam(parted, eps=1e-8)
    second.set_state(first.get_state())
    for gradient in gradients[2:]:
        straight.step(gradient, lr=0.1)
        second.step(gradient, lr=0.1)
    assert np.array_equal(whole.numpy(), parted.numpy())
