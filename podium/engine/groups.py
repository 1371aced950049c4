"""Processes that end with this one, however it ends: each is the head of a group, and a guard outlives this process."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable
from typing import Any

GRACE_S = 1.0
GUARD = 'while read -r group; do groups="$groups -$group"; done; kill -s KILL -- $groups'
"""Reads groups until nobody can write any more, which is when this process is gone, and kills them."""


class Groups:
    """Starts processes; `end` ends them and what they have started in turn. Where it never comes to that, the guard does."""

    def __init__(self) -> None:
        self._started: list[subprocess.Popen[bytes]] = []
        self._guard: subprocess.Popen[bytes] | None = None

    def start(self, *args: Any, preexec_fn: Callable[[], Any] = lambda: None, **how: Any) -> subprocess.Popen[bytes]:
        """As `Popen`. A signal to the group of this process doesn't reach them: they are needed until `end`. SIGTERM may
        be blocked here, but isn't there."""

        def prepare() -> None:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
            preexec_fn()

        if self._guard is None:
            none = subprocess.DEVNULL
            self._guard = subprocess.Popen(
                ["sh", "-c", GUARD], stdin=subprocess.PIPE, stdout=none, stderr=none, start_new_session=True
            )
        process = subprocess.Popen(*args, **how | {"process_group": 0, "preexec_fn": prepare})
        self._started.append(process)
        assert self._guard.stdin is not None
        self._guard.stdin.write(f"{process.pid}\n".encode())
        self._guard.stdin.flush()
        return process

    def end(self) -> None:
        """Ask all of them to end, and make them after a moment."""
        for process in self._started:
            process.terminate()
        limit = time.monotonic() + GRACE_S
        for process in self._started:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(limit - time.monotonic(), 0.0))
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        self._started = []
        if self._guard is not None:
            guard, self._guard = self._guard, None
            guard.kill()
            guard.communicate()
