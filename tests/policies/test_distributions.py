"""Distributions: log-probabilities, entropies and draws against numbers worked out apart from the code."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from podium.core.errors import UsageError
from podium.core.spaces import Box, Discrete, MultiBinary, MultiDiscrete
from podium.policies.distributions import (
    Bernoulli,
    Categorical,
    Family,
    Gaussian,
    MultiCategorical,
    SquashedGaussian,
    family_for,
)

DRAWS = 20_000


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def row(*numbers: float) -> Tensor:
    return torch.tensor([numbers], dtype=torch.float32)


def logits(*probabilities: float) -> Tensor:
    return row(*map(math.log, probabilities))


def both(family: Family, params: Tensor, action: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Log-probabilities and entropies."""
    return family.log_prob(params, action, mask), family.entropy(params, action, mask)


def near_frequencies(counts: np.ndarray, probabilities: np.ndarray) -> bool:
    """Whether a chi-square statistic is within what chance gives (mean k, deviation sqrt(2 k)) by five deviations."""
    expected = probabilities * counts.sum()
    seen = expected > 0
    statistic = float((np.square(counts - expected)[seen] / expected[seen]).sum())
    freedom = int(seen.sum()) - 1
    return bool((counts[~seen] == 0).all()) and statistic < freedom + 5 * math.sqrt(2 * freedom)


# --- one choice ---


def test_categorical_by_hand() -> None:
    logp, entropy = both(Categorical(3), logits(0.5, 0.3, 0.2) + 7.0, torch.tensor([1]), None)
    assert logp.item() == pytest.approx(-1.2039728, abs=1e-6)
    assert entropy.item() == pytest.approx(1.0296531, abs=1e-6)


def test_a_masked_choice_has_probability_zero_and_the_others_fill_up() -> None:
    params, mask = logits(0.5, 0.3, 0.2).expand(3, 3), torch.tensor([[True, False, True]]).expand(3, 3)
    logp, entropy = both(Categorical(3), params, torch.tensor([0, 1, 2]), mask)
    assert logp.exp().tolist() == pytest.approx([5 / 7, 0.0, 2 / 7], abs=1e-6)
    assert logp.exp()[1].item() == 0.0
    assert entropy[0].item() == pytest.approx(0.5982696, abs=1e-6)


@pytest.mark.parametrize("legal", [(0,), (5,), (1, 4), (0, 5), (2, 3, 4)])
def test_a_masked_choice_is_never_drawn(legal: tuple[int, ...]) -> None:
    mask = torch.zeros(DRAWS, 6, dtype=torch.bool)
    mask[:, list(legal)] = True
    params = row(9.0, -9.0, 0.0, 30.0, -30.0, 9.0).expand(DRAWS, 6)
    action, logp = Categorical(6).sample(params, mask, rng())
    assert set(action.tolist()) <= set(legal)
    assert torch.isfinite(logp).all()
    assert Categorical(6).mode(params, mask)[0][0].item() in legal


def test_draws_are_as_frequent_as_their_probabilities() -> None:
    p = np.array([0.05, 0.5, 0.0, 0.15, 0.3])
    mask = torch.tensor((p > 0)[None]).expand(DRAWS, 5)
    params = logits(0.05, 0.5, 0.4, 0.15, 0.3).expand(DRAWS, 5)
    action, logp = Categorical(5).sample(params, mask, rng(1))
    counts = np.bincount(action.numpy(), minlength=5)
    assert near_frequencies(counts, p)
    assert not near_frequencies(counts, np.array([0.07, 0.48, 0.0, 0.15, 0.3]))
    torch.testing.assert_close(logp.exp(), torch.tensor(p, dtype=torch.float32)[action])


def test_the_mode_is_the_likeliest_legal_choice() -> None:
    params = logits(0.5, 0.3, 0.2)
    assert Categorical(3).mode(params, None)[0].item() == 0
    action, logp = Categorical(3).mode(params, torch.tensor([[False, True, True]]))
    assert action.item() == 1 and logp.item() == pytest.approx(math.log(0.6), abs=1e-6)


@pytest.mark.parametrize("mask", [None, torch.tensor([[True, True, False, True]])], ids=["free", "masked"])
def test_the_gradient_of_log_probability_and_entropy_is_that_of_finite_differences(mask: Tensor | None) -> None:
    start = torch.tensor([[0.3, -0.7, 0.2, 1.1]], dtype=torch.float64)

    def objective(params: Tensor) -> Tensor:
        logp, entropy = both(Categorical(4), params, torch.tensor([1]), mask)
        return (logp + 0.5 * entropy).sum()

    params = start.clone().requires_grad_()
    (exact,) = torch.autograd.grad(objective(params), params)
    step = 1e-5 * torch.eye(4, dtype=torch.float64)
    differences = [(objective(start + s) - objective(start - s)).item() / 2e-5 for s in step[:, None]]
    assert exact[0].tolist() == pytest.approx(differences, abs=1e-8)
    assert mask is None or exact[0, 2].item() == 0.0


# --- several choices ---


