"""POSIX semaphores that lie in shared memory: a wake-up of another process costs microseconds."""

from __future__ import annotations

import ctypes
import errno
import os
import time
from typing import Any

from podium.core.errors import PodiumError

NBYTES = 64
"""Room for one, on a cache line of its own; the C library's takes 32."""


class TimeSpec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


def _library() -> Any:
    library = ctypes.CDLL(None, use_errno=True)
    if not hasattr(library, "sem_clockwait"):
        raise PodiumError("the shm transport needs glibc 2.30 or newer")
    library.sem_clockwait.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]
    return library


class Semaphore:
    """One that lies at an address; `create` makes it, the others find it there."""

    def __init__(self, address: int, create: bool = False) -> None:
        library = _library()
        self._at = ctypes.c_void_p(address)
        self._post, self._try, self._wait = library.sem_post, library.sem_trywait, library.sem_clockwait
        self._value = ctypes.c_int()
        self._get, self._value_at = library.sem_getvalue, ctypes.byref(self._value)
        self._until = TimeSpec()
        self._until_at = ctypes.addressof(self._until)
        if create and library.sem_init(self._at, 1, 0):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    def post(self) -> None:
        self._post(self._at)

    def value(self) -> int:
        self._get(self._at, self._value_at)
        return self._value.value

    def drain(self) -> None:
        """Take all that is there."""
        for _ in range(self.value()):
            self._try(self._at)

    def wait(self, deadline: float) -> bool:
        """Take one, or give up when the monotonic clock reaches the deadline."""
        until = self._until
        until.seconds = seconds = int(deadline)
        until.nanoseconds = int((deadline - seconds) * 1e9)
        while self._wait(self._at, time.CLOCK_MONOTONIC, self._until_at):
            if ctypes.get_errno() != errno.EINTR:
                return False
        return True
