"""The engine in this process: calls run at once, in order, with nothing copied unless strict."""

from __future__ import annotations

import operator
import os
import pickle
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from podium.core.errors import WorkerDied
from podium.engine.base import Handle, Ref, Resources


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
    """An object of this process."""

    def __init__(self, target: Any, name: str, copy: Callable[[Any], Any]) -> None:
        self.name = name
        self._target = target
        self._copy = copy

    def call(self, method: str, *args: Any, **kwargs: Any) -> LocalRef:
        if self._target is None:
            return LocalRef(error=WorkerDied(f"{self.name} is gone"))
        try:
            args, kwargs = _resolve(args), {key: _resolve(value) for key, value in kwargs.items()}
            args, kwargs = self._copy((args, kwargs))
            return LocalRef(self._copy(getattr(self._target, method)(*args, **kwargs)))
        except Exception as error:
            return LocalRef(error=error)

    def close(self) -> None:
        target, self._target = self._target, None
        if hasattr(target, "close"):
            target.close()


class LocalEngine:
    """Everything in this process. `strict` pickles every argument and result, so that an alias which a cluster would
    break, or a value it could not send, shows here."""

    def __init__(self, strict: bool = False) -> None:
        self._copy = _through_pickle if strict else _as_it_is
        self._handles: list[LocalHandle] = []

    def spawn(
        self,
        factory: Callable[..., Any],
        *args: Any,
        name: str = "",
        resources: Resources = Resources(),
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

    def wait(self, refs: Sequence[Ref], n: int = 1, timeout: float | None = None) -> tuple[list[Ref], list[Ref]]:
        """Every call has ended when it returns: the first `n` are ready, in order."""
        return list(refs[:n]), list(refs[n:])

    def kill(self, handle: Handle) -> None:
        assert isinstance(handle, LocalHandle)
        if handle in self._handles:
            self._handles.remove(handle)
        handle.close()

    def processes(self) -> list[dict[str, Any]]:
        return [{"role": "controller", "index": 0, "pid": os.getpid()}]

    def close(self) -> None:
        """Close every object, the newest first, also when one of them fails to."""
        with ExitStack() as stack:
            for handle in self._handles:
                stack.callback(handle.close)
            self._handles.clear()


def _resolve(value: Any) -> Any:
    """Put the value in the place of each Ref, in the arguments themselves and directly inside their sequences."""
    if isinstance(value, LocalRef):
        return value.value()
    if type(value) in (list, tuple):
        items = [_resolve(item) for item in value]
        return type(value)(items) if any(map(operator.is_not, items, value)) else value
    return value


def _through_pickle(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value, protocol=5))


def _as_it_is(value: Any) -> Any:
    return value
