"""Numpy arrays as the protocol's columns and back; what is no proper column is refused in one line."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from podium.core.spaces import Columns
from podium.serving.protocol.podium_pb2 import Column
from podium.serving.server import BadRequest

NAMES = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float32 float64".split()
DTYPES = {name: np.dtype(name).newbyteorder("<") for name in NAMES}


def to_columns(messages: Iterable[Column]) -> Columns:
    """The arrays by name; they are not to be written to."""
    columns: Columns = {}
    for message in messages:
        name, dtype, shape = message.name, DTYPES.get(message.dtype), tuple(message.shape)
        if name in columns:
            raise BadRequest(f"column {name!r} is there twice")
        if dtype is None:
            raise BadRequest(f"{name} has dtype {message.dtype!r}, expected one of {', '.join(NAMES)}")
        if any(size < 0 for size in shape):
            raise BadRequest(f"{name} has shape {list(shape)}, expected sizes from 0")
        expected = math.prod(shape) * dtype.itemsize
        if len(message.data) != expected:
            raise BadRequest(f"{name} has {len(message.data)} bytes, expected {expected}: {dtype.name} {list(shape)}")
        read = np.dtype(np.uint8) if dtype.kind == "b" else dtype
        flat = np.frombuffer(message.data, read).astype(dtype, copy=False)
        columns[name] = flat.reshape(shape)
    return columns


def to_messages(columns: Columns) -> list[Column]:
    """The arrays as columns."""
    return [
        Column(
            name=name, dtype=array.dtype.name, shape=array.shape, data=array.astype(DTYPES[array.dtype.name]).tobytes()
        )
        for name, array in columns.items()
    ]
