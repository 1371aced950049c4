"""Batches: joining and cutting undo each other, steps are counted from data, and what stands at the ends stays right."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from podium.core.batch import Batch, Finals, concat, empty_aligned, split_rows
from podium.core.spaces import under

few = settings(max_examples=60, deadline=None)


def make(length: int, width: int, seed: int, finals: bool = True) -> Batch:
    """A batch in which every number tells its place: `obs/a` is 1000 * env + t, and the state before it ten times that."""
    rng = np.random.default_rng(seed)
    place = np.arange(length + 1)[:, None] + 1000 * np.arange(width) + 100_000 * seed
    t, n = np.nonzero(rng.random((length, width)) < 0.3)
    return Batch(
        cols={
            "obs/a": place[:-1],
            "obs/b": np.repeat(place[:-1, :, None], 2, axis=2),
            "state/h": 10 * place[:-1],
            "valid": rng.random((length, width)) < 0.8,
        },
        first={"state/h": 10 * place[0]},
        last={"obs/a": place[-1], "obs/b": np.repeat(place[-1][:, None], 2, axis=1)},
        finals=Finals(t, n, {"obs/a": -place[t, n]}) if finals else None,
    )


def same(one: Batch, other: Batch) -> None:
    for mine, theirs in ((one.cols, other.cols), (one.first, other.first), (one.last, other.last)):
        assert mine.keys() == theirs.keys()
        for key, array in mine.items():
            np.testing.assert_array_equal(array, theirs[key])
    assert in_order(one) == in_order(other)


def in_order(batch: Batch) -> list[tuple[int, int, int]] | None:
    """The finals by place, since which comes first says nothing."""
    f = batch.finals
    return None if f is None else sorted(zip(f.t.tolist(), f.n.tolist(), f.cols["obs/a"].tolist(), strict=True))


lengths, widths, seeds = st.integers(1, 7), st.integers(1, 4), st.integers(0, 99)


@few
@given(lengths, st.lists(widths, min_size=1, max_size=4), seeds, st.booleans())
def test_cutting_envs_undoes_joining(length: int, counts: list[int], seed: int, finals: bool) -> None:
    parts = [make(length, width, seed + i, finals) for i, width in enumerate(counts)]
    whole = concat(parts)
    assert whole.width == sum(counts) and whole.steps == sum(part.steps for part in parts)
    at = 0
    for part in parts:
        same(whole.slice(envs=slice(at, at + part.width)), part)
        at += part.width


@few
@given(lengths, widths, seeds, st.data())
def test_a_window_keeps_its_ends_right(length: int, width: int, seed: int, data: st.DataObject) -> None:
    whole = make(length, width, seed)
    start = data.draw(st.integers(0, length - 1))
    stop = data.draw(st.integers(start + 1, length))
    window = whole.slice(slice(start, stop))
    assert window.length == stop - start and window.width == width
    assert window.steps == int(whole["valid"][start:stop].sum())
    place = 1000 * np.arange(width) + 100_000 * seed
    np.testing.assert_array_equal(window.first["state/h"], 10 * (start + place))
    np.testing.assert_array_equal(window.last["obs/a"], stop + place)
    np.testing.assert_array_equal(window.last["obs/b"][:, 1], stop + place)
    assert window.finals is not None and whole.finals is not None
    np.testing.assert_array_equal(window.finals.cols["obs/a"], -(window.finals.t + start + place[window.finals.n]))
    assert len(window.finals.t) == np.count_nonzero((whole.finals.t >= start) & (whole.finals.t < stop))


@few
@given(lengths, st.integers(1, 4), st.integers(1, 3), seeds)
def test_every_so_manieth_env_is_taken_with_its_ends(length: int, every: int, each: int, seed: int) -> None:
    whole = make(length, every * each, seed)
    for first in range(every):
        taken = whole.slice(envs=slice(first, None, every))
        same(taken, concat([whole.slice(envs=slice(env, env + 1)) for env in range(first, whole.width, every)]))


def test_an_end_that_no_column_tells_is_left_out() -> None:
    batch = Batch({"obs": np.zeros((4, 2))}, first={"state/c": np.zeros(2)}, last={"value": np.zeros(2)})
    assert batch.slice(slice(0, 2)).first.keys() == {"state/c"} and batch.slice(slice(0, 2)).last == {}
    assert batch.slice(slice(2, 4)).first == {} and batch.slice(slice(2, 4)).last.keys() == {"value"}


@few
@given(st.integers(1, 4), st.integers(1, 4), widths, seeds)
def test_sequences_stand_side_by_side(size: int, count: int, width: int, seed: int) -> None:
    whole = make(size * count, width, seed)
    cut = whole.sequences(size)
    assert (cut.length, cut.width, cut.steps) == (size, count * width, whole.steps)
    for window in range(count):
        same(
            cut.slice(envs=slice(window * width, (window + 1) * width)),
            whole.slice(slice(window * size, (window + 1) * size)),
        )
    assert cut.finals is not None and whole.finals is not None and len(cut.finals.t) == len(whole.finals.t)
    # each final observation still belongs to the row whose number it carries
    np.testing.assert_array_equal(cut.finals.cols["obs/a"], -cut["obs/a"][cut.finals.t, cut.finals.n])


@few
@given(lengths, widths, seeds, st.integers(1, 40))
def test_minibatches_are_a_partition_of_the_valid_rows(length: int, width: int, seed: int, size: int) -> None:
    batch = make(length, width, seed)
    parts = list(batch.minibatches(size, np.random.default_rng(seed)))
    seen = np.concatenate([part["obs/a"] for part in parts]) if parts else np.array([])
    np.testing.assert_array_equal(np.sort(seen), np.sort(batch["obs/a"][batch["valid"]]))
    sizes = [len(part["obs/a"]) for part in parts]
    assert not sizes or (min(sizes) > 0 and max(sizes) - min(sizes) <= 1)
    for part in parts:
        assert part["valid"].all()
        np.testing.assert_array_equal(part["obs/b"], np.repeat(part["obs/a"][:, None], 2, axis=1))
        np.testing.assert_array_equal(part["state/h"], 10 * part["obs/a"])


def test_minibatches_follow_the_generator_alone() -> None:
    batch = make(7, 4, 0)
    one, two, other = ([p["obs/a"].tolist() for p in batch.minibatches(5, np.random.default_rng(s))] for s in (1, 1, 2))
    assert one == two != other


def test_split_rows_leaves_no_small_remainder() -> None:
    assert [len(part) for part in split_rows(np.arange(10), 4, np.random.default_rng(0))] == [5, 5]
    assert [len(part) for part in split_rows(np.arange(11), 4, np.random.default_rng(0))] == [4, 4, 3]
    assert [len(part) for part in split_rows(np.arange(5), 64, np.random.default_rng(0))] == [5]
    assert split_rows(np.arange(0), 4, np.random.default_rng(0)) == []


@pytest.mark.parametrize("rows", [0, 1, 2, 5, 9, 12])
def test_those_who_learn_together_split_their_rows_into_equally_many_parts(rows: int) -> None:
    """Twelve rows in parts of about four are three parts, also where only some of the twelve are there."""
    parts = split_rows(np.arange(100, 100 + rows), 4, np.random.default_rng(0), of=12)
    assert len(parts) == 3
    assert sorted(np.concatenate(parts).tolist()) == list(range(100, 100 + rows))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    alone = split_rows(np.arange(100, 100 + rows), 4, np.random.default_rng(0))
    assert len(alone) < 3 or rows == 12


def test_there_is_one_part_where_all_rows_would_be_one() -> None:
    for rows in (0, 3, 5):
        (part,) = split_rows(np.arange(rows), 64, np.random.default_rng(0), of=5)
        assert part.tolist() == list(range(rows))


def test_steps_come_from_valid_and_are_all_without_it() -> None:
    assert Batch({"reward": np.zeros((3, 2))}).steps == 6
    batch = Batch({"reward": np.zeros((3, 2)), "valid": np.array([[1, 1], [0, 1], [1, 0]], bool)})
    assert batch.steps == 4
    np.testing.assert_array_equal(batch.rows(), [0, 1, 3, 4])


def test_groups_and_new_columns() -> None:
    batch = make(3, 2, 0).with_columns(obsolete=np.zeros((3, 2)))
    assert batch.group("obs").keys() == {"obs/a", "obs/b"}
    assert under({"obs": 1, "obs2": 2, "obs/a": 3}, "obs") == {"obs": 1, "obs/a": 3}
    assert "obsolete" not in make(3, 2, 0).cols
    with pytest.raises(KeyError, match="no column 'reward'; there are obs/a, obs/b"):
        batch["reward"]


def test_bytes_count_columns_ends_and_finals() -> None:
    finals = Finals(np.array([0]), np.array([1]), {"obs": np.zeros((1, 5), np.float32)})
    batch = Batch({"obs": np.zeros((2, 3, 5), np.float32)}, last={"obs": np.zeros((3, 5), np.float32)}, finals=finals)
    assert batch.nbytes == 4 * (30 + 15 + 5) + 6  # and one byte for each `valid`


@pytest.mark.parametrize(
    ("cols", "first", "says"),
    [
        ({}, {}, "at least one column"),
        ({"reward": np.zeros(3)}, {}, r"'reward' has shape \(3,\), expected \[T, N"),
        (
            {"reward": np.zeros((3, 2)), "obs": np.zeros((2, 2, 5))},
            {},
            r"'obs' has shape \(2, 2, 5\), expected \(3, 2\)",
        ),
        (
            {"reward": np.zeros((3, 2))},
            {"state/h": np.zeros((3, 4))},
            r"first 'state/h' has shape \(3, 4\), expected \[2",
        ),
    ],
)
def test_a_wrong_shape_is_named(cols: dict[str, np.ndarray], first: dict[str, np.ndarray], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Batch(cols, first)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="4 does not divide the fragment's 6"):
        make(6, 2, 0).sequences(4)
    with pytest.raises(ValueError, match="3 and 4 steps"):
        concat([make(3, 2, 0), make(4, 2, 0)])
    with pytest.raises(ValueError, match="'logp' is in one batch and not in another"):
        concat([make(3, 2, 0), make(3, 2, 1).with_columns(logp=np.zeros((3, 2)))])
    with pytest.raises(ValueError, match="final observations are in one batch"):
        concat([make(3, 2, 0), make(3, 2, 1, finals=False)])
    for times in (slice(0, 6, 2), slice(6, 6), slice(4, 2)):
        with pytest.raises(ValueError, match="expected a window of neighbours"):
            make(6, 2, 0).slice(times)


@pytest.mark.parametrize("dtype", [np.float32, np.uint8, bool])
def test_aligned_memory(dtype: type) -> None:
    assert empty_aligned((0, 4), dtype).shape == (0, 4)
    for shape in ((3, 5), (1,), (7, 2, 3)):
        array = empty_aligned(shape, dtype)
        array[...] = 1
        assert array.shape == shape and array.dtype == dtype and array.ctypes.data % 64 == 0
