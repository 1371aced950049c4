"""The shared memory that a server and its clients meet in: a place for each client, and who is there.

It has no name: others open it through the server's process, and it is gone with the last of them, however they end.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import struct

import numpy as np

from podium.core.errors import PodiumError, UsageError
from podium.serving.semaphore import NBYTES, Semaphore

MAGIC = 0x316D7573_64757001
PAGE = 4096
HEAD = 3 * NBYTES
"""Of a place: its numbers, and the client's semaphore."""

# Numbers of the segment, by their index among its 64-bit words.
MAGIC_AT, PLACES, REQUEST_BYTES, REPLY_BYTES, OPEN, WANTED, ROWS = range(7)
ARRIVALS_AT, WAKE_AT = PAGE // 2, PAGE // 2 + NBYTES
# Numbers of a place.
ASKED, ANSWERED, ARRIVED, REQUEST_SIZE, REPLY_SIZE, STATUS, VERSION = range(7)
SEMAPHORE_AT = NBYTES * 2


class Segment:
    """One mapping of it. Whoever holds the lock of a byte is alive: 0 is the server's, the others are the places'."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._map = mmap.mmap(fd, 0)
        self.memory = memoryview(self._map)
        self.words = self.memory.cast("Q")
        self.reals = self.memory.cast("d")
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        if self.words[MAGIC_AT] not in (0, MAGIC):
            raise PodiumError("that is no shared memory of a Podium server")

    @classmethod
    def create(cls, places: int, request_bytes: int, reply_bytes: int, rows: int) -> Segment:
        fd = os.memfd_create("podium-serving")
        request_bytes, reply_bytes = _pages(request_bytes), _pages(reply_bytes)
        os.ftruncate(fd, PAGE + places * _stride(request_bytes, reply_bytes))
        segment = cls(fd)
        words = segment.words
        words[PLACES], words[REQUEST_BYTES], words[REPLY_BYTES], words[ROWS] = places, request_bytes, reply_bytes, rows
        words[OPEN] = 1
        for at in (ARRIVALS_AT, WAKE_AT, *(segment.place_at(place) + SEMAPHORE_AT for place in range(places))):
            Semaphore(segment.base + at, create=True)
        segment.hold(0)
        words[MAGIC_AT] = MAGIC
        return segment

    @classmethod
    def open(cls, path: str) -> Segment:
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise UsageError(f"no server at shm:{path}: {error.strerror}") from None
        return cls(fd)

    @property
    def places(self) -> int:
        return self.words[PLACES]

    def place_at(self, place: int) -> int:
        """Where a place begins."""
        return PAGE + place * _stride(self.words[REQUEST_BYTES], self.words[REPLY_BYTES])

    def request_memory(self, place: int) -> memoryview:
        start = self.place_at(place) + PAGE
        return self.memory[start : start + self.words[REQUEST_BYTES]]

    def reply_memory(self, place: int) -> memoryview:
        start = self.place_at(place) + PAGE + self.words[REQUEST_BYTES]
        return self.memory[start : start + self.words[REPLY_BYTES]]

    def column(self, word: int) -> np.ndarray:
        """One number of every place, as a view."""
        stride = _stride(self.words[REQUEST_BYTES], self.words[REPLY_BYTES])
        return np.ndarray((self.places,), np.uint64, self.memory, PAGE + 8 * word, (stride,))

    def semaphore(self, at: int) -> Semaphore:
        return Semaphore(self.base + at)

    def hold(self, byte: int) -> bool:
        """Take a byte's lock for as long as this mapping lives; False if somebody has it."""
        try:
            fcntl.fcntl(self.fd, fcntl.F_OFD_SETLK, _lock(fcntl.F_WRLCK, byte))
        except (BlockingIOError, PermissionError):
            return False
        return True

    def held(self, byte: int) -> bool:
        """Whether somebody else holds it."""
        answer = fcntl.fcntl(self.fd, fcntl.F_OFD_GETLK, _lock(fcntl.F_WRLCK, byte))
        return bool(struct.unpack_from("h", answer)[0] != fcntl.F_UNLCK)

    def close(self) -> None:
        """Let go of what was held; the mapping ends with the last view of it, and has a descriptor of its own till then."""
        if self.fd >= 0:
            fcntl.fcntl(self.fd, fcntl.F_OFD_SETLK, _lock(fcntl.F_UNLCK, 0, 0))
            os.close(self.fd)
            self.fd = -1


def _lock(kind: int, byte: int, count: int = 1) -> bytes:
    """What the lock calls take; a count of 0 means all from there on."""
    return struct.pack("hhqqi4x", kind, os.SEEK_SET, byte, count, 0)


def _pages(nbytes: int) -> int:
    return max(nbytes + -nbytes % PAGE, PAGE)


def _stride(request_bytes: int, reply_bytes: int) -> int:
    return PAGE + request_bytes + reply_bytes
