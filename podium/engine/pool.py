"""Workers that all do the same: bounded calls in flight, first-come results, the dead replaced, failures counted."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from podium.core.errors import ArgumentLost, CallTimedOut, PodiumError
from podium.engine.base import Engine, Handle, Ref

START_S = 120.0
"""How long a worker may take to start, and how long the pool waits where none is up."""

LONGEST_WAIT_S = 60.0

SERVER_S = 10.0
"""How long the server may take to say that it is there."""

Spawn = Callable[[int, int], Handle]  # (the worker's index, how often it was replaced) -> a new worker


@dataclass
class Call:
    """A call under way. Its time runs from when the worker could begin with it."""

    ref: Ref
    since: float
    tag: Any = None
    parts: Sequence[Ref] = ()


@dataclass
class Worker:
    """One place in the pool, and who holds it now."""

    index: int
    handle: Handle
    starting: Call | None
    replaced: int = 0
    calls: deque[Call] = field(default_factory=deque)


@dataclass(frozen=True)
class Finished:
    """A call that has ended well: whose it was, its result where it lies, the tag it was given and, if it was asked for
    in parts, the parts after the first."""

    index: int
    ref: Ref
    tag: Any = None
    parts: Sequence[Ref] = ()


class Pool:
    """A fixed number of workers, `depth` calls in flight for each at most.

    A worker that dies, raises or takes longer than `time_limit` seconds is replaced, and its calls are lost; what it raises
    is an error at once where that is none of `replaces`. More than `max_failures` of that with no finished call between
    them end the run with the first one's cause. What a call was given and could not have is no worker's fault: an error at
    once, or with `bears_losses` a call that is lost.

    A `server` that all workers ask belongs to the pool, and is closed with it. It is not replaced: that it is gone is the
    error, whatever a worker says.
    """

    def __init__(
        self,
        engine: Engine,
        spawn: Spawn,
        count: int,
        *,
        depth: int = 1,
        max_failures: int = 3,
        time_limit: float = 300.0,
        server: Handle | None = None,
        replaces: tuple[type[Exception], ...] = (Exception,),
        bears_losses: bool = False,
    ) -> None:
        self.engine, self.depth, self.max_failures, self.time_limit = engine, depth, max_failures, time_limit
        self.server, self.replaces, self.bears_losses = server, replaces, bears_losses
        self._spawn = spawn
        self.replaced = self.lost = 0
        self.until_ended = False  # whether the last `wait` saw the call that it was given end
        self._failures: list[BaseException] = []
        self._workers: list[Worker] = []
        try:
            for index in range(1, count + 1):
                self._workers.append(self._new(index, 0))
            if server is not None:
                self._wait_for_start(server)
            for worker in self._workers:
                self._wait_for_start(worker.handle)
                worker.starting = None
        except BaseException:
            self.close()
            raise

    @classmethod
    def alone(cls, engine: Engine, handle: Handle) -> Pool:
        """A pool of one that is there already: it is waited for as long as it takes, and nobody comes in its place."""
        return cls(engine, lambda index, replaced: handle, 1, max_failures=0, time_limit=float("inf"))

    def _new(self, index: int, replaced: int) -> Worker:
        handle = self._spawn(index, replaced)
        return Worker(index, handle, Call(handle.ready, monotonic()), replaced)

    def _wait_for_start(self, handle: Handle) -> None:
        """At the beginning everyone must come up: one that can't is an error at once."""
        if not self.engine.wait([handle.ready], 1, START_S)[0]:
            raise CallTimedOut(f"{handle.name} did not start within {START_S:.0f} s")
        self.engine.check(handle.ready)

    # --- what is there ---

    def __len__(self) -> int:
        return len(self._workers)

    @property
    def up(self) -> list[int]:
        """The workers that can be called now."""
        return [worker.index for worker in self._workers if worker.starting is None]

    @property
    def free(self) -> list[int]:
        """Those of them that may be called once more."""
        return [w.index for w in self._workers if w.starting is None and len(w.calls) < self.depth]

    @property
    def in_flight(self) -> int:
        return sum(len(worker.calls) for worker in self._workers)

    def handle(self, index: int) -> Handle:
        return self._workers[index - 1].handle

    def generation(self, index: int) -> int:
        """How often the worker of this place was replaced."""
        return self._workers[index - 1].replaced

    # --- calls ---

    def call(self, index: int, method: str, *args: Any, tag: Any = None, parts: int = 0) -> None:
        """Begin a call; `wait` gives its result. With `parts` the method returns that many values and one before them,
        each of which becomes a Ref of its own."""
        worker = self._workers[index - 1]
        if parts:
            first, *others = worker.handle.split(parts + 1, method, *args)
            worker.calls.append(Call(first, monotonic(), tag, others))
        else:
            worker.calls.append(Call(worker.handle.call(method, *args), monotonic(), tag))

    def wait(self, until: Ref | None = None) -> list[Finished]:
        """The calls that have ended well since the last time, first come first; blocks until there is one, or until the
        call `until` has ended. Workers that failed meanwhile are replaced; it returns empty-handed where nothing is in
        flight and somebody can be called, or nobody can be and `until` is there to wait for."""
        self._wait_for_anyone()
        self.until_ended = False
        finished = self._collect(0.0, until)
        while not finished and not self.until_ended and (self.in_flight or until is not None):
            finished = self._collect(self._patience(None), until)
            if not self.in_flight and self.free:
                break
        return finished

    def poll(self) -> None:
        """Take note of replacements that have come up, where no call is under way whose result this would swallow."""
        self._collect(0.0)

    @property
    def under_way(self) -> list[Ref]:
        """What is waited for: calls, and the starts of replacements."""
        return [call.ref for worker in self._workers for call in self._pending(worker)]

    def take(self, ended: Collection[Ref]) -> list[Finished]:
        """Those of the calls that have ended which ended well, for who waits for others beside them; as in `wait`, workers
        that failed or are late are replaced."""
        finished = []
        for worker in list(self._workers):
            for call in [call for call in self._pending(worker) if call.ref in ended]:
                if self._workers[worker.index - 1] is worker and self._ended(worker, call):
                    finished.append(Finished(worker.index, call.ref, call.tag, call.parts))
        self._replace_late()
        return finished

    def note_success(self) -> None:
        """What was done past the pool's own calls went well."""
        self._failures.clear()

    def each(self, method: str, *args: Any) -> list[Finished]:
        """One call on every worker that is up, and all their results in the workers' order; at least one. A worker that
        fails is left out of it and is there again once its replacement is."""
        finished: list[Finished] = []
        while not finished:
            self._wait_for_anyone()
            for index in self.up:
                self.call(index, method, *args)
            while self.in_flight:
                finished += self.wait()
        return sorted(finished, key=lambda one: one.index)

    def fail(self, index: int, error: BaseException) -> None:
        """Put a new worker in the place of one that failed; too many failures end the run."""
        self._check_server()
        worker = self._workers[index - 1]
        self._failures.append(error)
        self.lost += len(worker.calls)
        if len(self._failures) > self.max_failures:
            first = self._failures[0]
            if self.max_failures:
                first.add_note(f"{len(self._failures)} workers failed with nothing finished between them")
            raise first
        with contextlib.suppress(Exception):  # one that has failed may fail to close too
            self.engine.kill(worker.handle)
        self.replaced += 1
        self._workers[index - 1] = self._new(index, worker.replaced + 1)

    def _check_server(self) -> None:
        if self.server is not None:
            self.engine.check(self.server.call("processes"), SERVER_S)

    def check_alive(self, within: float = 10.0) -> None:
        """Find the workers that don't answer, and replace them."""
        asked = {index: self.handle(index).call("processes") for index in self.up}
        self.engine.wait(list(asked.values()), len(asked), within)
        for index, ref in asked.items():
            if error := self._error_of(ref):
                self.fail(index, error)

    def wait_for_all(self, within: float) -> None:
        """Wait for replacements that are on their way, as long as that."""
        limit = monotonic() + within
        while len(self.up) < len(self) and monotonic() < limit:
            self._collect(min(self._patience(limit), 1.0))

    def _error_of(self, ref: Ref) -> BaseException | None:
        if not self.engine.wait([ref], 1, 0)[0]:
            return CallTimedOut("a worker did not answer")
        try:
            self.engine.check(ref)
        except Exception as error:
            return error
        return None

    # --- inside ---

    def _collect(self, timeout: float, until: Ref | None = None) -> list[Finished]:
        """What has ended by now, or the first that ends within the timeout, which may be `until`."""
        owners = {id(call.ref): (worker, call) for worker in self._workers for call in self._pending(worker)}
        refs = [call.ref for _, call in owners.values()]
        refs += [] if until is None else [until]
        if not refs:
            return []
        ready, _ = self.engine.wait(refs, len(refs) if timeout == 0 else 1, timeout)
        finished = []
        for ref in ready:
            if ref is until:
                self.until_ended = True
                continue
            worker, call = owners[id(ref)]
            if self._workers[worker.index - 1] is worker and self._ended(worker, call):
                finished.append(Finished(worker.index, ref, call.tag, call.parts))
        if timeout == 0 or not ready:
            self._replace_late()
        return finished

    def _pending(self, worker: Worker) -> Sequence[Call]:
        return [worker.starting] if worker.starting is not None else worker.calls

    def _ended(self, worker: Worker, call: Call) -> bool:
        """Take note of a call's end: whether it is a result."""
        try:
            self.engine.check(call.ref)
        except ArgumentLost:
            self._check_server()
            if not self.bears_losses:
                raise
            worker.calls.remove(call)
            self.lost += 1
            return False
        except Exception as error:
            if not isinstance(error, self.replaces):
                raise
            self.fail(worker.index, error)
            return False
        if call is worker.starting:
            worker.starting = None
            return False
        worker.calls.remove(call)
        if worker.calls:
            worker.calls[0].since = monotonic()
        self._failures.clear()
        return True

    def _patience(self, limit: float | None) -> float:
        """Until the first call is late, or the limit."""
        due = [self._due(worker) for worker in self._workers if self._pending(worker)]
        if limit is not None:
            due.append(limit)
        return min(max(min(due, default=monotonic()) - monotonic(), 0.001), LONGEST_WAIT_S)

    def _due(self, worker: Worker) -> float:
        first = self._pending(worker)[0]
        return first.since + (START_S if first is worker.starting else self.time_limit)

    def _replace_late(self) -> None:
        for worker in list(self._workers):
            if self._pending(worker) and monotonic() > self._due(worker):
                what = "start" if worker.starting is not None else "answer"
                limit = START_S if worker.starting is not None else self.time_limit
                self.fail(worker.index, CallTimedOut(f"{worker.handle.name} did not {what} within {limit:.0f} s"))

    def _wait_for_anyone(self) -> None:
        limit = monotonic() + START_S
        while not self.up:
            if monotonic() > limit:
                raise self._failures[0] if self._failures else PodiumError("no worker came up")
            self._collect(self._patience(limit))

    def close(self) -> None:
        for worker in self._workers:
            self.engine.kill(worker.handle)
        self._workers.clear()
        if self.server is not None:
            self.engine.kill(self.server)
