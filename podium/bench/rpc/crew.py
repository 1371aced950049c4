"""The benchmark's processes: each holds one object whose methods the coordinator calls, and none outlives it."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing import connection
from pathlib import Path
from typing import Any, Protocol

from podium.core.errors import CallTimedOut, PodiumError, WorkerDied

AGENT = "agent"
CLOSE_S = 3.0
JOIN_S = 30.0
GRACE_S = 1.0
"""After one has failed, the others have this long to say so too, or to be found dead: then it is known whose fault it was."""

WATCH_S = 0.5
QUIET = {"TORCH_CPP_LOG_LEVEL": "FATAL", "OMP_NUM_THREADS": "1"}
"""For the processes: what torch's threads say of a peer that has left is told by the coordinator, in one line."""


class Crew(Protocol):
    """Peers by their names. A method is called on several of them at once; whatever goes wrong says with whom."""

    def add(self, name: str, build: Callable[..., Any], *args: Any) -> None: ...
    def address(self) -> Any:
        """What the others join the agent by, once it is there."""
        ...

    def call(
        self, names: Sequence[str], method: str, *args: Any, done: str = ..., watch: Callable[[], bool] | None = None
    ) -> list[Any]:
        """What each returned, in order. `done` says in an error what they had not done in time; `watch` is called now and
        then while they are at it, and says whether it goes on: then the time begins anew."""
        ...

    def close(self) -> None: ...


class Peer:
    """One process and the pipe to it."""

    def __init__(self, name: str, build: Callable[..., Any], args: Sequence[Any], context: Any) -> None:
        self.name = name
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_live, args=(theirs, build, args), name=name, daemon=True)
        self.process.start()
        theirs.close()
        self.answers: list[tuple[bool, Any]] = []
        self.gone = False

    def receive(self) -> None:
        try:
            while self.pipe.poll():
                self.answers.append(self.pipe.recv())
        except (EOFError, OSError):
            self.gone = True

    def fate(self) -> str:
        """How it ended, once it has."""
        self.process.join(GRACE_S)
        code = self.process.exitcode
        if code is not None and code < 0:
            return f"{self.name} (pid {self.process.pid}) was killed by {signal.Signals(-code).name}"
        return f"{self.name} (pid {self.process.pid}) ended by itself with code {code}"


class Processes:
    """Forked by a server that has loaded what all of them need, so that a hundred of them start in a few seconds."""

    def __init__(self, limit: float, preload: Sequence[str]) -> None:
        self._limit = limit
        self._peers: dict[str, Peer] = {}
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(list(preload))
        _start_server()

    def add(self, name: str, build: Callable[..., Any], *args: Any) -> None:
        self._peers[name] = Peer(name, build, args, self._context)

    def address(self) -> Any:
        return self.call([AGENT], "open", done="started")[0]

    def call(
        self,
        names: Sequence[str],
        method: str,
        *args: Any,
        done: str = "answered",
        watch: Callable[[], bool] | None = None,
    ) -> list[Any]:
        peers = [self._peers[name] for name in names]
        for peer in peers:
            with contextlib.suppress(OSError):  # one that is gone is found below
                peer.pipe.send((method, args))
        found: dict[str, Any] = {}
        due = time.monotonic() + self._limit + GRACE_S  # who knows better whom it waits for speaks first
        while waiting := [peer for peer in peers if peer.name not in found]:
            self._receive(min(due - time.monotonic(), WATCH_S if watch is not None else self._limit))
            for peer in waiting:
                if peer.answers:
                    well, value = peer.answers.pop(0)
                    if not well:
                        text, timed_out = value
                        raise self._failed(peer, text, timed_out, waiting)
                    found[peer.name] = value
            if watch is not None and len(found) < len(peers) and watch():
                due = time.monotonic() + self._limit + GRACE_S
            if time.monotonic() >= due and len(found) < len(peers):
                raise CallTimedOut(late([name for name in names if name not in found], done, self._limit))
        return [found[name] for name in names]

    def _receive(self, timeout: float) -> None:
        """Take what has come; a peer that is gone ends everything."""
        peers = list(self._peers.values())
        connection.wait([peer.pipe for peer in peers], max(timeout, 0.0))
        for peer in peers:
            peer.receive()
        if lost := [peer for peer in peers if peer.gone]:
            raise WorkerDied(lost[0].fate())

    def _failed(self, first: Peer, text: str, timed_out: bool, waiting: Sequence[Peer]) -> PodiumError:
        """The error of the first that failed, unless another's end was its cause, or its silence."""
        due = time.monotonic() + GRACE_S
        while (left := due - time.monotonic()) > 0:
            try:
                self._receive(left)
            except WorkerDied as died:
                return died
        silent = [peer.name for peer in waiting if peer is not first and not peer.answers]
        if timed_out and silent and len(silent) <= len(waiting) // 2:
            return CallTimedOut(f"{_several(silent)} said nothing while {first.name} waited: {text}")
        return PodiumError(f"{first.name}: {text}")

    def close(self) -> None:
        """Ask each to end, and end those that don't."""
        peers, self._peers = list(self._peers.values()), {}
        for peer in peers:
            peer.pipe.close()
        due = time.monotonic() + CLOSE_S
        for peer in peers:
            peer.process.join(max(due - time.monotonic(), 0.0))
        for peer in peers:
            if peer.process.exitcode is None:
                peer.process.kill()
        due = time.monotonic() + JOIN_S
        for peer in peers:
            peer.process.join(max(due - time.monotonic(), 0.0))
        if stuck := [f"{peer.name} (pid {peer.process.pid})" for peer in peers if peer.process.exitcode is None]:
            raise PodiumError(f"{_several(stuck)} not ended within {JOIN_S:g} s of being killed")


