"""The rules of ES, ARS and CEM beside figures that were worked out by hand, and what nearly right ones would give."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from podium import algorithms
from podium.algorithms.ars import ARS, shares
from podium.algorithms.cem import CEM, moments
from podium.algorithms.es import ES, centered_ranks, slope
from podium.core.noise import Noises

# Three perturbations of two parameters: (1, 0), (0, 1) and (1, 1).
TABLE = np.array([1, 0, 1, 1], np.float32)
NOISES = Noises(TABLE, np.array([0, 1, 2]), 2)


def config(name: str, **settings: Any) -> Any:
    return algorithms.get(name).configure(None, {"envs": 2, **settings})


def test_a_mirrored_estimate_of_a_linear_function() -> None:
    """f(x) = 2 x0 - 3 x1 at (5, 7) with sigma 0.5: both ways f differs by 2 sigma times (2, -3, -1). The mean over six
    scores of score times noise, over sigma, is (2 - 1, -3 - 1) / 3. Around the perturbations' own scale it is the gradient
    times what their products sum to, here ((2, 1), (1, 2)) / 3 times (2, -3) = (1 / 3, -4 / 3)."""
    mean, sigma = np.array([5.0, 7.0]), 0.5
    directions = np.array([[1, 0], [0, 1], [1, 1]])
    scores = np.array([[(mean + sign * sigma * one) @ [2, -3] for sign in (1, -1)] for one in directions])
    assert scores.tolist() == [[-10, -12], [-12.5, -9.5], [-11.5, -10.5]]
    assert slope(scores, NOISES, sigma) == pytest.approx([1 / 3, -4 / 3])
    one_sided = sum(score * one for score, one in zip(scores[:, 0], directions, strict=True)) / (3 * sigma)
    assert one_sided != pytest.approx([1 / 3, -4 / 3]), "without the mirror image the function's height remains"


def test_ranks_are_centred_and_equal_returns_share_theirs() -> None:
    """Of 10, 30, 20, 20 the ranks from 0 are 0, 3, 1.5, 1.5; over 3, less a half."""
    found = centered_ranks(np.array([[10.0, 30.0], [20.0, 20.0]]))
    assert found == pytest.approx(np.array([[-0.5, 0.5], [0.0, 0.0]]))
    assert centered_ranks(np.full((3, 2), 9.0)).tolist() == [[0, 0]] * 3, "where all are alike nothing is better"
    by_place = np.argsort(np.argsort(np.full(6, 9.0), kind="stable")) / 5 - 0.5
    assert by_place.tolist() != [0] * 6, "ranks by place would make a step of nothing"
    assert centered_ranks(np.array([[1e9, -1e9]])).tolist() == [[0.5, -0.5]]


def test_es_goes_up_and_weights_decay() -> None:
    """Adam's first step is the step size in each parameter, whatever the gradient's length: up for both, where the first
    perturbation is better than its mirror image and the others are alike: (1, 0) is up for x0; x1 follows the decay."""
    rule = ES(config("es", population=6, sigma=0.1, lr=0.25, weight_decay=0.5), 2)
    mean = np.array([0.0, 3.0], np.float32)
    figures = rule.step(mean, np.array([[4.0, 1.0], [2.0, 2.0], [2.0, 2.0]]), NOISES, 0.0)
    assert mean == pytest.approx([0.25, 2.75], abs=1e-5)
    # The ranks of 4 and 1 differ by 1: (1, 0) / (6 * 0.1).
    assert figures["gradient_norm"] == pytest.approx(1 / 0.6)
    assert rule.spread(0.0) == 0.1


def test_es_takes_the_step_size_of_the_moment() -> None:
    rule = ES(config("es", population=6, lr="1->0", sigma="0.2->0.1"), 2)
    mean = np.zeros(2, np.float32)
    rule.step(mean, np.array([[4.0, 1.0], [2.0, 2.0], [2.0, 2.0]]), NOISES, 1.0)
    assert mean.tolist() == [0, 0] and rule.spread(0.5) == pytest.approx(0.15)


# Returns of three directions both ways; the best returns of them are 10, 4 and 8.
RETURNS = np.array([[10.0, 2.0], [4.0, 3.0], [6.0, 8.0]])


def test_ars_steps_by_the_best_directions_over_their_deviation() -> None:
    """The best two are the first and the third. The deviation of 10, 2, 6, 8 about 6.5 is sqrt(35 / 4) = 2.958. The step
    is 0.5 / (2 * 2.958) of 8 (1, 0) - 2 (1, 1) = (6, -2)."""
    deviation = np.sqrt(35 / 4)
    rule = ARS(config("ars", directions=3, top=2, lr=0.5), 2)
    mean = np.zeros(2, np.float32)
    figures = rule.step(mean, RETURNS, NOISES, 0.0)
    assert figures["return_deviation"] == pytest.approx(deviation)
    assert mean == pytest.approx(np.array([6.0, -2.0]) * 0.5 / (2 * deviation))
    assert RETURNS.std() != pytest.approx(deviation), "the deviation of all would be another"
    by_mean = np.argsort(-RETURNS.mean(1))[:2]
    assert set(by_mean) == {0, 2} and shares(np.array([[9.0, -9.0], [1.0, 1.0]]), 1)[0][0] != 0, "by the better way"


def test_ars_makes_no_step_where_all_returns_are_alike() -> None:
    mean = np.ones(2, np.float32)
    ARS(config("ars", directions=3, top=3), 2).step(mean, np.full((3, 2), 5.0), NOISES, 0.0)
    assert mean.tolist() == [1, 1]


def test_elites_have_a_mean_and_a_deviation() -> None:
    """Of (1, 0) and (1, 1) the mean is (1, 0.5) and the deviation (0, 0.5), over two and not over one."""
    centre, deviation = moments([NOISES[0], NOISES[2]])
    assert centre.tolist() == [1, 0.5] and deviation.tolist() == [0, 0.5]


def test_cem_moves_to_its_elites_and_keeps_their_spread() -> None:
    """From (10, 10) with deviation 2 the elites (the greatest returns, first and third) lie at (12, 10) and (12, 12): mean
    (12, 11), deviation (0, 1). With extra noise 0.3 the next are sqrt(0.09) and sqrt(1.09) from it."""
    rule = CEM(config("cem", population=3, elites=2, sigma=2.0, extra_noise=0.3), 2)
    assert rule.spread(0.0).tolist() == [2, 2], "the first are as far as sigma"
    mean = np.full(2, 10, np.float32)
    figures = rule.step(mean, np.array([[7.0], [1.0], [5.0]]), NOISES, 0.0)
    assert mean.tolist() == [12, 11] and figures["elite_return"] == 6
    assert rule.spread(0.0) == pytest.approx([0.3, np.sqrt(1.09)])
    other = CEM(config("cem", population=3, elites=2, extra_noise=0.3), 2)
    other.set_state(rule.get_state())
    assert np.array_equal(other.spread(0.0), rule.spread(0.0))


def test_cems_extra_noise_fades() -> None:
    rule = CEM(config("cem", population=3, elites=2, extra_noise="1->0@0.5"), 2)
    rule.step(np.zeros(2, np.float32), np.array([[7.0], [1.0], [7.0]]), NOISES, 0.0)
    assert rule.spread(0.0)[0] == 1 and rule.spread(0.25)[0] == 0.5 and rule.spread(0.8)[0] == 0
