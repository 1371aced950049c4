"""The sum tree and the prioritized replay: probabilities and weights worked out by hand, frequencies, bad priorities."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from podium.core.errors import TrainingError
from podium.replay.prioritized import PrioritizedReplay
from podium.replay.tree import SumTree
from tests.replay.streams import World
from tests.replay.test_uniform import fragment


def test_numbers_fall_on_leaves_by_hand() -> None:
    """Leaves of 3, 0, 1, 2 and then 4 at the far end of three levels: the total is 10."""
    tree = SumTree(300)
    tree.set(np.array([0, 2, 3, 299]), np.array([3.0, 1.0, 2.0, 4.0]))
    assert tree.total == 10.0
    numbers = np.array([0.0, 2.9, 3.0, 3.9, 4.0, 5.9, 6.0, 9.9])
    assert tree.find(numbers).tolist() == [0, 0, 2, 2, 3, 3, 299, 299]
    tree.set(np.array([0, 299]), 0.0)
    assert tree.total == 3.0 and tree.find(np.array([0.0, 1.0, 2.99])).tolist() == [2, 3, 3]


def test_of_a_leaf_named_twice_the_last_weight_counts() -> None:
    tree = SumTree(20)
    tree.set(np.array([4, 17, 4]), np.array([5.0, 1.0, 2.0]))
    assert tree.get(np.array([4, 17])).tolist() == [2.0, 1.0] and tree.total == 3.0


@given(
    weights=st.lists(st.sampled_from([0.0, 1e-300, 1e-6, 0.1, 1 / 3, 7.0, 1e12]), min_size=1, max_size=600),
    seed=st.integers(0, 1000),
)
def test_a_tree_finds_what_a_running_sum_finds(weights: list[float], seed: int) -> None:
    rng = np.random.default_rng(seed)
    tree, array = SumTree(len(weights)), np.array(weights)
    tree.set(np.arange(len(weights)), rng.random(len(weights)))
    for part in np.array_split(rng.permutation(len(weights)), 3):
        tree.set(part, array[part])
    assert tree.total == pytest.approx(array.sum())
    if not array.any():
        return
    ends = np.array([0.0, np.nextafter(tree.total, 0), tree.total])
    assert (array[tree.find(ends)] > 0).all(), "also where rounding leads to the very end"
    numbers = rng.random(200) * tree.total
    sums = array.cumsum()
    found = tree.find(numbers)
    assert (array[found] > 0).all()
    slack = 1e-9 * tree.total
    assert (sums[found] >= numbers - slack).all() and (sums[found] - array[found] <= numbers + slack).all()


def filled(steps: int = 4, **how: float) -> PrioritizedReplay:
    replay = PrioritizedReplay(100, seed=1, **how)  # type: ignore[arg-type]
    replay.insert([fragment([0.0] * steps, "-" * steps, 0)])
    return replay


def test_probabilities_and_weights_by_hand() -> None:
    """Errors 1, 4, 9 and 16 to the power 1/2 are 1, 2, 3 and 4 of 10. With beta 1/2 a weight is (4 P) ** -1/2: 1.581,
    1.118, 0.913 and 0.791, over the first of them 1, 0.707, 0.577 and 0.5."""
    replay = filled(alpha=0.5)
    replay.feedback(np.arange(4), np.array([1.0, -4.0, 9.0, -16.0]))
    drawn = replay.sample(20_000, 0.9, beta=0.5)
    counts = Counter(drawn.ids.tolist())
    assert [counts[row] for row in range(4)] == pytest.approx([2000, 4000, 6000, 8000], abs=2)
    weights = dict(zip(drawn.ids.tolist(), drawn.batch["weight"][0].tolist(), strict=True))
    assert [weights[row] for row in range(4)] == pytest.approx([1, 0.7071, 0.5774, 0.5], rel=1e-3)


def test_new_rows_have_the_greatest_priority_so_far() -> None:
    replay = filled()
    replay.feedback(np.arange(4), np.array([7.0, 0.0, 0.0, 0.0]))
    replay.insert([fragment([0.0] * 2, "--", 0)])
    counts = Counter(replay.sample(3000, 0.9).ids.tolist())
    assert [counts[row] for row in (0, 4, 5)] == pytest.approx([1000, 1000, 1000], rel=0.01)


def test_a_row_that_was_right_once_may_still_be_drawn() -> None:
    replay = filled(alpha=1.0)
    replay.feedback(np.arange(4), np.zeros(4))
    assert set(replay.sample(100, 0.9, 1.0).ids.tolist()) == {0, 1, 2, 3}


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_errors_that_are_not_finite_end_the_training(bad: float) -> None:
    replay = filled()
    with pytest.raises(TrainingError, match=f"a priority is {bad}, expected a finite error; try a lower --lr"):
        replay.feedback(np.arange(2), np.array([1.0, bad]))
    assert set(replay.sample(100, 0.9).ids.tolist()) == {0, 1, 2, 3}, "and nothing has changed"


def test_rows_that_are_gone_by_now_are_passed_over() -> None:
    world = World(2, np.random.default_rng(0), end_chance=0.0)
    replay = PrioritizedReplay(20, seed=1, alpha=1.0)
    replay.insert([world.fragment(6)])
    old = replay.sample(8, 0.9).ids
    replay.insert([world.fragment(9)])
    replay.insert([world.fragment(9)])
    before = replay.get_state()[0]["priorities"].copy()
    replay.feedback(old, np.full(8, 1000.0))
    np.testing.assert_array_equal(replay.get_state()[0]["priorities"], before)


def test_probability_follows_priority_as_rows_come_and_go() -> None:
    """Chi-squared of many draws against the priorities that the tree is said to hold."""
    world, rng = World(3, np.random.default_rng(5), 3), np.random.default_rng(0)
    replay = PrioritizedReplay(60, seed=1, n_step=2)
    for _ in range(9):
        replay.insert([world.fragment(8)])
        drawn = replay.sample(32, 0.9)
        replay.feedback(drawn.ids, rng.exponential(5.0, 32))
    first, end = replay.span(replay.rows.head)
    priorities = replay.get_state()[0]["priorities"]
    assert np.count_nonzero(priorities) == replay.size
    draws = 40_000
    expected = priorities / priorities.sum() * draws
    counts = np.zeros(len(expected))
    rows, times = np.unique(
        np.concatenate([replay.sample(400, 0.9).ids for _ in range(draws // 400)]), return_counts=True
    )
    counts[rows - first * 3] = times
    assert end * 3 > rows.max() and not counts[expected == 0].any()
    some = expected > 0
    assert ((counts[some] - expected[some]) ** 2 / expected[some]).sum() < 1.3 * np.count_nonzero(some)
