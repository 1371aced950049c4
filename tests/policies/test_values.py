"""What is said of returns: C51's projection and the losses worked out by hand, and wrong versions that give others."""

from __future__ import annotations

import pytest
import torch

from podium.policies.values import RESCALED, Categorical, Mean, Quantiles, huber, shrink, stretch

CPU = torch.device("cpu")


def numbers(*values: float) -> torch.Tensor:
    return torch.tensor(values)


def test_huber_by_hand() -> None:
    assert huber(numbers(0.5, -0.5, 1.0, 3.0, -3.0)).tolist() == pytest.approx([0.125, 0.125, 0.5, 2.5, 2.5])


def test_the_means_loss_by_hand() -> None:
    """Targets 1 + 0.9 * 2 = 2.8 and, after a termination, 1: errors 0.8 and -3."""
    taken = numbers(2.0, 4.0)[:, None].requires_grad_()
    loss, wrong = Mean().loss(taken, numbers(2.0, 7.0)[:, None], numbers(1.0, 1.0), numbers(0.9, 0.0))
    assert loss.tolist() == pytest.approx([0.32, 2.5]) and wrong.tolist() == pytest.approx([0.8, 3.0])
    (slope,) = torch.autograd.grad(loss.sum(), taken)
    assert slope[:, 0].tolist() == pytest.approx([-0.8, 1.0])


def test_rescaling_and_its_inverse_by_hand() -> None:
    """3 becomes the root of 4, less 1, and 0.003 more; 0 and the sign stay; 99 becomes 9.099."""
    given = numbers(3.0, -3.0, 0.0, 99.0, -8.0)
    small = [1.003, -1.003, 0.0, 9.099, -2.008]
    assert shrink(given).tolist() == pytest.approx(small)
    assert stretch(numbers(*small)).tolist() == pytest.approx([3.0, -3.0, 0.0, 99.0, -8.0], rel=1e-5)
    without_slope = numbers(*small).sign() * ((numbers(*small).abs() + 1.0) ** 2 - 1.0)
    assert without_slope[3] == pytest.approx(100.99, abs=0.01), "the square alone is no inverse"


def test_rescaling_goes_back_and_forth_over_all_sizes() -> None:
    x = torch.logspace(-4, 6, 200)
    for signed in (x, -x):
        torch.testing.assert_close(stretch(shrink(signed)), signed, rtol=1e-4, atol=1e-6)
    assert (shrink(x).diff() > 0).all()


def test_rescaled_losses_by_hand() -> None:
    """The next state is said to be 1.003, which is 3: the target is 2 + 0.5 * 3 = 3.5, and of that 2.12132 - 1 + 0.0035."""
    learned = 1.1248203
    following, gain, discount = numbers(1.003)[:, None], numbers(2.0), numbers(0.5)
    _, wrong = Mean(RESCALED).loss(numbers(1.0)[:, None], following, gain, discount)
    assert wrong.tolist() == pytest.approx([learned - 1.0], rel=1e-5)
    _, unscaled = Mean().loss(numbers(1.0)[:, None], following, gain, discount)
    assert unscaled.tolist() == pytest.approx([1.5015])  # the small numbers taken for returns
    assert Mean(RESCALED).mean(numbers(1.003)[:, None]).tolist() == pytest.approx([3.0])
    quantiles = Quantiles(2, CPU, RESCALED)
    assert quantiles.mean(torch.tensor([[1.003, 9.099]])).tolist() == pytest.approx([51.0])
    taken = torch.tensor([[learned, learned]])
    loss, _ = quantiles.loss(taken, torch.tensor([[1.003, 1.003]]), gain, discount)
    assert loss.tolist() == pytest.approx([0.0], abs=1e-6)


def test_rescaled_places_by_hand() -> None:
    """From -3 to 3 in five: -1.003, -0.5015, 0, 0.5015, 1.003 are learned. All at 3, of which 1 is added to 0.5 * 3: 2.5
    is 0.87333 there, 0.74144 of the way from the fourth to the last."""
    value = Categorical(-3.0, 3.0, 5, CPU, RESCALED)
    assert value.support.tolist() == pytest.approx([-1.003, -0.5015, 0, 0.5015, 1.003])
    projected = value.project(torch.tensor([[0.0, 0, 0, 0, 1]]), numbers(1.0), numbers(0.5))
    assert projected[0].tolist() == pytest.approx([0, 0, 0, 0.25856, 0.74144], abs=1e-4)
    sure = torch.tensor([[0.0, 0, 0, 0, 99]])
    assert value.mean(sure).tolist() == pytest.approx([3.0], rel=1e-4)


def five() -> Categorical:
    """Places -2, -1, 0, 1 and 2."""
    return Categorical(-2.0, 2.0, 5, CPU)


