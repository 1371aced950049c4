"""Epsilon-greedy: shares, legal choices, an epsilon for each env."""

from __future__ import annotations

import numpy as np
import pytest

from podium.policies.exploration import epsilon_greedy, spread


def test_an_epsilon_for_each_env_by_hand() -> None:
    """0.4 to the powers 1, 4.5 and 8."""
    assert spread(0.4, 3, 7.0).tolist() == pytest.approx([0.4, 0.4**4.5, 0.4**8])
    assert spread(0.4, 3, 0.0).tolist() == [0.4] * 3 and spread(0.4, 1, 7.0).tolist() == [0.4]


def test_random_choices_where_the_draw_is_below_epsilon() -> None:
    greedy = np.array([3, 3, 3, 3])
    draws = np.array([[0.1, 0.3, 0.1, 0.1], [0.0, 0.0, 0.99, 0.5]])
    assert epsilon_greedy(greedy, np.full(4, 0.2), 4, draws).tolist() == [0, 3, 3, 2]


def test_random_choices_are_legal_and_evenly_spread() -> None:
    rng, n = np.random.default_rng(0), 30_000
    mask = np.tile([False, True, False, True, True], (n, 1))
    chosen = epsilon_greedy(np.ones(n, np.int64), np.full(n, 1.0), 5, rng.random((2, n)), mask)
    counts = np.bincount(chosen, minlength=5)
    assert counts[[0, 2]].tolist() == [0, 0] and np.abs(counts[[1, 3, 4]] - n / 3).max() < 300
    assert epsilon_greedy(np.ones(1, np.int64), np.ones(1), 5, np.array([[0.0], [np.nextafter(1, 0)]]), mask[:1]) == 4
