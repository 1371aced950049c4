"""Columns as the protocol carries them, and back: only numbers of known kinds, and only as many as their shape says."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np

from podium.core.errors import known_names
from podium.core.spaces import Columns
from podium.serving.protocol.podium_pb2 import Column
from podium.serving.server import BadRequest

WHOLE = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
NATIVE = {name: np.dtype(name) for name in ("bool", *WHOLE, "float32", "float64")}
DTYPES = {name: dtype.newbyteorder("<") for name, dtype in NATIVE.items()}
MAX_COLUMNS = 256
MAX_AXES = 16
MAX_NAME = 200


def to_messages(columns: Mapping[str, np.ndarray]) -> list[Column]:
    """The columns as messages."""
    return [to_message(name, column) for name, column in columns.items()]


def to_message(name: str, column: np.ndarray) -> Column:
    """One column as a message."""
    dtype = column.dtype.name
    if dtype not in DTYPES:
        raise BadRequest(f"{name} is {dtype}, expected one of {', '.join(DTYPES)}")
    return Column(name=name, dtype=dtype, shape=column.shape, data=column.astype(DTYPES[dtype], copy=False).tobytes())


def from_messages(messages: Iterable[Column]) -> Columns:
    """The columns of messages, as arrays of their own."""
    columns: Columns = {}
    for message in messages:
        name = message.name
        if name in columns:
            raise BadRequest(f"column {_short(name)} comes twice")
        if len(columns) == MAX_COLUMNS:
            raise BadRequest(f"more than {MAX_COLUMNS} columns")
        columns[name] = from_message(message)
    return columns


def from_message(message: Column) -> np.ndarray:
    """The array of one column."""
    name, kind, data = message.name, message.dtype, message.data
    if not 0 < len(name) <= MAX_NAME:
        raise BadRequest(f"a column's name has {len(name)} letters, expected 1 to {MAX_NAME}")
    if kind not in DTYPES:
        known = known_names(kind[:MAX_NAME], DTYPES)
        raise BadRequest(f"{name} has the dtype {_short(kind)}, which there isn't{known}")
    dtype, shape = DTYPES[kind], tuple(message.shape)
    if len(shape) > MAX_AXES:
        raise BadRequest(f"{name} has {len(shape)} axes, expected at most {MAX_AXES}")
    if min(shape, default=0) < 0:
        raise BadRequest(f"{name} has the shape {list(shape)}, expected numbers from 0")
    expected = math.prod(shape) * dtype.itemsize
    if len(data) != expected:
        raise BadRequest(f"{name} holds {len(data)} bytes, expected {expected} for {kind} of {list(shape)}")
    array = np.frombuffer(data, np.uint8 if kind == "bool" else dtype)
    if kind == "bool" and array.size and array.max() > 1:
        raise BadRequest(f"{name} is bool and holds {array.max()}, expected 0 or 1")
    return array.astype(NATIVE[kind]).reshape(shape)


def rows_in(columns: Columns) -> int:
    """How many rows the columns have."""
    if not columns:
        raise BadRequest("no columns, expected at least one")
    rows = -1
    for name, column in columns.items():
        if not column.shape:
            raise BadRequest(f"{name} has no axes, expected rows")
        if rows not in (-1, len(column)):
            raise BadRequest(f"columns of different lengths: {name} has {len(column)}, those before it {rows}")
        rows = len(column)
    return rows


def _short(text: str) -> str:
    return repr(text if len(text) <= MAX_NAME else text[:MAX_NAME] + "...")
