"""A deadline for waits that know none: a thread that looks when the time may be over, and costs nothing until then."""

from __future__ import annotations

import threading
from collections.abc import Callable
from math import inf
from time import monotonic


class Guard:
    """Between `begin` and `end` somebody waits; past the deadline `expire` is called, which is to end the wait. Who waits
    again and again for as long doesn't wake the thread, which looks again when it wakes anyway."""

    def __init__(self, expire: Callable[[], None]) -> None:
        self._expire = expire
        self.expired = False  # whether the last wait was ended
        self._until, self._looks_at = inf, inf
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False

    def begin(self, deadline: float) -> None:
        self.expired = False
        self._until = deadline
        if deadline < self._looks_at:
            with self._changed:
                self._looks_at = deadline
                if self._thread is None:
                    self._thread = threading.Thread(target=self._watch, name="deadline", daemon=True)
                    self._thread.start()
                self._changed.notify()

    def end(self) -> None:
        self._until = inf

    def _watch(self) -> None:
        with self._changed:
            while not self._closed:
                self._looks_at = inf
                until = self._until
                if until <= monotonic():
                    self._until, self.expired = inf, True
                    self._expire()
                    continue
                self._looks_at = until
                self._changed.wait(None if until == inf else until - monotonic())

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()
