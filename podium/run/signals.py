"""SIGINT and SIGTERM in a run: the first asks for an end, with a checkpoint if there is what to save, the second ends it
at once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

GRACE_S = 5.0
"""How long an iteration that is under way when the signal comes may take to end."""


class Interrupted(KeyboardInterrupt):
    """The run was asked to end by a signal; its exit code is the shell's for that signal."""

    def __init__(self, number: int) -> None:
        super().__init__(f"interrupted by {signal.Signals(number).name}")
        self.exit_code = 128 + number


@contextmanager
def held_back() -> Iterator[None]:
    """For importing: extension modules swallow a KeyboardInterrupt that falls into their loading. What comes in here is
    raised at the end, and threads that begin in here leave signals to the main one for good."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Signals:
    """Inside, `pending` is the number of the first signal that came, or None.

    What runs under `at_once` is given up when a signal comes, and what runs under `interruptible` when the grace is over:
    `Interrupted` is raised in the main thread, wherever it is. In another thread than the main one there are no signals
    to see.
    """

    def __init__(self) -> None:
        self.pending: int | None = None
        self._may_give_up = self._at_once = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._take(number, self._asked)
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """For what leaves nothing behind when it is given up."""
        self._at_once = True
        try:
            yield
        except KeyboardInterrupt as stop:
            raise self._numbered(stop) from stop.__cause__
        finally:
            self._at_once = False
        if self.pending is not None:
            raise Interrupted(self.pending)  # what was raised then fell where nothing can be raised

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """For work that may be given up in its middle."""
        self._may_give_up = True
        if self.pending is not None:
            signal.setitimer(signal.ITIMER_REAL, GRACE_S)
        try:
            yield
        except KeyboardInterrupt as stop:
            raise self._numbered(stop) from stop.__cause__
        finally:
            self._may_give_up = False
            if self.pending is not None:
                signal.setitimer(signal.ITIMER_REAL, 0)

    def _take(self, number: int, handler: Callable[[int, FrameType | None], None]) -> None:
        before = signal.signal(number, handler)
        self._before[number] = signal.SIG_DFL if before is None else before  # None: one that Python can't put back

    def _asked(self, number: int, frame: FrameType | None) -> None:
        if self.pending is not None:
            os._exit(128 + number)
        self.pending = number
        if self._at_once:
            raise Interrupted(number)
        self._take(signal.SIGALRM, self._too_long)  # until now an alarm was the user's own
        if self._may_give_up:
            signal.setitimer(signal.ITIMER_REAL, GRACE_S)

    def _too_long(self, number: int, frame: FrameType | None) -> None:
        if self._may_give_up and self.pending is not None:
            raise Interrupted(self.pending)

    def _numbered(self, stop: KeyboardInterrupt) -> KeyboardInterrupt:
        """Code in C++ that looks for signals while it waits lets on only that there was one."""
        return stop if self.pending is None or isinstance(stop, Interrupted) else Interrupted(self.pending)
