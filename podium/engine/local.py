"""The engine in this process: calls run at once, in order, with nothing copied unless strict."""

from __future__ import annotations

import operator
import os
import pickle
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from typing import Any

import numpy as np

from podium.core.errors import ArgumentLost, GroupBroken, WorkerDied
from podium.engine.base import PATIENCE_S, Handle, Ref, Resources


class LocalRef:
    """A value, or the error that its call raised, which `get` raises again."""

    __slots__ = ("_error", "_value")

    def __init__(self, value: Any = None, error: BaseException | None = None) -> None:
        self._value = value
        self._error = error

    def value(self) -> Any:
        if self._error is not None:
            raise self._error
        return self._value


class LocalHandle:
    """An object of this process. A strict engine's handle that is sent along arrives as the same handle."""

    def __init__(self, target: Any, name: str, copy: Callable[[Any], Any]) -> None:
        self.name = name
        self.ready = LocalRef()
        self._target = target
        self._copy = copy
        _HANDLES[id(self)] = self

    def __reduce__(self) -> tuple[Any, ...]:
        return _same_handle, (id(self),)

    def call(self, method: str, *args: Any, **kwargs: Any) -> LocalRef:
        return self.invoke(method, args, kwargs, {})

    def brief(self, method: str, *args: Any) -> LocalRef:
        return self.call(method, *args)

    def split(self, n: int, method: str, *args: Any) -> list[LocalRef]:
        whole = self.call(method, *args)
        try:
            values = whole.value()
        except Exception:
            return [whole] * n
        return [LocalRef(value) for value in values]

    def invoke(self, method: str, args: Any, kwargs: dict[str, Any], as_they_are: dict[str, Any]) -> LocalRef:
        """Call with arguments of which some are never copied."""
        if self._target is None:
            return LocalRef(error=WorkerDied(f"{self.name} is gone"))
        try:
            args, kwargs = _resolve(args), {key: _resolve(value) for key, value in kwargs.items()}
            args, kwargs = self._copy((args, kwargs))
            value = getattr(self._target, method)(*args, **kwargs, **as_they_are)
            return LocalRef(self._copy(value.result(PATIENCE_S) if isinstance(value, Future) else value))
        except Exception as error:
            return LocalRef(error=error)

    def processes(self) -> list[dict[str, Any]]:
        """The processes that the object runs beside this one."""
        return self._target.processes() if hasattr(self._target, "processes") else []

    def close(self) -> None:
        target, self._target = self._target, None
        if hasattr(target, "close"):
            target.close()


_HANDLES: weakref.WeakValueDictionary[int, LocalHandle] = weakref.WeakValueDictionary()


def _same_handle(key: int) -> LocalHandle:
    return _HANDLES[key]


class LocalEngine:
    """Everything in this process. `strict` pickles every argument and result, so that an alias which a cluster would
    break, or a value it could not send, shows here."""

    apart = False

    def __init__(self, strict: bool = False) -> None:
        self._strict = strict
        self._copy = _through_pickle if strict else _as_it_is
        self._handles: list[LocalHandle] = []

    def device(self, name: str, place: int) -> str:
        """All of them are here, by their numbers."""
        return f"cuda:{place}" if name == "cuda" and place else name

    def spawn(
        self,
        factory: Callable[..., Any],
        *args: Any,
        name: str = "",
        resources: Resources = Resources(),
        callers: int = 1,
        **kwargs: Any,
    ) -> LocalHandle:
        args, kwargs = self._copy((_resolve(args), {key: _resolve(value) for key, value in kwargs.items()}))
        handle = LocalHandle(factory(*args, **kwargs), name or f"local-{len(self._handles)}", self._copy)
        self._handles.append(handle)
        return handle

    def put(self, value: Any) -> LocalRef:
        return LocalRef(self._copy(value))

    def get(self, refs: Any, timeout: float | None = None) -> Any:
        """The value of one Ref, or the values of a sequence of them."""
        return [self.get(ref) for ref in refs] if isinstance(refs, Sequence) else self._copy(refs.value())

    def check(self, ref: Ref, timeout: float | None = None) -> None:
        assert isinstance(ref, LocalRef)
        ref.value()

    def wait(
        self, refs: Sequence[Ref], n: int = 1, timeout: float | None = None
    ) -> tuple[Sequence[Ref], Sequence[Ref]]:
        """Every call has ended when it returns: the first `n` are ready, in order."""
        return list(refs[:n]), list(refs[n:])

    def kill(self, handle: Handle) -> None:
        assert isinstance(handle, LocalHandle)
        if handle in self._handles:
            self._handles.remove(handle)
        handle.close()

    def child(self, reserve: Sequence[Resources] = ()) -> LocalEngine:
        return LocalEngine(self._strict)

    def group(self, handles: Sequence[Handle], patience: float = PATIENCE_S) -> LocalGroup:
        """Members are threads of this process, where nothing can be given up: there is no limit to their patience."""
        return LocalGroup(handles)

    def processes(self) -> list[dict[str, Any]]:
        mine = [{"role": "controller", "index": 0, "pid": os.getpid()}]
        return [*mine, *(process for handle in self._handles for process in handle.processes())]

    def __reduce__(self) -> tuple[Any, ...]:
        """Sent to a spawned object it arrives as an engine of its own."""
        return LocalEngine, (self._strict,)

    def close(self) -> None:
        """Close every object, the newest first, also when one of them fails to."""
        with ExitStack() as stack:
            for handle in self._handles:
                stack.callback(handle.close)
            self._handles.clear()


