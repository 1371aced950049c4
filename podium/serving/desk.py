"""A server that several threads ask: whoever completes a pass computes it for all."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import monotonic

from podium.core.spaces import Columns
from podium.serving.server import Function, InferenceServer, Reply, Request

Deliver = Callable[[Reply], None]


class Desk:
    """Transports whose calls come in threads stand in front of it. No thread of its own computes: the one that makes a
    pass due does, so that nothing is handed over. Where passes fall due by waiting alone, a timer looks after them."""

    def __init__(self, server: InferenceServer) -> None:
        self.server = server
        self._queue = threading.Lock()
        self._computing = threading.Lock()
        self._waiting: list[Request] = []
        self._look = False  # whether something has come that nobody has seen to
        self._news = self._idle = (
            False  # for the timer: whether something has come, and whether it waits for that alone
        )
        self._closed = False
        self._changed = threading.Condition(self._queue)
        waits = server.max_wait_s is not None and server.max_wait_s > 0
        self._timer = threading.Thread(target=self._watch, name="inference-deadlines", daemon=True) if waits else None
        if self._timer is not None:
            self._timer.start()

    def submit(self, columns: Columns, rows: int, kind: str, deliver: Deliver) -> None:
        """Ask; `deliver` is called with the reply, here or in another caller's thread."""
        self.post([Request(columns, rows, kind, deliver, monotonic())])

    def post(self, requests: Sequence[Request]) -> None:
        """Requests that have come together, each with what is to be called with its reply as its tag; with none of them
        what is due by now is answered."""
        with self._queue:
            self._waiting += requests
            self._look = self._news = True
            if self._idle:  # else it looks at its next deadline, which is before that of what has come just now
                self._changed.notify()
        self._serve()

    def ask(
        self, columns: Columns, rows: int, kind: str = "act", timeout: float | None = None, alone: bool = False
    ) -> Reply | None:
        """Ask and wait for the reply; None if it doesn't come in time, and what was asked is forgotten then. Who is
        `alone` waits for nobody: the pass begins with what is there."""
        found: list[Reply] = []
        answered = threading.Event()

        def deliver(reply: Reply) -> None:
            found.append(reply)
            answered.set()

        self.submit(columns, rows, kind, deliver)
        if alone and not found:
            self.flush()
        if not answered.wait(timeout):
            self.forget(deliver)
        return found[0] if found else None

    def flush(self) -> None:
        """Answer whatever is there, due or not."""
        with self._computing:
            self._collect()
            replies = self.server.flush(monotonic(), monotonic)
        self._deliver(replies)
        self._serve()

    def _serve(self) -> None:
        """Answer what is due, unless somebody is at it, who then sees to this as well."""
        while self._look and self._computing.acquire(blocking=False):
            try:
                replies = self._poll()
            finally:
                self._computing.release()
            self._deliver(replies)

    @contextmanager
    def still(self) -> Iterator[None]:
        """Nothing is computed meanwhile; what comes waits."""
        with self._computing:
            yield
        self.post(())  # who came meanwhile left it to the one at work

    def swap(self, functions: Mapping[str, Function], version: int) -> None:
        """Answer with other functions from the next pass on."""
        with self.still():
            self.server.swap(functions, version)

    def forget(self, tag: Deliver) -> None:
        """Drop what waits of a caller that is gone."""
        with self.still():
            self._collect()
            self.server.forget(tag)

    @staticmethod
    def _deliver(replies: Sequence[Reply]) -> None:
        for reply in replies:
            reply.tag(reply)

    def _poll(self) -> list[Reply]:
        self._collect()
        return self.server.poll(monotonic(), monotonic)

    def _collect(self) -> None:
        with self._queue:
            new, self._waiting, self._look = self._waiting, [], False
        for request in new:
            self.server.submit(request)

    def _watch(self) -> None:
        while not self._closed:
            self._news = False
            with self._computing:
                replies = self._poll()
                deadline = self.server.deadline()
            self._deliver(replies)
            with self._queue:
                if not self._news and not self._closed:
                    self._idle = deadline is None
                    self._changed.wait(None if deadline is None else max(deadline - monotonic(), 0.0))
                    self._idle = False

    def close(self) -> None:
        """No more is answered."""
        with self._queue:
            self._closed = True
            self._changed.notify()
        if self._timer is not None:
            self._timer.join()