def test_multi_categorical_adds_its_parts_up() -> None:
    family = MultiCategorical((2, 3))
    params = torch.cat([logits(0.25, 0.75), logits(0.5, 0.3, 0.2)], -1)
    logp, entropy = both(family, params, torch.tensor([[1, 2]]), None)
    assert logp.exp().item() == pytest.approx(0.75 * 0.2, abs=1e-6)
    assert entropy.item() == pytest.approx(0.5623351 + 1.0296531, abs=1e-6)


def test_multi_categorical_masks_each_part() -> None:
    family = MultiCategorical((2, 3))
    params = torch.cat([logits(0.25, 0.75), logits(0.5, 0.3, 0.2)], -1).expand(DRAWS, 5)
    mask = torch.tensor([[True, False, False, True, True]]).expand(DRAWS, 5)
    action, logp = family.sample(params, mask, rng())
    assert action.shape == (DRAWS, 2) and (action[:, 0] == 0).all()
    assert near_frequencies(np.bincount(action[:, 1].numpy(), minlength=3), np.array([0.0, 0.6, 0.4]))
    torch.testing.assert_close(logp, family.log_prob(params, action, mask))
    assert family.mode(params, mask)[0][0].tolist() == [0, 1]


def test_bernoulli_by_hand() -> None:
    params = row(0.0, math.log(3.0))
    logp, entropy = both(Bernoulli(2), params, torch.tensor([[1, 0]], dtype=torch.int8), None)
    assert logp.exp().item() == pytest.approx(0.5 * 0.25, abs=1e-6)
    assert entropy.item() == pytest.approx(0.6931472 + 0.5623351, abs=1e-6)
    action, logp = Bernoulli(2).sample(params.expand(DRAWS, 2), None, rng())
    assert action.dtype == torch.int8
    assert near_frequencies(np.bincount(action[:, 1].numpy(), minlength=2), np.array([0.25, 0.75]))
    assert Bernoulli(2).mode(row(-0.1, 0.1), None)[0].tolist() == [[0, 1]]


# --- real numbers ---


def test_gaussian_by_hand() -> None:
    """Mean (1, -1), deviation (2, 1/2), at (2, 0): exponents 1/8 and 2, and the deviations' product is 1."""
    params = row(1.0, -1.0, math.log(2.0), math.log(0.5))
    logp, entropy = both(Gaussian((2,)), params, row(2.0, 0.0), None)
    assert logp.item() == pytest.approx(-0.125 - 2.0 - 1.8378771, abs=1e-6)
    assert entropy.item() == pytest.approx(2.8378771, abs=1e-6)


def test_gaussian_draws_have_its_mean_and_deviation() -> None:
    params = row(1.0, -1.0, math.log(2.0), math.log(0.5)).expand(DRAWS, 4)
    action, logp = Gaussian((2,)).sample(params, None, rng())
    assert action.mean(0).tolist() == pytest.approx([1.0, -1.0], abs=0.06)
    assert action.std(0).tolist() == pytest.approx([2.0, 0.5], rel=0.03)
    torch.testing.assert_close(logp, Gaussian((2,)).log_prob(params, action, None), rtol=0, atol=1e-4)
    torch.testing.assert_close(Gaussian((2,)).mode(params, None)[0][0], torch.tensor([1.0, -1.0]))


def test_gaussian_actions_have_the_spaces_shape() -> None:
    action, logp = Gaussian((2, 3)).sample(torch.zeros(5, 12), None, rng())
    assert action.shape == (5, 2, 3) and logp.shape == (5,)
    assert Gaussian((2, 3)).log_prob(torch.zeros(5, 12), action, None).shape == (5,)


LOW, HIGH = -1.0, 3.0


def squashed() -> SquashedGaussian:
    return SquashedGaussian(np.array([LOW], np.float32), np.array([HIGH], np.float32))


def density(actions: np.ndarray, mean: float, std: float) -> np.ndarray:
    """Change of variables: raw = atanh((a - 1) / 2), d raw / d a = 1 / (2 (1 - ((a - 1) / 2)^2))."""
    unit = (actions - 1.0) / 2.0
    raw = np.arctanh(unit)
    normal = np.exp(-0.5 * ((raw - mean) / std) ** 2) / (std * math.sqrt(2 * math.pi))
    return normal / (2.0 * (1.0 - unit**2))


