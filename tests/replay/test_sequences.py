"""Sequences: windows of a stream with their stored state, their ends, and what of them is learned from."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from podium.core.spaces import Frames
from podium.replay.sequences import SequenceReplay
from tests.replay.streams import World
from tests.replay.test_uniform import copied, fragment


def test_windows_by_hand() -> None:
    """Of 9 rows in windows of 4 that begin at every second row: 0, 2 and 4 (6 would need a tenth). Row 3 is cut."""
    batch = fragment([float(t) for t in range(9)], "---c-----", 9, {3: 70})
    batch = batch.with_columns(**{"state/h": np.arange(9, dtype=np.float32)[:, None, None] * 10})
    batch.last["state/h"] = np.full((1, 1), 90, np.float32)
    assert batch.finals is not None
    batch.finals.cols["state/h"] = np.full((1, 1), 75, np.float32)
    replay = SequenceReplay(100, length=3, burn_in=1, every=2)
    replay.insert([batch])
    drawn = replay.sample(60)
    assert replay.size == 3 and set(drawn.ids.tolist()) == {0, 2, 4}
    i = drawn.ids.tolist().index(2)
    got = drawn.batch
    assert got["obs"][:, i, 0].tolist() == [2, 3, 4, 5] and got["reward"][:, i].tolist() == [2, 3, 4, 5]
    assert got.first["state/h"][i].tolist() == [20] and got.last["obs"][i].tolist() == [6]
    assert got.last["state/h"][i].tolist() == [60]
    assert got["truncated"][:, i].tolist() == [False, True, False, False]
    assert got["start"][:, i].tolist() == [False, False, True, False]
    assert got["learned"][:, i].tolist() == [False, True, True, True]
    assert got.finals is not None
    mine = got.finals.n == i
    assert got.finals.t[mine].tolist() == [1] and got.finals.cols["obs"][mine].tolist() == [[70]]
    assert got.finals.cols["state/h"][mine].tolist() == [[75]]
    i = drawn.ids.tolist().index(4)
    assert got.last["obs"][i].tolist() == [8] and not (got.finals.n == i).any()


def test_a_sequence_counts_by_its_greatest_error_and_its_mean() -> None:
    replay = SequenceReplay(100, length=2, alpha=1.0, eta=0.9)
    replay.insert([fragment([0.0] * 5, "-" * 5, 0)])
    replay.feedback(np.arange(4), np.array([[1, 0, 0, 2], [-3, 0, 1, 2]], np.float32))
    counts = Counter(replay.sample(10_000).ids.tolist())
    priorities = np.array([0.9 * 3 + 0.1 * 2, 0, 0.9 + 0.05, 2])
    assert [counts[row] for row in range(4)] == pytest.approx(priorities / priorities.sum() * 10_000, abs=3)


def test_rows_that_are_not_learned_from_have_no_part_in_a_sequences_error() -> None:
    """Of the three windows, each behind a row of burn-in, the second and third have a row that is not valid: what stands
    there counts for nothing, not as a 0 in the mean either."""
    valid = np.ones((6, 1), bool)
    valid[3] = False
    replay = SequenceReplay(100, length=2, burn_in=1, alpha=1.0, eta=0.5)
    replay.insert([fragment([0.0] * 6, "-" * 6, 0).with_columns(valid=valid)])
    assert set(replay.sample(100).ids.tolist()) == {0, 1, 2}
    replay.feedback(np.arange(3), np.array([[1, 2, 50], [3, 50, 4]], np.float32))
    counts = Counter(replay.sample(10_000).ids.tolist())
    priorities = np.array([0.5 * 3 + 0.5 * 2, 2, 4])
    wrong = np.array([0.5 * 3 + 0.5 * 2, 0.5 * 2 + 0.5 * 1, 0.5 * 4 + 0.5 * 2])
    assert [counts[row] for row in range(3)] == pytest.approx(priorities / priorities.sum() * 10_000, abs=3)
    assert np.abs(wrong / wrong.sum() - priorities / priorities.sum()).max() > 0.01


@given(
    seed=st.integers(0, 10_000),
    stack=st.sampled_from([1, 3]),
    autoreset=st.sampled_from(["same", "next"]),
    steps=st.lists(st.integers(1, 7), min_size=2, max_size=8),
    every=st.integers(1, 3),
)
def test_windows_equal_the_plain_list(seed: int, stack: int, autoreset: str, steps: list[int], every: int) -> None:
    world = World(2, np.random.default_rng(seed), stack, autoreset)
    frames = {"obs": Frames(stack, 0)} if stack > 1 else {}
    replay = SequenceReplay(24, length=3, burn_in=1, every=every, frames=frames)
    for count in steps:
        replay.insert([world.fragment(count)])
    if not replay.size:
        return
    drawn = replay.sample(32)
    got = drawn.batch
    for i, row in enumerate(drawn.ids.tolist()):
        at, stream = row // 2, row % 2
        rows = world.rows[stream][at : at + 4]
        assert at % every == 0 and len(rows) == 4
        assert got["obs"][:, i].tolist() == [one.obs for one in rows]
        assert got["reward"][:, i].tolist() == [one.reward for one in rows]
        assert got["valid"][:, i].tolist() == [one.valid for one in rows]
        assert got["start"][:, i].tolist() == [one.start for one in rows]
        assert got["terminated"][:, i].tolist() == [one.terminated for one in rows]
        assert (got["terminated"] | got["truncated"])[:, i].tolist() == [one.ended for one in rows]
        assert got.first["state/h"][i].tolist() == [rows[0].state]
        if rows[-1].valid and (not rows[-1].ended or autoreset == "next"):
            assert got.last["obs"][i].tolist() == rows[-1].next_obs
        assert got.finals is not None
        ends = {
            t: obs
            for t, n, obs in zip(got.finals.t, got.finals.n, got.finals.cols["obs"].tolist(), strict=True)
            if n == i
        }
        wanted = {t: one.next_obs for t, one in enumerate(rows) if one.ended and not one.terminated}
        assert ends == (wanted if autoreset == "same" else {})


def test_its_state_goes_on_bit_for_bit() -> None:
    world = World(3, np.random.default_rng(3), 3)
    how: dict[str, Any] = {"length": 4, "burn_in": 2, "every": 2, "alpha": 0.5, "frames": {"obs": Frames(3, 0)}}
    replay, other = SequenceReplay(90, seed=1, **how), SequenceReplay(90, seed=2, **how)
    for _ in range(9):
        replay.insert([world.fragment(5)])
        if replay.size:
            replay.feedback(replay.sample(8).ids, np.arange(32.0).reshape(4, 8))
    other.set_state(*copied(list(replay.get_state())))
    for _ in range(3):
        more = world.fragment(5)
        for one in (replay, other):
            one.insert([more])
        mine, theirs = (one.sample(8, 0.9, 0.5) for one in (replay, other))
        np.testing.assert_array_equal(mine.ids, theirs.ids)
        for name, column in mine.batch.cols.items():
            np.testing.assert_array_equal(column, theirs.batch[name])
