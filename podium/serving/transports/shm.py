"""Shared memory between processes of one machine: rows lie where both sides see them, and a wake-up costs microseconds.

The server sleeps until as many requests are there as its next pass wants, so that a pass of many callers costs it one
wake-up. The caller that completes them wakes it.
"""

from __future__ import annotations

import os
import threading
from functools import partial
from time import monotonic

import numpy as np

from podium.core.errors import CallTimedOut, PodiumError
from podium.core.spaces import Columns
from podium.serving import segment as seg
from podium.serving.base import WAIT_S, Answer, ServerGone
from podium.serving.desk import Deliver, Desk
from podium.serving.segment import Segment
from podium.serving.server import BadRequest, Reply, Request
from podium.serving.wire import Place

SCHEME = "shm:"
LOOK_S = 0.2
"""How often somebody who waits looks whether the other side still lives."""

AWAKE = 1 << 62
"""How many requests wake a server that is awake: none."""

ANSWERED, REFUSED, FAILED = range(3)
REQUEST_BYTES, REPLY_BYTES = 1 << 20, 1 << 16


class ShmTransport:
    """The server's side, a thread of this process. `places` clients at most can be there at once; `rows` is how many a
    request usually has, and `request_bytes` and `reply_bytes` how long one may be (memory is used as it is touched)."""

    def __init__(
        self,
        desk: Desk,
        places: int = 128,
        *,
        rows: int = 1,
        request_bytes: int = REQUEST_BYTES,
        reply_bytes: int = REPLY_BYTES,
    ) -> None:
        self._desk = desk
        self._segment = segment = Segment.create(places, request_bytes, reply_bytes, rows)
        self._asked, self._arrived = segment.column(seg.ASKED), segment.column(seg.ARRIVED).view(np.float64)
        self._answered, self._taken = segment.column(seg.ANSWERED), self._asked.copy()
        self._semaphores = [segment.semaphore(segment.place_at(p) + seg.SEMAPHORE_AT) for p in range(places)]
        self._words_at = [segment.place_at(place) // 8 for place in range(places)]
        self._requests = [Place(segment.request_memory(place)) for place in range(places)]
        self._replies = [Place(segment.reply_memory(place)) for place in range(places)]
        self._waiting: list[Deliver | None] = [None] * places
        self._arrivals, self._wake = segment.semaphore(seg.ARRIVALS_AT), segment.semaphore(seg.WAKE_AT)
        self._open = True
        self._thread = threading.Thread(target=self._serve, name="shm-serving", daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        return f"{SCHEME}/proc/{os.getpid()}/fd/{self._segment.fd}"

    def _serve(self) -> None:
        while self._open:
            self._sleep()
            requests = self._new()
            if not requests:
                self._forget_the_gone()
            self._desk.post(requests)

    def _sleep(self) -> None:
        """Until as many requests are there as a pass wants, one of them has waited for long enough, or it is time to look."""
        words, server = self._segment.words, self._desk.server
        until, wanted = monotonic() + LOOK_S, 1
        if server.waiting or server.max_wait_s is None:
            wanted = max(-(-server.missing() // words[seg.ROWS]), 1)
            deadline = server.deadline()
            until = until if deadline is None else min(until, deadline)
        words[seg.WANTED] = wanted
        # Looked at after what is wanted is there to see: nobody who came before that would wake this thread.
        if self._arrivals.value() < wanted:
            self._wake.wait(until)
        words[seg.WANTED] = AWAKE

    def _new(self) -> list[Request]:
        """What has been asked; whoever is counted has been written by then."""
        self._wake.drain()
        self._arrivals.drain()
        places = np.flatnonzero(self._asked != self._taken).tolist()
        found = []
        for place in places:
            asked = int(self._asked[place])
            self._taken[place] = asked
            self._forget(place)  # what it asked before and has given up
            deliver = self._waiting[place] = partial(self._deliver, place, asked)
            try:
                size = self._segment.words[self._words_at[place] + seg.REQUEST_SIZE]
                columns, kind = self._requests[place].read(size)
                rows = len(next(iter(columns.values())))
            except (BadRequest, StopIteration, TypeError, ValueError) as error:
                deliver(Reply(deliver, {}, 0, BadRequest(str(error) or "a request without columns")))
                continue
            found.append(Request(columns, rows, kind, deliver, float(self._arrived[place])))
        return found

    def _forget_the_gone(self) -> None:
        """What a client that has ended waits for would stand in others' passes."""
        for place in np.flatnonzero(self._answered != self._taken).tolist():
            if not self._segment.held(1 + place):
                self._forget(place)

    def _forget(self, place: int) -> None:
        deliver, self._waiting[place] = self._waiting[place], None
        if deliver is not None:
            self._desk.forget(deliver)

    def _deliver(self, place: int, asked: int, reply: Reply) -> None:
        self._waiting[place] = None
        words, at = self._segment.words, self._words_at[place]
        status, columns = ANSWERED, reply.columns
        if reply.error is not None:
            status = REFUSED if isinstance(reply.error, BadRequest) else FAILED
            columns = _said(reply.error)
        try:
            words[at + seg.REPLY_SIZE] = self._replies[place].write(columns, "")
        except BadRequest as error:
            status = FAILED
            words[at + seg.REPLY_SIZE] = self._replies[place].write(_said(error), "")
        words[at + seg.STATUS], words[at + seg.VERSION] = status, reply.version
        words[at + seg.ANSWERED] = asked
        self._semaphores[place].post()

    def close(self) -> None:
        """Nobody is answered any more; those who wait are told."""
        if not self._open:
            return
        self._open = False
        self._segment.words[seg.OPEN] = 0
        self._wake.post()
        self._thread.join()
        for place in range(self._segment.places):
            if self._segment.held(1 + place):
                self._semaphores[place].post()
        self._segment.close()


class ShmClient:
    """One caller, in a place of its own as long as it lives."""

    def __init__(self, address: str) -> None:
        self._segment = segment = Segment.open(address.removeprefix(SCHEME))
        self._place = self._take_place()
        at = segment.place_at(self._place)
        self._at = at // 8
        self._semaphore = segment.semaphore(at + seg.SEMAPHORE_AT)
        self._semaphore.drain()
        self._arrivals, self._wake = segment.semaphore(seg.ARRIVALS_AT), segment.semaphore(seg.WAKE_AT)
        self._request = Place(segment.request_memory(self._place))
        self._reply = Place(segment.reply_memory(self._place))
        self._asked = segment.words[self._at + seg.ASKED]

    def _take_place(self) -> int:
        segment = self._segment
        for place in range(segment.places):
            if segment.hold(1 + place):
                return place
        segment.close()
        raise PodiumError(f"the server has {segment.places} places, and all of them are taken")

    def ask(self, columns: Columns, kind: str = "act", timeout: float = WAIT_S) -> Answer:
        """Ask, and wait for the answer, whose columns are the caller's own."""
        segment, words, at = self._segment, self._segment.words, self._at
        words[at + seg.REQUEST_SIZE] = self._request.write(columns, kind)
        now = monotonic()
        segment.reals[at + seg.ARRIVED] = now
        self._asked += 1
        words[at + seg.ASKED] = self._asked
        self._arrivals.post()
        wanted = words[seg.WANTED]
        if wanted != AWAKE and (
            wanted == 1
            or kind != "act"
            or len(next(iter(columns.values()))) > words[seg.ROWS]
            or self._arrivals.value() >= wanted
        ):
            self._wake.post()
        self._wait(now + timeout, timeout)
        answer, _ = self._reply.read(words[at + seg.REPLY_SIZE])
        status = words[at + seg.STATUS]
        if status != ANSWERED:
            said = bytes(answer["error"]).decode()
            raise BadRequest(said) if status == REFUSED else PodiumError(said)
        return Answer({name: column.copy() for name, column in answer.items()}, words[at + seg.VERSION])

    def _wait(self, deadline: float, timeout: float) -> None:
        words, answered = self._segment.words, self._at + seg.ANSWERED
        while words[answered] != self._asked:
            now = monotonic()
            if now >= deadline:
                raise CallTimedOut(f"no answer within {timeout:g} s")
            if not self._semaphore.wait(min(now + LOOK_S, deadline)) and not self._segment.held(0):
                raise ServerGone("the server's process is gone")
            if not words[seg.OPEN] and words[answered] != self._asked:
                raise ServerGone("the server was closed")

    def close(self) -> None:
        self._segment.close()


def _said(error: Exception) -> Columns:
    return {"error": np.frombuffer(f"{error}".encode()[: REPLY_BYTES // 2] or b" ", np.uint8)}
