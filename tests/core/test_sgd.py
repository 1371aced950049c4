"""Gradient descent in numpy: Adam's numbers worked out apart, gradients scaled down, the mean over everyone's rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from podium.core.sgd import Adam, Reduce, mean_over_rows, shrink
from podium.engine.local import LocalEngine


def f32(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


# --- Adam ---


def test_the_first_step_is_the_learning_rate_against_the_sign() -> None:
    """After one step mean / (1 - 0.9) is the gradient and sqrt(square / (1 - 0.999)) its size: the step is lr * sign."""
    vector = f32(1, 1, 1)
    Adam(3, eps=0.0).step(vector, f32(0.5, -4.0, 1e-3), lr=0.1)
    assert vector.tolist() == pytest.approx([0.9, 1.1, 0.9], abs=1e-6)


def test_the_second_step_by_hand() -> None:
    """Gradients 1 then 3: mean (0.1 * 0.9 + 0.3) / 0.19 = 2.0526316, square (0.000999 + 0.009) / 0.001999 = 5.0020010,
    so that the second step is 0.1 * 2.0526316 / (2.2365154 + 0.5) and the first 0.1 / 1.5."""
    vector, adam = f32(0), Adam(1, eps=0.5)
    adam.step(vector, f32(1), lr=0.1)
    assert vector[0] == pytest.approx(-0.0666667, abs=1e-6)
    adam.step(vector, f32(3), lr=0.1)
    assert vector[0] == pytest.approx(-0.0666667 - 0.0750090, abs=1e-6)


def test_it_follows_the_papers_formulas() -> None:
    """Algorithm 1 of the paper in float64, with its bias corrections where it has them."""
    rng = np.random.default_rng(0)
    mine = rng.normal(size=50).astype(np.float32)
    theirs, mean, square = mine.astype(float), np.zeros(50), np.zeros(50)
    adam = Adam(50, eps=1e-5, betas=(0.8, 0.95))
    for t in range(1, 21):
        gradient = rng.normal(size=50).astype(np.float32)
        adam.step(mine, gradient, lr=1e-2)
        mean = 0.8 * mean + 0.2 * gradient
        square = 0.95 * square + 0.05 * gradient.astype(float) ** 2
        theirs -= 1e-2 * (mean / (1 - 0.8**t)) / (np.sqrt(square / (1 - 0.95**t)) + 1e-5)
    assert mine.dtype == np.float32
    np.testing.assert_allclose(mine, theirs, atol=1e-6)


def test_it_goes_on_from_its_state_bit_for_bit() -> None:
    gradients = [np.full(4, i, np.float32) for i in range(1, 5)]
    whole, parted = np.zeros(4, np.float32), np.zeros(4, np.float32)
    straight, first, second = (Adam(4, eps=1e-8) for _ in range(3))
    for gradient in gradients[:2]:
        straight.step(whole, gradient, lr=0.1)
        first.step(parted, gradient, lr=0.1)
    state = first.get_state()
    second.set_state(state)
    for gradient in gradients[2:]:
        straight.step(whole, gradient, lr=0.1)
        second.step(parted, gradient, lr=0.1)
    assert np.array_equal(whole, parted)
    assert state["steps"] == 2 and np.array_equal(state["mean"], first.get_state()["mean"])


def test_parts_of_a_vector_step_as_the_whole_does() -> None:
    """As they do in the shards of a parameter server."""
    rng = np.random.default_rng(1)
    whole = rng.normal(size=7).astype(np.float32)
    parts = [part.copy() for part in np.array_split(whole, 3)]
    adam, adams = Adam(7, eps=1e-5), [Adam(len(part), eps=1e-5) for part in parts]
    for _ in range(3):
        gradient = rng.normal(size=7).astype(np.float32)
        adam.step(whole, gradient, lr=0.1)
        for one, part, its_gradient in zip(adams, parts, np.array_split(gradient, 3), strict=True):
            one.step(part, its_gradient, lr=0.1)
    assert np.array_equal(np.concatenate(parts), whole)


# --- gradients that are too long ---


@pytest.mark.parametrize(("norm", "most"), [(0.0, 0.5), (0.3, 0.5), (0.5, 0.5), (1e9, None)])
def test_a_gradient_that_is_not_too_long_stays_as_it_is(norm: float, most: float | None) -> None:
    assert shrink(norm, most) == 1.0


def test_a_longer_one_becomes_as_long_as_it_may_be() -> None:
    assert shrink(4.0, 0.5) == pytest.approx(0.125, rel=1e-6)
    for norm in (0.5000001, 2.0, 1e9):
        assert 0.499 < norm * shrink(norm, 0.5) <= 0.5


# --- the mean over everyone's rows ---


class Member:
    """One who takes part in a mean."""

    def mean(self, gradient: np.ndarray, rows: int, *, reduce: Reduce) -> np.ndarray:
        return mean_over_rows(gradient, rows, reduce)


def means(gradients: Sequence[np.ndarray], rows: Sequence[int]) -> list[np.ndarray]:
    """What each member gets."""
    engine = LocalEngine()
    group = engine.group([engine.spawn(Member) for _ in rows])
    found: list[np.ndarray] = engine.get(group.call("mean", list(zip(gradients, rows, strict=True))))
    engine.close()
    return found


def test_members_count_by_their_rows() -> None:
    """One row of gradient 4 and three of gradient 8: (4 + 24) / 4 = 7, where the plain mean of the two would be 6."""
    for found in means([f32(4, 0), f32(8, -4)], [1, 3]):
        assert found.tolist() == [7, -3] and found.dtype == np.float32
    for found in means([f32(4, 0), f32(8, -4)], [2, 2]):
        assert found.tolist() == [6, -2]


def test_it_is_the_gradient_over_all_rows_together() -> None:
    """A linear model's squared error: the mean over rows of each part, and over all of them at once."""
    rng = np.random.default_rng(2)
    x, y, w = rng.normal(size=(11, 3)), rng.normal(size=11), rng.normal(size=3)
    by_row = 2 * (x @ w - y)[:, None] * x
    cuts = [2, 9]
    parts = [part.mean(0).astype(np.float32) for part in np.split(by_row, cuts)]
    rows = [2, 7, 2]
    found = means(parts, rows)
    for one in found:
        np.testing.assert_allclose(one, by_row.mean(0), atol=1e-6)
        assert np.array_equal(one, found[0])
    assert np.abs(np.mean(parts, 0) - by_row.mean(0)).max() > 0.1, "the plain mean would be another"


def test_a_member_without_rows_takes_part_and_adds_nothing() -> None:
    for found in means([f32(4, 2), f32(0, 0)], [3, 0]):
        assert found.tolist() == [4, 2]
    for found in means([f32(0, 0), f32(0, 0)], [0, 0]):
        assert found.tolist() == [0, 0]