def _start_server() -> None:
    """Its environment is that of everything it forks."""
    before = {name: os.environ.get(name) for name in QUIET}
    os.environ.update(QUIET)
    try:
        from multiprocessing import forkserver

        forkserver.ensure_running()
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def late(names: Sequence[str], done: str, limit: float) -> str:
    """The line of those that were waited for in vain."""
    return f"{_several(names)} not {done} within {limit:g} s (--timeout)"


def _several(names: Sequence[str]) -> str:
    shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    return f"{shown} {'has' if len(names) == 1 else 'have'}"


# --- in the process ---


def _live(pipe: Any, build: Callable[..., Any], args: Sequence[Any]) -> None:
    """Call what is asked for in a thread, while this one waits for the end of the pipe: it comes when the coordinator
    closes it, and also when the coordinator is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the coordinator sees to it
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text(multiprocessing.current_process().name)  # for those who look at processes
    role = _Role(pipe, build, args)
    with contextlib.suppress(EOFError, OSError):
        while True:
            role.begin(*pipe.recv())
    role.end()


class _Role:
    """The object of this process."""

    def __init__(self, pipe: Any, build: Callable[..., Any], args: Sequence[Any]) -> None:
        self._pipe = pipe
        self._object: Any = None
        self._busy: threading.Thread | None = None
        self._build = lambda: build(*args)

    def begin(self, method: str, args: Sequence[Any]) -> None:
        self._busy = threading.Thread(target=self._call, args=(method, args), daemon=True)
        self._busy.start()

    def _call(self, method: str, args: Sequence[Any]) -> None:
        try:
            if self._object is None:
                self._object = self._build()
            answer = True, getattr(self._object, method)(*args)
        except Exception as error:
            text = str(error) if isinstance(error, PodiumError) else f"{type(error).__name__}: {error}"
            answer = False, (text, isinstance(error, CallTimedOut))
        with contextlib.suppress(OSError):
            self._pipe.send(answer)

    def end(self) -> None:
        """Leave nothing behind, and don't wait for threads of libraries."""
        ended = threading.Timer(CLOSE_S, os._exit, [1])
        ended.daemon = True
        ended.start()
        if self._object is not None and (self._busy is None or not self._busy.is_alive()):
            with contextlib.suppress(Exception):
                self._object.close()
        os._exit(0)
