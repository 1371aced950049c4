"""Columns in a stretch of memory: a header that says what follows, then the arrays as they are. Executes nothing."""

from __future__ import annotations

import json
import math
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np

from podium.core.spaces import Columns
from podium.serving.server import BadRequest

DTYPES = {
    name: np.dtype(name)
    for name in (
        *("bool", "int8", "int16", "int32", "int64"),
        *("uint8", "uint16", "uint32", "uint64", "float32", "float64"),
    )
}
ALIGN = 64
KEPT = 64
"""Headers that are remembered: callers send the same again and again."""


@dataclass(frozen=True, eq=False)
class Header:
    """What stands where: each array's name, dtype, shape, offset and length. One is the same as itself alone, so that it
    is found at once where it is a key."""

    encoded: bytes
    kind: str
    parts: tuple[tuple[str, np.dtype, tuple[int, ...], int, int], ...]
    nbytes: int


class Kept(OrderedDict[Hashable, Header]):
    """The headers last used."""

    def add(self, key: Hashable, header: Header) -> Header:
        self[key] = header
        if len(self) > KEPT:
            self.popitem(last=False)
        return header


class Wire:
    """One side's way to write and read; each has its own."""

    def __init__(self) -> None:
        self._written, self._read = Kept(), Kept()

    def write(self, columns: Columns, kind: str, memory: memoryview) -> int:
        """Put the columns into the memory, and say how much of it they take."""
        header = self.header_of(columns, kind)
        if header.nbytes > len(memory):
            raise BadRequest(f"the rows take {header.nbytes:,} bytes, expected at most {len(memory):,}")
        memory[: len(header.encoded)] = header.encoded
        for array, column in zip(arrays_on(memory, header).values(), columns.values(), strict=True):
            array[...] = column
        return header.nbytes

    def pack(self, columns: Columns, kind: str) -> bytes:
        """The same as bytes of their own."""
        memory = bytearray(self.header_of(columns, kind).nbytes)
        self.write(columns, kind, memoryview(memory))
        return bytes(memory)

    def header_of(self, columns: Columns, kind: str) -> Header:
        """What columns look like."""
        key = (kind, *[(name, column.dtype.char, column.shape) for name, column in columns.items()])
        return self._written.get(key) or self._written.add(key, _header(columns, kind))

    def read(self, memory: memoryview) -> tuple[Columns, str]:
        """The columns that somebody has written, as views of the memory, and their kind."""
        header = self.header_in(memory)
        return arrays_on(memory, header), header.kind

    def header_in(self, memory: memoryview) -> Header:
        """What somebody has written, if all of it is there."""
        if len(memory) < 4:
            raise BadRequest(f"{len(memory)} bytes, expected a header")
        start = 4 + int.from_bytes(memory[:4], "little")
        encoded = bytes(memory[:start])
        header = self._read.get(encoded) or self._read.add(encoded, _parsed(encoded, start))
        if header.nbytes > len(memory):
            raise BadRequest(f"{len(memory):,} bytes, the header says {header.nbytes:,}")
        return header


class Place:
    """A stretch of memory that stays: the arrays on it are made once for each header, and lie there for the next ones."""

    def __init__(self, memory: memoryview) -> None:
        self._memory = memory
        self._wire = Wire()
        self._arrays: OrderedDict[Header, Columns] = OrderedDict()
        self._last: Header | None = None

    def write(self, columns: Columns, kind: str) -> int:
        """As `Wire.write`, where nobody else writes."""
        header = self._wire.header_of(columns, kind)
        if header is not self._last:
            if header.nbytes > len(self._memory):
                raise BadRequest(f"the rows take {header.nbytes:,} bytes, expected at most {len(self._memory):,}")
            self._memory[: len(header.encoded)] = header.encoded
            self._last = header
        for array, column in zip(self._on(header).values(), columns.values(), strict=True):
            array[...] = column
        return header.nbytes

    def read(self, nbytes: int) -> tuple[Columns, str]:
        """As `Wire.read` of the first bytes."""
        header = self._wire.header_in(self._memory[:nbytes])
        return dict(self._on(header)), header.kind

    def _on(self, header: Header) -> Columns:
        arrays = self._arrays.get(header)
        if arrays is None:
            arrays = self._arrays[header] = arrays_on(self._memory, header)
            if len(self._arrays) > KEPT:
                self._arrays.popitem(last=False)
        return arrays


def arrays_on(memory: memoryview, header: Header) -> Columns:
    """The arrays of a header, as views of the memory that it stands in."""
    return {name: np.ndarray(shape, dtype, memory, at) for name, dtype, shape, at, _ in header.parts}


def _header(columns: Columns, kind: str) -> Header:
    for name, column in columns.items():
        if column.dtype.name not in DTYPES:
            raise BadRequest(f"{name} is {column.dtype}, expected one of {', '.join(DTYPES)}")
    described = [[name, column.dtype.name, list(column.shape)] for name, column in columns.items()]
    body = json.dumps([kind, described]).encode()
    body += b" " * (-(4 + len(body)) % ALIGN)
    return _parsed(len(body).to_bytes(4, "little") + body, 4 + len(body))


def _parsed(encoded: bytes, start: int) -> Header:
    try:
        kind, described = json.loads(encoded[4:])
        parts, at = [], start
        for name, dtype, shape in described:
            nbytes = _count(shape) * DTYPES[dtype].itemsize
            parts.append((str(name), DTYPES[dtype], tuple(shape), at, nbytes))
            at += nbytes + -nbytes % ALIGN
    except (ValueError, TypeError, KeyError, RecursionError):
        raise BadRequest("a header that can't be read") from None
    if len(encoded) != start or not isinstance(kind, str):
        raise BadRequest("a header that can't be read")
    return Header(encoded, kind, tuple(parts), at)


def _count(shape: Any) -> int:
    if not all(type(size) is int and size >= 0 for size in shape):
        raise ValueError(shape)
    return math.prod(shape)
