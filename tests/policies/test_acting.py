"""How actors' outputs become actions: log-probabilities, bounds, noise and choices, against numbers worked out by hand."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from podium.core.errors import UsageError
from podium.core.spaces import Box, Discrete, MultiDiscrete
from podium.policies.acting import NOISE, Bounded, Choices, Point, Squashed, deterministic, stochastic
from podium.policies.distributions import SquashedGaussian

CPU = torch.device("cpu")
UNEVEN = Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 10.0], np.float32), np.dtype(np.float32))


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_a_squashed_actions_log_probability_is_the_normals_less_the_logarithm_of_the_slope() -> None:
    """Mean 0.5, deviation 0.2, one deviation up: tanh(0.7) = 0.604368, of slope 1 - 0.365260 = 0.634740."""
    params, noise = torch.tensor([[0.5, math.log(0.2)]]), torch.ones(1, 1)
    action, logp = Squashed(Box.of(-2, 2, (1,)), CPU).draw(params, noise)
    normal = -0.5 - math.log(0.2) - 0.918939
    assert action.item() == pytest.approx(0.604368, abs=1e-6)
    assert logp.item() == pytest.approx(normal - math.log(0.634740), abs=1e-5) == pytest.approx(0.645039, abs=1e-5)
    assert abs(logp.item() - normal) > 0.4, "the normal's alone is another"


def test_the_log_probability_of_the_envs_action_is_less_by_the_bounds_widths() -> None:
    """Scales 2 and 5: less log 2 + log 5 than that of the action from -1 to 1."""
    acting = Squashed(UNEVEN, CPU)
    params = torch.tensor([[0.3, -0.4, -1.0, -0.5]])
    chosen, logp = acting.draw(params, torch.tensor([[0.7, -1.1]]))
    own = SquashedGaussian(UNEVEN.low, UNEVEN.high)
    of_env = own.log_prob(params, torch.from_numpy(acting.to_env(chosen)), None)
    assert of_env.item() == pytest.approx(logp.item() - math.log(10.0), abs=1e-4)


def test_the_probabilities_add_up_to_one() -> None:
    noise = torch.linspace(-9, 9, 20001)[:, None]
    params = torch.tensor([[0.4, -0.3]]).expand(len(noise), 2)
    action, logp = Squashed(Box.of(-1, 1, (1,)), CPU).draw(params, noise)
    assert torch.trapezoid(logp.exp(), action[:, 0]).item() == pytest.approx(1.0, abs=1e-4)


def test_the_log_probability_is_exact_where_tanh_saturates() -> None:
    """At 30 the slope is 4 exp(-60): tanh is 1 in single precision, and its square taken from 1 leaves nothing."""
    params = torch.tensor([[30.0, 0.0]], requires_grad=True)
    action, logp = Squashed(Box.of(-1, 1, (1,)), CPU).draw(params, torch.zeros(1, 1))
    assert action.item() == 1.0
    assert logp.item() == pytest.approx(-0.918939 - (2 * math.log(2) - 60), abs=1e-4)
    assert torch.isfinite(torch.autograd.grad(logp.sum(), params)[0]).all()


def test_the_least_critic_counts() -> None:
    """Critics say 3 a and 1 - a: of any action of mean 0 and no deviation the least says 0."""
    acting = Squashed(Box.of(-1, 1, (1,)), CPU)
    params = torch.tensor([[0.0, -20.0]])
    worth, _ = acting.expected(params, lambda a: torch.stack([3 * a, 1 - a]), None, rng())  # type: ignore[operator]
    assert worth.item() == pytest.approx(0.0, abs=1e-6)
    worth, _ = acting.expected(params, lambda a: torch.stack([3 * a, -1 - a]), None, rng())  # type: ignore[operator]
    assert worth.item() == pytest.approx(-1.0, abs=1e-6)


def test_choices_expectations_are_over_all_of_them() -> None:
    """A quarter and three: of least worths 1 and 2 they make 1.75, where the least of the means would be 2."""
    params = torch.tensor([[math.log(1.0), math.log(3.0)]])
    said = torch.tensor([[[1.0, 3.0]], [[2.0, 2.0]]])
    worth, logp = Choices(Discrete(2)).expected(params, lambda _: said, None, rng())
    assert worth.item() == pytest.approx(1.75, abs=1e-6)
    assert logp.item() == pytest.approx(0.25 * math.log(0.25) + 0.75 * math.log(0.75), abs=1e-6)
    masked = Choices(Discrete(2)).expected(params, lambda _: said, torch.tensor([[True, False]]), rng())
    assert [part.item() for part in masked] == [1.0, 0.0]


def test_a_choices_worth_is_what_is_said_of_it() -> None:
    said = torch.tensor([[[1.0, 3.0], [5.0, 6.0]], [[2.0, 2.5], [7.0, 8.0]]])
    worth = Choices(Discrete(2)).worth(lambda _: said, torch.tensor([1, 0]))
    assert worth.tolist() == [[3.0, 5.0], [2.5, 7.0]]


def test_bounds_and_back() -> None:
    acting = Bounded(UNEVEN, CPU)
    chosen = torch.tensor([[-1.0, -1.0], [0.0, 0.0], [0.5, 1.0]])
    action = acting.to_env(chosen)
    np.testing.assert_allclose(action, [[-2, 0], [0, 5], [1, 10]])
    torch.testing.assert_close(acting.from_env(torch.from_numpy(action)), chosen)
    drawn = acting.to_env(acting.anything(1000, None, rng()))
    assert not UNEVEN.outside(drawn).any()
    np.testing.assert_allclose(drawn.mean(0), [0, 5], atol=0.3)


def test_gaussian_noise_is_new_at_each_step_and_stays_within_the_bounds() -> None:
    acting, now = Point(UNEVEN, CPU), SimpleNamespace(action_noise=0.3)
    params = torch.tensor([[0.2, -8.0]]).expand(4000, 2)
    chosen, state = acting.explore(params, None, acting.initial_state(4000), now, rng())
    assert state == {}
    assert float((chosen[:, 0] - math.tanh(0.2)).std()) == pytest.approx(0.3, rel=0.05)
    assert float(chosen.abs().max()) <= 1.0 and float((chosen[:, 1] == -1).float().mean()) == pytest.approx(
        0.5, abs=0.05
    )
    assert torch.equal(acting.mode(params, None), params.tanh())


def test_wandering_noise_keeps_what_was_less_a_share() -> None:
    """With 0.15 drawn back: 0.85 of the last noise and a new draw of 0.1."""
    acting, now = Point(UNEVEN, CPU, wanders=True), SimpleNamespace(action_noise=0.1, ou_theta=0.15)
    draws = rng(3)
    first, second = (torch.randn(5, 2, generator=draws) for _ in range(2))
    source, params = rng(3), torch.zeros(5, 2)
    chosen, state = acting.explore(params, None, acting.initial_state(5), now, source)
    torch.testing.assert_close(chosen, 0.1 * first)
    chosen, state = acting.explore(params, None, state, now, source)
    torch.testing.assert_close(chosen, 0.85 * 0.1 * first + 0.1 * second)
    assert state[NOISE].shape == (5, 2)


@pytest.mark.parametrize(
    ("space", "said"),
    [
        (Discrete(3), r"td3 needs a Box of actions, and this env has Discrete\(3\): dqn and sac take Discrete actions"),
        (MultiDiscrete((2, 2)), "td3 needs a Box of actions, and this env has MultiDiscrete.*: ppo, a2c and pg take"),
        (Box.of(-np.inf, np.inf, (2,)), r"td3 needs a Box of actions between finite bounds, and this env has Box\[2\]"),
        (
            Box.of(0, 9, (2,), np.int64),
            "td3 needs a Box of actions between finite bounds, and this env has Box.* int64",
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_what_does(space: object, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        deterministic("td3", SimpleNamespace(noise_kind="gaussian"), space, CPU)  # type: ignore[arg-type]


def test_sac_takes_choices_and_bounded_numbers() -> None:
    assert isinstance(stochastic("sac", Discrete(3), CPU), Choices)
    assert isinstance(stochastic("sac", UNEVEN, CPU), Squashed)
    with pytest.raises(UsageError, match="sac needs a Box of actions between finite bounds"):
        stochastic("sac", Box.of(-np.inf, 1, (2,)), CPU)
