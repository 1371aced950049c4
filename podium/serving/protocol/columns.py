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
DTYPES = {name: np.dtype(name).newbyteorder("<") for name in ("bool", *WHOLE, "float32", "float64")}
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
        if message.name in columns:
            raise BadRequest(f"column {_short(message.name)} comes twice")
        if len(columns) == MAX_COLUMNS:
            raise BadRequest(f"more than {MAX_COLUMNS} columns")
        columns[message.name] = from_message(message)
    return columns


def from_message(message: Column) -> np.ndarray:
    """The array of one column."""
    if not 0 < len(message.name) <= MAX_NAME:
        raise BadRequest(f"a column's name has {len(message.name)} letters, expected 1 to {MAX_NAME}")
    name = message.name
    if message.dtype not in DTYPES:
        known = known_names(message.dtype[:MAX_NAME], DTYPES)
        raise BadRequest(f"{name} has the dtype {_short(message.dtype)}, which there isn't{known}")
    dtype, shape = DTYPES[message.dtype], tuple(message.shape)
    if len(shape) > MAX_AXES:
        raise BadRequest(f"{name} has {len(shape)} axes, expected at most {MAX_AXES}")
    if min(shape, default=0) < 0:
        raise BadRequest(f"{name} has the shape {list(shape)}, expected numbers from 0")
    expected = math.prod(shape) * dtype.itemsize
    if len(message.data) != expected:
        raise BadRequest(
            f"{name} holds {len(message.data)} bytes, expected {expected} for {message.dtype} of {list(shape)}"
        )
    array = np.frombuffer(message.data, np.uint8 if dtype.kind == "b" else dtype)
    if dtype.kind == "b" and array.size and array.max() > 1:
        raise BadRequest(f"{name} is bool and holds {array.max()}, expected 0 or 1")
    return array.astype(dtype.newbyteorder("=")).reshape(shape)


def rows_in(columns: Columns) -> int:
    """How many rows the columns have."""
    counts = {name: column.shape[0] if column.shape else None for name, column in columns.items()}
    for name, count in counts.items():
        if count is None:
            raise BadRequest(f"{name} has no axes, expected rows")
    rows = set(counts.values())
    if len(rows) != 1:
        found = ", ".join(f"{name} has {count}" for name, count in counts.items())
        raise BadRequest(f"columns of different lengths: {found}" if rows else "no columns, expected at least one")
    return next(iter(rows)) or 0


def _short(text: str) -> str:
    return repr(text if len(text) <= MAX_NAME else text[:MAX_NAME] + "...")
