"""Spaces: samples are inside, values go to columns and back, and JSON tells all of a space."""

from __future__ import annotations

import json
import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from podium.core.spaces import (
    Box,
    Dict,
    Discrete,
    Leaf,
    MultiBinary,
    MultiDiscrete,
    Space,
    Tuple,
    flatten,
    from_json,
    leaves,
    unflatten,
)

many = settings(max_examples=80, deadline=None)


@st.composite
def boxes(draw: st.DrawFn) -> Box:
    dtype: Any = np.dtype(
        draw(st.sampled_from(["uint8", "int32", "int64", "uint64", "float16", "float32", "float64", "bool"]))
    )
    shape = tuple(draw(st.lists(st.integers(0, 3), max_size=3)))
    if dtype.kind == "f":
        bound = st.floats(width=dtype.itemsize * 8, allow_nan=False)
    else:
        top = 1 if dtype.kind == "b" else np.iinfo(dtype).max
        bound = st.integers(0 if dtype.kind in "bu" else int(np.iinfo(dtype).min), int(top))
    count = int(np.prod(shape))
    pairs = [sorted(draw(st.tuples(bound, bound))) for _ in range(count)]
    low = np.array([pair[0] for pair in pairs], dtype).reshape(shape)
    high = np.array([pair[1] for pair in pairs], dtype).reshape(shape)
    # a box from inf to inf holds no number that could be drawn
    low, high = np.where(low == np.inf, 0, low).astype(dtype), np.where(high == -np.inf, 0, high).astype(dtype)
    return Box.of(low, np.maximum(low, high), shape, dtype)


leaf_spaces = st.one_of(
    boxes(),
    st.builds(Discrete, st.integers(1, 9)),
    st.builds(MultiDiscrete, st.lists(st.integers(1, 5), min_size=1, max_size=4).map(tuple)),
    st.builds(MultiBinary, st.integers(1, 5)),
)
names = st.text(st.characters(exclude_characters="/", exclude_categories=["Cs"]), min_size=1, max_size=4)
any_space = st.recursive(
    leaf_spaces,
    lambda inner: st.one_of(
        st.dictionaries(names, inner, min_size=1, max_size=3).map(Dict),
        st.lists(inner, min_size=1, max_size=3).map(lambda spaces: Tuple(tuple(spaces))),
    ),
    max_leaves=5,
)


@many
@given(leaf_spaces, st.integers(0, 5), st.integers(0, 99))
def test_samples_are_inside(space: Leaf, n: int, seed: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rows = space.sample(np.random.default_rng(seed), n)
    assert rows.shape == (n, *space.shape) and rows.dtype == space.dtype
    assert space.outside(rows).shape == (n,) and not space.outside(rows).any()
    np.testing.assert_array_equal(rows, space.sample(np.random.default_rng(seed), n))


@many
@given(any_space, st.integers(0, 99))
def test_columns_and_back(space: Space, seed: int) -> None:
    rng = np.random.default_rng(seed)
    columns = {path: leaf.sample(rng, 3) for path, leaf in leaves(space, "obs").items()}
    again = flatten(space, unflatten(space, columns, "obs"), "obs")
    assert list(again) == list(columns)
    assert all(again[path] is columns[path] for path in columns)


@many
@given(any_space)
def test_json_and_back(space: Space) -> None:
    again = from_json(json.loads(json.dumps(space.to_json())))
    assert again == space and str(again) == str(space)
    assert [(path, leaf.dtype, leaf.shape) for path, leaf in leaves(again, "o").items()] == [
        (path, leaf.dtype, leaf.shape) for path, leaf in leaves(space, "o").items()
    ]


def test_paths_of_a_nested_space() -> None:
    camera, speed = Box.of(0, 255, (2, 2), np.uint8), Discrete(3)
    space = Dict({"camera": camera, "more": Tuple((speed, Dict({"x": MultiBinary(2)})))})
    assert leaves(space, "obs") == {"obs/camera": camera, "obs/more/0": speed, "obs/more/1/x": MultiBinary(2)}
    assert leaves(speed, "obs") == {"obs": speed}
    value = {"camera": np.zeros((2, 2)), "more": (1, {"x": [0, 1]})}
    assert flatten(space, value, "obs")["obs/more/1/x"].tolist() == [0, 1]


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"a": 1}, "obs/b"),
        ({"a": 1, "b": (1,)}, "obs/b/1"),
        ({"a": 1, "b": 5}, "obs/b/0"),
        (None, "obs/a"),
    ],
)
def test_a_missing_value_is_named_by_its_path(value: object, path: str) -> None:
    with pytest.raises(KeyError) as caught:
        flatten(Dict({"a": Discrete(2), "b": Tuple((Discrete(2), Discrete(2)))}), value, "obs")
    assert caught.value.args == (path,)


@pytest.mark.parametrize(
    ("space", "rows", "outside"),
    [
        (Box.of(-1, 1, (2,)), [[0, 0], [0, 1.5], [-1, 1], [np.nan, 0], [-2, 0]], [0, 1, 0, 1, 1]),
        (Box.of(0, np.inf, ()), [0, np.inf, -1, np.nan], [0, 0, 1, 1]),
        (Box.of([0, 10], [1, 20], (2,)), [[1, 10], [10, 1]], [0, 1]),
        (Discrete(3), [0, 2, 3, -1], [0, 0, 1, 1]),
        (MultiDiscrete((2, 4)), [[1, 3], [3, 1], [0, -1]], [0, 1, 1]),
        (MultiBinary(2), [[0, 1], [2, 0], [0, -1]], [0, 1, 1]),
    ],
)
def test_which_rows_are_outside(space: Leaf, rows: list[object], outside: list[int]) -> None:
    assert space.outside(np.array(rows)).tolist() == [bool(flag) for flag in outside]


def test_unbounded_boxes_sample_near_their_bound() -> None:
    box = Box.of([-np.inf, 5, -np.inf], [np.inf, np.inf, -5], (3,))
    rows = box.sample(np.random.default_rng(0), 1000)
    assert np.isfinite(rows).all() and (rows.std(axis=0) > 0.3).all()
    assert not box.bounded and Box.of(0, 1, (3,)).bounded


def test_whole_number_bounds_are_both_drawn() -> None:
    rows = Box.of(3, 5, (), np.uint8).sample(np.random.default_rng(0), 100)
    assert set(rows.tolist()) == {3, 4, 5}


def test_boxes_compare_by_what_they_hold() -> None:
    assert Box.of(0, 1, (2,)) == Box.of([0, 0], [1, 1], (2,))
    assert Box.of(0, 1, (2,)) != Box.of(0, 1, (3,))
    assert Box.of(0, 1, (2,)) != Box.of(0, 1, (2,), np.float64)
    assert Box.of(0, 1, (2,)) != Box.of(0, [1, 2], (2,)) and Box.of(0, 1, (2,)) != Discrete(2)


def test_spaces_are_told_in_words() -> None:
    space = Dict({"a": Box.of(-1, 1, (2,)), "b": Tuple((Discrete(2), MultiDiscrete((2, 3)))), "c": MultiBinary(4)})
    told = "Dict(a: Box[2] float32 (-1 to 1), b: Tuple(Discrete(2), MultiDiscrete([2, 3])), c: MultiBinary(4))"
    assert str(space) == told
    assert str(Box.of([0, 1], 2, (2,))) == "Box[2] float32 (bounds per element)"