def test_the_projection_by_hand() -> None:
    """All at 1, and a gain of 0.25 with discount 0.5: it goes to 0.75, a quarter of it at 0 and the rest at 1. Half at
    -2 and half at 2 with a gain of 1: at 0 and at 2 (1.9 is 0.1 at 1). Beyond the ends it stays at the end."""
    value = five()
    probabilities = torch.tensor([[0, 0, 0, 1, 0], [0.5, 0, 0, 0, 0.5], [0, 0, 0, 0.25, 0.75], [0.2] * 5])
    gain, discount = numbers(0.25, 1.0, 1.5, -0.5), numbers(0.5, 0.45, 0.9, 0.0)
    expected = [
        [0, 0, 0.25, 0.75, 0],
        [0, 0, 0.5 * 0.9, 0.5 * 0.1 + 0.5 * 0.1, 0.5 * 0.9],
        [0, 0, 0, 0, 1],
        [0, 0.5, 0.5, 0, 0],
    ]
    projected = value.project(probabilities, gain, discount)
    torch.testing.assert_close(projected, torch.tensor(expected))


def test_a_place_that_is_hit_exactly_keeps_its_share() -> None:
    """Sharing out by distance to the floor and to the ceiling, as it is often written, loses it: both are 0."""
    value, probabilities = five(), torch.tensor([[0.0, 0, 0, 1, 0]])
    gain, discount = numbers(0.0), numbers(1.0)
    assert value.project(probabilities, gain, discount).tolist() == [[0, 0, 0, 1, 0]]
    steps = (gain[:, None] + discount[:, None] * value.support + 2.0) / 1.0
    wrong = torch.zeros(1, 5)
    wrong.scatter_add_(1, steps.floor().long(), probabilities * (steps.ceil() - steps))
    wrong.scatter_add_(1, steps.ceil().long(), probabilities * (steps - steps.floor()))
    assert wrong.sum() == 0


def test_the_categorical_loss_is_the_cross_entropy_and_its_divergence_the_error() -> None:
    """Target half and half at 0 and 1; said: softmax of (0, 0, 0, ln 3, 0) = 1/7 each and 3/7 at 1."""
    value = five()
    said = numbers(0, 0, 0, float(numbers(3.0).log()), 0)[None].requires_grad_()
    following = torch.tensor([[-50.0, -50, -50, 50, -50]])
    loss, wrong = value.loss(said, following, numbers(0.0), numbers(0.5))
    cross = -0.5 * (numbers(1 / 7).log() + numbers(3 / 7).log()).item()
    assert loss.item() == pytest.approx(cross) and wrong.item() == pytest.approx(cross + numbers(0.5).log().item())
    (slope,) = torch.autograd.grad(loss.sum(), said)
    assert slope[0].tolist() == pytest.approx([1 / 7, 1 / 7, 1 / 7 - 0.5, 3 / 7 - 0.5, 1 / 7], abs=1e-6)
    assert value.mean(said).item() == pytest.approx((-2 - 1 + 3 + 2) / 7)


def test_the_quantile_loss_by_hand() -> None:
    """Quantiles 0 and 1 at levels 1/4 and 3/4; targets 0.5 and 3. Errors of the first: 0.5 and 3, huber 0.125 and 2.5, by
    1/4 each: mean 0.328125. Of the second: -0.5 by 1/4 (1 - 3/4) and 2 by 3/4: (0.03125 + 1.125) / 2 = 0.578125."""
    value = Quantiles(2, CPU)
    taken = torch.tensor([[0.0, 1.0]], requires_grad=True)
    loss, wrong = value.loss(taken, torch.tensor([[0.0, 2.5]]), numbers(0.5), numbers(1.0))
    assert loss.item() == pytest.approx(0.328125 + 0.578125) and wrong.item() == pytest.approx(loss.item())
    (slope,) = torch.autograd.grad(loss.sum(), taken)
    assert slope[0].tolist() == pytest.approx([-(0.5 + 1) / 8, (0.5 * 0.25 - 1 * 0.75) / 2])
    turned = ((value.levels[:, None] - 1 + (torch.tensor([[0.5, 3.0], [-0.5, 2.0]]) < 0).float()).abs()).tolist()
    assert turned == [[0.75, 0.75], [0.75, 0.25]], "levels the wrong way round would pull by these"


def test_quantiles_settle_at_the_levels_of_a_distribution() -> None:
    """Four quantiles of 0, 1, 2, 3 (each as likely) settle in order near them; with the mean's loss all would be 1.5."""
    value = Quantiles(4, CPU)
    said = torch.zeros(1, 4, requires_grad=True)
    rng = torch.Generator().manual_seed(0)
    for step in range(3000):
        gain = torch.randint(0, 4, (32,), generator=rng).float()
        loss, _ = value.loss(said.expand(32, 4), torch.zeros(32, 4), gain, torch.zeros(32))
        (slope,) = torch.autograd.grad(loss.mean(), said)
        said.data -= 0.2 * (1 - step / 3000) * slope
    assert said.tolist()[0] == pytest.approx([0.3, 1.1, 1.9, 2.7], abs=0.25)
    assert value.mean(said).item() == pytest.approx(1.5, abs=0.1)
