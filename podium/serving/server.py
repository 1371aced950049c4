"""The inference server: rows answered with rows, many callers in one pass. No sockets, no threads, no clock of its own."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from podium.core.errors import PodiumError, UsageError, known_names
from podium.core.spaces import Columns
from podium.serving.stats import Stats

Function = Callable[[Columns], Columns]
Layout = Mapping[str, tuple[tuple[int, ...], np.dtype]]
"""The columns of a request's rows: each one's shape without the rows, and its dtype."""
Check = Callable[[Columns], str | None]
"""What is wrong with the values of a request's columns, in one line."""


class BadRequest(PodiumError):
    """A request that can't be answered as it is; those beside it are."""


@dataclass(slots=True)
class Request:
    """Rows that somebody asks about. `kind` names the function that answers, `tag` is the transport's own: whose it is,
    `arrived` is when the server's side had all of it, on the clock that `poll` is told the time of."""

    columns: Columns
    rows: int
    kind: str = "act"
    tag: Any = None
    arrived: float = 0.0


@dataclass(slots=True)
class Reply:
    """The answer for one request: its rows and the version of the weights that gave them, or an error."""

    tag: Any
    columns: Columns
    version: int
    error: Exception | None = None


@dataclass(slots=True)
class Pass:
    """One pass through a function: how many requests and rows, when the first of them was there, and when it was done."""

    requests: int
    rows: int
    first: float
    done: float