@pytest.mark.parametrize(("mean", "std"), [(0.0, 0.5), (0.4, 0.8), (-1.2, 0.3)])
def test_squashed_gaussian_has_the_density_of_the_squashed_variable(mean: float, std: float) -> None:
    edges = np.linspace(LOW, HIGH, 20_001)
    middles = (edges[1:] + edges[:-1]) / 2
    params = row(mean, math.log(std)).expand(len(middles), 2)
    actions = torch.tensor(middles[:, None], dtype=torch.float32)
    ours = squashed().log_prob(params, actions, None).exp().numpy()
    expected = density(middles, mean, std)
    np.testing.assert_allclose(ours, expected, rtol=2e-3, atol=2e-4)
    width = (HIGH - LOW) / len(middles)
    assert ours.sum() * width == pytest.approx(1.0, abs=2e-3)
    uncorrected = np.exp(-0.5 * ((np.arctanh((middles - 1) / 2) - mean) / std) ** 2) / (std * math.sqrt(2 * math.pi))
    assert abs(uncorrected.sum() * width - 1.0) > 0.1
    entropy = -(expected * np.log(np.maximum(expected, 1e-300))).sum() * width
    sampled, _ = squashed().sample(row(mean, math.log(std)).expand(DRAWS, 2), None, rng())
    estimate = squashed().entropy(row(mean, math.log(std)).expand(DRAWS, 2), sampled, None).mean().item()
    assert estimate == pytest.approx(entropy, abs=0.03)


def test_squashed_draws_stay_inside_and_carry_the_log_probability_that_learning_finds() -> None:
    params = row(0.4, math.log(0.8)).expand(DRAWS, 2)
    action, logp = squashed().sample(params, None, rng())
    assert LOW <= action.min() and action.max() <= HIGH
    counts, _ = np.histogram(action.numpy(), 8, (LOW, HIGH))
    fine = np.linspace(LOW, HIGH, 8001)
    shares = density((fine[1:] + fine[:-1]) / 2, 0.4, 0.8).reshape(8, -1).sum(1) * (HIGH - LOW) / 8000
    assert near_frequencies(counts, shares / shares.sum())
    assert torch.equal(logp, squashed().log_prob(params, action, None))


@pytest.mark.parametrize("raw", [-20.0, 20.0, -6.0, 9.0])
def test_a_saturated_squash_stays_finite_and_agrees_with_itself(raw: float) -> None:
    """A ratio of new to old probability begins at exactly 1 only if acting and learning work it out alike."""
    params = row(raw, -3.0).expand(100, 2).requires_grad_()
    for action, logp in (squashed().sample(params, None, rng()), squashed().mode(params, None)):
        again, entropy = both(squashed(), params, action.detach(), None)
        (gradient,) = torch.autograd.grad((again + entropy).sum(), params)
        assert torch.isfinite(logp).all() and torch.isfinite(entropy).all() and torch.isfinite(gradient).all()
        assert torch.equal(logp, again)


def test_the_squashed_entropys_gradient_is_that_of_the_true_entropy() -> None:
    """By numerical integration the entropy of mean 0 grows with the deviation; minus the log-probability of fixed
    actions, as an estimate of the entropy, would have a mean gradient of 0 there."""

    def entropy_at(log_std: float) -> float:
        raw = np.linspace(-12, 12, 100_001)
        std = math.exp(log_std)
        normal = np.exp(-0.5 * (raw / std) ** 2) / (std * math.sqrt(2 * math.pi))
        log_slope = np.log(2.0) + 2 * (math.log(2.0) - raw - np.logaddexp(0, -2 * raw))
        return float((normal * (log_slope - np.log(normal + 1e-300))).sum() * (raw[1] - raw[0]))

    expected = (entropy_at(-0.5 + 1e-3) - entropy_at(-0.5 - 1e-3)) / 2e-3
    params = row(0.0, -0.5).expand(DRAWS, 2).clone().requires_grad_()
    action, _ = squashed().sample(params.detach(), None, rng())
    logp, entropy = both(squashed(), params, action, None)
    (gradient,) = torch.autograd.grad(entropy.mean(), params, retain_graph=True)
    (naive,) = torch.autograd.grad(-logp.mean(), params)
    assert expected > 0.2
    assert gradient[:, 1].sum().item() == pytest.approx(expected, abs=0.03)
    assert abs(naive[:, 1].sum().item()) < 0.05


# --- which family goes with which space ---


@pytest.mark.parametrize(
    ("space", "squash", "kind", "size", "free"),
    [
        (Discrete(5), False, Categorical, 5, 0),
        (MultiDiscrete((2, 3)), False, MultiCategorical, 5, 0),
        (MultiBinary(4), False, Bernoulli, 4, 0),
        (Box.of(-1, 1, (2, 3)), False, Gaussian, 6, 6),
        (Box.of(-1, 1, (2, 3)), True, SquashedGaussian, 6, 6),
    ],
)
def test_family_of_a_space(space: Discrete, squash: bool, kind: type[Family], size: int, free: int) -> None:
    family = family_for(space, squash)
    assert isinstance(family, kind) and (family.size, family.free) == (size, free)
    params = torch.zeros(7, size + free)
    action, logp = family.sample(params, None, rng())
    assert not space.outside(action.numpy()).any() or kind is Gaussian
    assert logp.shape == (7,) and torch.equal(family.log_prob(params, action, None).isfinite(), torch.ones(7) > 0)


@pytest.mark.parametrize("space", [Discrete(3), Box.of(-np.inf, np.inf, (1,))])
def test_squashing_needs_bounds(space: Box) -> None:
    with pytest.raises(UsageError, match=r"--squash true needs a bounded Box"):
        family_for(space, squash=True)