class LocalGroup:
    """Members that run each in a thread of its own, for as long as a call takes, so that they can meet."""

    def __init__(self, handles: Sequence[Handle]) -> None:
        self.handles = list(handles)

    def call(self, method: str, args: Sequence[Sequence[Any]]) -> Sequence[Ref]:
        meeting = Meeting(len(self.handles))
        results: list[Ref] = [LocalRef() for _ in self.handles]

        def run(rank: int) -> None:
            handle: Any = self.handles[rank]
            try:
                results[rank] = handle.invoke(method, tuple(args[rank]), {}, {"reduce": LocalReduce(meeting, rank)})
            finally:
                meeting.leave()

        threads = [threading.Thread(target=run, args=(rank,), name=f"rank-{rank}") for rank in range(meeting.size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results

    def close(self) -> None:
        """Nothing stays between calls."""


class Meeting:
    """Where the members' arrays are added up once all of them are there. Nobody waits for one who has left."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._changed = threading.Condition()
        self._arrays: dict[int, np.ndarray] = {}
        self._round = 0
        self._someone_left = False
        self._mean = np.zeros(0)

    def meet(self, rank: int, values: np.ndarray) -> np.ndarray:
        with self._changed:
            current = self._round
            self._arrays[rank] = values
            if len(self._arrays) == self.size:
                self._mean = mean_in_order([self._arrays[i] for i in range(self.size)])
                self._arrays, self._round = {}, current + 1
                self._changed.notify_all()
            while self._round == current:
                if self._someone_left:
                    raise GroupBroken("another member of the group has left it")
                self._changed.wait()
            return self._mean.copy()

    def leave(self) -> None:
        with self._changed:
            self._someone_left = True
            self._changed.notify_all()


class LocalReduce:
    """One member's way into the meeting."""

    def __init__(self, meeting: Meeting, rank: int) -> None:
        self.size, self.rank = meeting.size, rank
        self._meeting = meeting

    def __call__(self, values: np.ndarray) -> np.ndarray:
        return self._meeting.meet(self.rank, values)


def mean_in_order(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """The mean, added up from the first to the last, as every engine does it."""
    total = arrays[0].copy()
    for array in arrays[1:]:
        total += array
    total /= len(arrays)
    return total


def _resolve(value: Any) -> Any:
    """Put the value in the place of each Ref, in the arguments themselves and directly inside their sequences."""
    if isinstance(value, LocalRef):
        try:
            return value.value()
        except WorkerDied as error:
            raise ArgumentLost(f"an argument is gone with who was to give it: {error}") from error
    if type(value) in (list, tuple):
        items = [_resolve(item) for item in value]
        return type(value)(items) if any(map(operator.is_not, items, value)) else value
    return value


def _through_pickle(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value, protocol=5))


def _as_it_is(value: Any) -> Any:
    return value