class InferenceServer:
    """Requests of one kind wait until there are `max_batch` rows of them, or until the first has waited for `max_wait_s`;
    None waits for the rows however long it takes. With `max_batch` None a pass takes whatever is there, as it does for the
    kinds that are to be answered `at_once`.

    `layouts` says for each kind what a request's columns must be; what differs, or holds NaN, is refused on its own, and
    so is what `checks` finds. `defaults` has a row for each column that a request may leave out.
    """

    def __init__(
        self,
        functions: Mapping[str, Function],
        *,
        max_batch: int | None = None,
        max_wait_s: float | None = 0.0,
        at_once: Collection[str] = (),
        layouts: Mapping[str, Layout] | None = None,
        defaults: Mapping[str, Columns] | None = None,
        checks: Mapping[str, Check] | None = None,
        version: int = 0,
        observe: Callable[[Pass], None] | None = None,
    ) -> None:
        if max_batch is not None and max_batch < 1:
            raise UsageError(f"max_batch is {max_batch}, expected at least 1")
        if max_wait_s is not None and not max_wait_s >= 0:
            raise UsageError(f"max_wait_s is {max_wait_s}, expected 0 or more")
        if max_batch is None and max_wait_s is None:
            raise UsageError("max_batch and max_wait_s are both None: no pass would ever begin")
        self.functions = dict(functions)
        self.max_batch, self.max_wait_s, self.at_once = max_batch, max_wait_s, frozenset(at_once)
        self.layouts = dict(layouts) if layouts is not None else None
        self.defaults, self.checks = dict(defaults or {}), dict(checks or {})
        self.version = version
        self.stats = Stats()
        self._observe = observe
        self._queues: dict[str, deque[Request]] = {kind: deque() for kind in self.functions}
        self._rows: dict[str, int] = dict.fromkeys(self.functions, 0)
        self._refused: list[Reply] = []

    # --- asking ---

    def submit(self, request: Request) -> None:
        """Take a request; its reply comes from a `poll`."""
        problem = self._problem(request)
        if problem is not None:
            self.stats.refused += 1
            self._refused.append(Reply(request.tag, {}, self.version, BadRequest(problem)))
            return
        self._queues[request.kind].append(request)
        self._rows[request.kind] += request.rows

    def poll(self, now: float, clock: Callable[[], float] | None = None) -> list[Reply]:
        """The replies that are due. `clock` tells when a pass was done, for those who measure it."""
        replies, self._refused = self._refused, []
        for kind, queue in self._queues.items():
            while queue and self._due(kind, now):
                replies += self._answer(kind, self._take(kind), now, clock)
        return replies

    def flush(self, now: float, clock: Callable[[], float] | None = None) -> list[Reply]:
        """The replies to everything that waits, due or not."""
        replies = self.poll(now, clock)
        for kind, queue in self._queues.items():
            while queue:
                replies += self._answer(kind, self._take(kind), now, clock)
        return replies

    def missing(self, kind: str = "act") -> int:
        """How many more rows make a full pass; 0 if one is due for them, or if whatever is there makes one."""
        return max(self.max_batch - self._rows[kind], 0) if self.max_batch is not None else 0

    def deadline(self) -> float | None:
        """When a pass is due for waiting, if anything waits and doesn't wait for ever."""
        if self.max_wait_s is None:
            return None
        return min((queue[0].arrived + self.max_wait_s for queue in self._queues.values() if queue), default=None)

    @property
    def waiting(self) -> int:
        """How many requests wait."""
        return sum(map(len, self._queues.values()))

    def forget(self, tag: Any) -> None:
        """Drop what waits of a caller that is gone."""
        for kind, queue in self._queues.items():
            kept = deque(request for request in queue if request.tag != tag)
            self._rows[kind] = sum(request.rows for request in kept)
            self._queues[kind] = kept

    def swap(self, functions: Mapping[str, Function], version: int) -> None:
        """Answer with other functions from the next pass on; what waits stays."""
        if set(functions) != set(self.functions):
            raise UsageError(f"the functions are {sorted(functions)}, expected {sorted(self.functions)}")
        self.functions, self.version = dict(functions), version

    # --- passes ---

    def _due(self, kind: str, now: float) -> bool:
        if kind in self.at_once:
            return True
        if self.max_batch is not None and self._rows[kind] >= self.max_batch:
            return True
        return self.max_wait_s is not None and now >= self._queues[kind][0].arrived + self.max_wait_s

    def _take(self, kind: str) -> list[Request]:
        """The oldest requests that fit into a pass; one alone may be larger."""
        queue, rows = self._queues[kind], 0
        taken: list[Request] = []
        while queue and (not taken or self.max_batch is None or rows + queue[0].rows <= self.max_batch):
            request = queue.popleft()
            rows += request.rows
            taken.append(request)
        self._rows[kind] -= rows
        return taken

    def _answer(
        self, kind: str, requests: Sequence[Request], now: float, clock: Callable[[], float] | None
    ) -> list[Reply]:
        rows = sum(request.rows for request in requests)
        waiting = self.waiting
        try:
            answer = self.functions[kind](_side_by_side([request.columns for request in requests]))
        except Exception as error:
            self.stats.failed += len(requests)
            return [Reply(request.tag, {}, self.version, error) for request in requests]
        done = clock() if clock is not None else now
        self.stats.passed(requests, rows, waiting, done)
        if self._observe is not None:
            self._observe(Pass(len(requests), rows, min(request.arrived for request in requests), done))
        replies, at = [], 0
        for request in requests:
            end = at + request.rows
            part = answer if len(requests) == 1 else {name: column[at:end] for name, column in answer.items()}
            replies.append(Reply(request.tag, part, self.version))
            at = end
        return replies

    # --- what is refused ---

    def _problem(self, request: Request) -> str | None:
        if request.kind not in self.functions:
            return f"nothing answers {request.kind!r}{known_names(request.kind, self.functions)}"
        if request.rows < 1:
            return f"{request.rows} rows, expected at least 1"
        for name, row in self.defaults.get(request.kind, {}).items():
            if name not in request.columns:
                request.columns[name] = np.repeat(row[None], request.rows, axis=0)
        if self.layouts is not None:
            found = problem(request.columns, request.rows, self.layouts[request.kind])
            if found is not None:
                return found
        check = self.checks.get(request.kind)
        return None if check is None else check(request.columns)


def problem(columns: Columns, rows: int, layout: Layout) -> str | None:
    """What is wrong with columns that are to have a layout, in one line."""
    for name, (shape, dtype) in layout.items():
        if name not in columns:
            return f"no column {name!r}; there are {', '.join(sorted(columns)) or 'none'}"
        column = columns[name]
        if column.shape != (rows, *shape):
            return f"{name} has shape {list(column.shape)}, expected {[rows, *shape]}"
        if column.dtype != dtype:
            return f"{name} is {column.dtype}, expected {dtype}"
        if dtype.kind == "f" and not np.isfinite(column).all():
            return f"{name} holds NaN or infinity"
    if len(columns) > len(layout):
        return f"unknown columns: {', '.join(sorted(set(columns) - set(layout)))}"
    return None


def _side_by_side(parts: Sequence[Columns]) -> Columns:
    if len(parts) == 1:
        return parts[0]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
