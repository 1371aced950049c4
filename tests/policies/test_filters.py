"""Running moments: however the rows are cut, the result is the mean and variance over all of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from podium.core.sgd import Reduce
from podium.engine.local import LocalEngine
from podium.policies.filters import RunningMoments

few = settings(max_examples=60)


def moments(*parts: np.ndarray) -> RunningMoments:
    filled = RunningMoments((3,))
    for part in parts:
        filled.update(part)
    return filled


def rows(seed: int, n: int, dtype: str = "float64") -> np.ndarray:
    drawn = np.random.default_rng(seed).normal([0, 100, -5], [1, 3, 1e-2], (n, 3))
    return drawn.astype(dtype)


def agrees(filled: RunningMoments, everything: np.ndarray) -> None:
    assert filled.count == len(everything)
    np.testing.assert_allclose(filled.mean, everything.mean(0), rtol=1e-9)
    np.testing.assert_allclose(filled.squares / filled.count, everything.var(0), rtol=1e-7)


@few
@given(st.integers(0, 99), st.lists(st.integers(0, 40), min_size=1, max_size=6).filter(sum))
def test_any_split_gives_the_moments_of_all_rows(seed: int, sizes: list[int]) -> None:
    everything = rows(seed, sum(sizes))
    agrees(moments(*np.split(everything, np.cumsum(sizes)[:-1])), everything)


@few
@given(st.integers(0, 99), st.lists(st.integers(0, 30), min_size=1, max_size=4).filter(sum), st.permutations(range(4)))
def test_merging_in_any_order_gives_the_moments_of_all_rows(seed: int, sizes: list[int], order: list[int]) -> None:
    everything = rows(seed, sum(sizes))
    parts = [moments(part) for part in np.split(everything, np.cumsum(sizes)[:-1])]
    merged = RunningMoments((3,))
    for i in order:
        if i < len(parts):
            merged.merge(parts[i].count, parts[i].mean, parts[i].squares)
    agrees(merged, everything)


class Member(RunningMoments):
    """One of those whose rows are taken together."""

    def take(self, rows: np.ndarray, *, reduce: Reduce) -> None:
        self.update(rows, reduce)


def together(*rounds: list[np.ndarray]) -> list[dict[str, np.ndarray]]:
    """The moments that each member has after some rounds, in each of which they bring an array each."""
    engine = LocalEngine()
    handles = [engine.spawn(Member, (3,)) for _ in rounds[0]]
    for arrays in rounds:
        engine.get(engine.group(handles).call("take", [(array,) for array in arrays]))
    states: list[dict[str, np.ndarray]] = engine.get([handle.call("get_state") for handle in handles])
    engine.close()
    return states


@few
@given(st.integers(0, 99), st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=3))
def test_members_that_reduce_have_the_moments_of_all_their_rows(seed: int, sizes: list[tuple[int, int]]) -> None:
    """Round after round, also where one of them, or all, have no row to bring."""
    rounds = [[rows(seed + i, one), rows(seed - i - 1 & 0xFFFF, other) + 3.0] for i, (one, other) in enumerate(sizes)]
    everything = np.concatenate([array for arrays in rounds for array in arrays])
    first, second = together(*rounds)
    for name in first:
        np.testing.assert_array_equal(first[name], second[name])
    if len(everything):
        merged = RunningMoments((3,))
        merged.set_state(first)
        agrees(merged, everything)
    else:
        assert first["count"] == 0


def test_members_means_and_variances_averaged_would_be_wrong() -> None:
    """Ten rows here and thirty there, seven apart: the mean lies nearer to the thirty, and the spread has the seven."""
    here, there = rows(0, 10), rows(1, 30) + 7.0
    state = together([here, there])[0]
    assert np.abs(state["mean"] - (here.mean(0) + there.mean(0)) / 2).min() > 1.5
    assert (state["squares"] / state["count"] > (here.var(0) * 10 + there.var(0) * 30) / 40 + 5).all()


def test_averaging_the_parts_variances_would_be_wrong() -> None:
    first, second = rows(0, 10), rows(1, 30) + 7.0
    merged = moments(first, second)
    averaged = (first.var(0) * 10 + second.var(0) * 30) / 40
    assert (merged.squares / merged.count > averaged + 5).all()


def test_float32_rows_far_from_zero_keep_their_variance() -> None:
    far = (np.random.default_rng(0).normal(0, 1, (10_000, 3)) + 1e5).astype(np.float32)
    np.testing.assert_allclose(moments(far).squares / len(far), far.astype(np.float64).var(0), rtol=1e-6)


def test_scale_is_one_over_the_deviation_and_one_at_first() -> None:
    assert moments().scale().tolist() == [1, 1, 1]
    assert moments(rows(0, 1)).scale().tolist() == [1, 1, 1]
    two = moments(np.array([[0.0, 1.0, 5.0], [4.0, 3.0, 5.0]]))
    assert two.scale().tolist() == pytest.approx([0.5, 1.0, 1e4], rel=1e-6)


def test_state_goes_on_alike_and_is_a_copy() -> None:
    original, other = moments(rows(0, 5)), moments()
    state = original.get_state()
    other.set_state(state)
    for filled in (original, other):
        filled.update(rows(1, 7))
    assert (original.count, other.count) == (12, 12)
    np.testing.assert_array_equal(original.mean, other.mean)
    np.testing.assert_array_equal(original.squares, other.squares)
    assert state["count"] == 5 and np.array_equal(state["mean"], moments(rows(0, 5)).mean)
