"""The table of noise: the same for everyone, and no perturbation reaches beyond its end."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from podium.core.noise import Noises, offsets, table


def test_the_table_is_normal_and_the_seeds() -> None:
    noise = table(3, 200_000)
    assert noise.dtype == np.float32 and noise.shape == (200_000,)
    assert abs(noise.mean()) < 0.01 and abs(noise.std() - 1) < 0.01
    assert np.array_equal(noise, table(3, 200_000)) and not np.array_equal(noise, table(4, 200_000))


@given(st.integers(1, 300), st.integers(0, 300), st.integers(0, 1000))
def test_offsets_stay_within_the_table(length: int, beyond: int, update: int) -> None:
    """Also where the table is no longer than a perturbation: then there is one."""
    found = offsets(0, update, 50, length + beyond, length)
    assert found.min() >= 0 and found.max() + length <= length + beyond


def test_offsets_reach_both_ends() -> None:
    found = offsets(0, 0, 500, 12, 10)
    assert set(found) == {0, 1, 2}


def test_offsets_are_those_of_their_update() -> None:
    assert np.array_equal(offsets(1, 7, 20, 10_000, 10), offsets(1, 7, 20, 10_000, 10))
    assert not np.array_equal(offsets(1, 7, 20, 10_000, 10), offsets(1, 8, 20, 10_000, 10))
    assert not np.array_equal(offsets(1, 7, 20, 10_000, 10), offsets(2, 7, 20, 10_000, 10))


def test_a_perturbation_is_a_piece_and_a_sum_is_of_pieces() -> None:
    """Pieces of 2 from 0 and from 2 of (1, 2, 3, 4): half of the first less the second is (-2.5, -3)."""
    noises = Noises(np.arange(1, 5, dtype=np.float32), np.array([0, 2]), 2)
    assert [noise.tolist() for noise in noises] == [[1, 2], [3, 4]] and len(noises) == 2
    assert noises.sum(np.array([0.5, -1.0])).tolist() == [-2.5, -3.0]
    with pytest.raises(IndexError):
        noises[2]
