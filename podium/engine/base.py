"""Where code runs, as one small interface: spawn an object, call it, wait for what it returns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class Resources:
    """What a spawned object reserves; nothing by default, since a worker takes no exclusive core unless asked."""

    cpus: float = 0.0
    gpus: float = 0.0
    memory_bytes: int = 0


class Ref(Protocol):
    """A result that may still be under way. A Ref among a call's arguments arrives as its value."""


class Handle(Protocol):
    """A spawned object, wherever it lives."""

    name: str

    def call(self, method: str, *args: Any, **kwargs: Any) -> Ref: ...


class Engine(Protocol):
    """`local` runs in this process, eagerly and in order; others run elsewhere, with the same results."""

    def spawn(
        self, factory: Callable[..., Any], *args: Any, name: str = "", resources: Resources = ..., **kwargs: Any
    ) -> Handle: ...
    def put(self, value: Any) -> Ref: ...
    def get(self, refs: Any, timeout: float | None = None) -> Any: ...
    def wait(self, refs: Sequence[Ref], n: int = 1, timeout: float | None = None) -> tuple[list[Ref], list[Ref]]: ...
    def kill(self, handle: Handle) -> None: ...
    def processes(self) -> list[dict[str, Any]]: ...
    def close(self) -> None: ...
