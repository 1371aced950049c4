"""Columns written into memory are read as they were; whatever else stands there is refused, and executes nothing."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from podium.serving.server import BadRequest
from podium.serving.wire import DTYPES, KEPT, Place, Wire

SHAPES = st.lists(st.integers(0, 4), max_size=3).map(tuple)
COLUMNS = st.dictionaries(st.text(max_size=8), st.tuples(st.sampled_from(sorted(DTYPES)), SHAPES), max_size=4)


def memory(nbytes: int = 1 << 14) -> memoryview:
    return memoryview(bytearray(b"\xa5" * nbytes))


@given(COLUMNS, st.text(max_size=6), st.integers(0, 2**32))
def test_what_is_written_is_read(layout: dict[str, tuple[str, tuple[int, ...]]], kind: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    columns = {name: rng.integers(0, 2, shape).astype(dtype) for name, (dtype, shape) in layout.items()}
    place, wire = memory(), Wire()
    for _ in range(2):  # the second time from what is remembered
        size = wire.write(columns, kind, place)
        read, asked = Wire().read(place[:size])
        assert asked == kind and list(read) == list(columns)
        for name, column in columns.items():
            assert read[name].dtype == column.dtype and read[name].shape == column.shape
            np.testing.assert_array_equal(read[name], column)


def test_a_place_is_written_and_read_again_and_again() -> None:
    memory_ = memory()
    ours, theirs = Place(memory_), Place(memory_)
    for number in range(3 * KEPT):
        shape = (1 + number % (KEPT + 5), 2)
        columns = {"obs": np.full(shape, number, np.float32), "mask": np.ones(shape[:1], bool)}
        for kind in ("act", "values"):
            read, asked = theirs.read(ours.write(columns, kind))
            assert asked == kind and all(np.array_equal(read[name], columns[name]) for name in columns)
            read.clear()  # what is kept is the place's own
    with pytest.raises(BadRequest, match="expected at most"):
        ours.write({"obs": np.zeros(1 << 14)}, "act")
    assert np.array_equal(theirs.read(ours.write(columns, "act"))[0]["obs"], columns["obs"])


def test_columns_that_are_not_contiguous_are_written_in_order() -> None:
    place, wire = memory(), Wire()
    column = np.arange(12, dtype=np.float32).reshape(3, 4).T[::2]
    read, _ = wire.read(place[: wire.write({"obs": column}, "act", place)])
    np.testing.assert_array_equal(read["obs"], column)


def test_arrays_begin_on_a_cache_line() -> None:
    place, wire = memory(), Wire()
    read, _ = wire.read(place[: wire.write({"a": np.zeros(3, np.int8), "b": np.zeros(1)}, "act", place)])
    base = np.frombuffer(place, np.uint8).ctypes.data
    assert [(column.ctypes.data - base) % 64 for column in read.values()] == [0, 0]


def test_what_does_not_fit_is_refused_before_anything_is_written() -> None:
    place = memory(256)
    before = bytes(place)
    with pytest.raises(BadRequest, match="expected at most 256"):
        Wire().write({"obs": np.zeros(1000)}, "act", place)
    assert bytes(place) == before


@pytest.mark.parametrize("dtype", [object, complex, "U3", "M8[s]"])
def test_other_kinds_of_arrays_are_refused(dtype: object) -> None:
    with pytest.raises(BadRequest, match="obs is .*, expected one of bool, int8"):
        Wire().write({"obs": np.zeros(2, dtype)}, "act", memory())


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x80\x04K\x01.",
        b"[1, 2, 3]",
        b'["act", [["obs", "object", [1]]]]',
        b'["act", [["obs", "float32", [-1]]]]',
        b'["act", [["obs", "float32", [1.5]]]]',
        b'["act", [["obs", "float32", [true]]]]',
        b'["act", [["obs", "float32", "11"]]]',
        b'["act", [["obs", "float32"]]]',
        b'["act", {"obs": 1}]',
        b"[7, []]",
        b"[" * 4000,
    ],
)
def test_a_header_that_says_nothing_is_refused(body: bytes) -> None:
    place = memory()
    place[: 4 + len(body)] = len(body).to_bytes(4, "little") + body
    with pytest.raises(BadRequest, match="a header that can't be read|bytes"):
        Wire().read(place)


def test_a_header_that_says_more_than_there_is_is_refused() -> None:
    place, wire = memory(), Wire()
    body = json.dumps(["act", [["obs", "float64", [10**9, 10**9]]]]).encode()
    place[: 4 + len(body)] = len(body).to_bytes(4, "little") + body
    with pytest.raises(BadRequest, match="the header says"):
        wire.read(place)
    size = wire.write({"obs": np.zeros(4)}, "act", place)
    with pytest.raises(BadRequest, match="the header says"):
        wire.read(place[: size - 64])
    for cut in (0, 3, 10):
        with pytest.raises(BadRequest):
            wire.read(place[:cut])


@given(st.binary(max_size=200))
def test_no_bytes_do_anything_but_be_refused_or_read(noise: bytes) -> None:
    try:
        Wire().read(memoryview(bytearray(noise)))
    except BadRequest:
        pass


def test_only_the_last_headers_are_remembered() -> None:
    place, wire = memory(), Wire()
    for length in range(3 * KEPT):
        wire.read(place[: wire.write({"obs": np.zeros(length)}, "act", place)])
    assert len(wire._written) == len(wire._read) == KEPT
