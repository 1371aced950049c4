"""Where code runs, as one small interface: spawn an object, call it, wait for what it returns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

PATIENCE_S = 120.0


@dataclass(frozen=True)
class Resources:
    """What a spawned object reserves; nothing by default, since a worker takes no exclusive core unless asked. `near`
    asks for the machine of whoever spawns it, if that has the room: what holds the weights is not to be lost with
    another one."""

    cpus: float = 0.0
    gpus: float = 0.0
    memory_bytes: int = 0
    near: bool = False

    def __add__(self, other: Resources) -> Resources:
        memory = self.memory_bytes + other.memory_bytes
        return Resources(self.cpus + other.cpus, self.gpus + other.gpus, memory, self.near or other.near)

    def __bool__(self) -> bool:
        return bool(self.cpus or self.gpus or self.memory_bytes)


class Ref(Protocol):
    """A result that may still be under way. A Ref among a call's arguments arrives as its value."""


class Handle(Protocol):
    """A spawned object, wherever it lives. `ready` is its start; a call that fails keeps its error until somebody gets
    or checks it."""

    @property
    def name(self) -> str: ...
    @property
    def ready(self) -> Ref: ...
    def call(self, method: str, *args: Any, **kwargs: Any) -> Ref: ...
    def brief(self, method: str, *args: Any) -> Ref:
        """A call for its value alone, which is small: there is nothing to check or to wait for beside it."""
        ...

    def split(self, n: int, method: str, *args: Any) -> Sequence[Ref]:
        """Call a method that returns `n` values, each of which becomes a Ref of its own."""
        ...


class Group(Protocol):
    """Objects whose methods run together and meet in `reduce` (`podium.core.sgd.Reduce`).

    Sums go in the order of the members, so that every engine rounds alike. When a member fails, the others' calls fail
    too, with `GroupBroken`, and the group is of no more use.
    """

    @property
    def handles(self) -> Sequence[Handle]: ...
    def call(self, method: str, args: Sequence[Sequence[Any]]) -> Sequence[Ref]:
        """Call the method on every member with its own arguments and `reduce=`; one Ref for each, in order."""
        ...

    def close(self) -> None: ...


class Engine(Protocol):
    """`local` runs in this process, eagerly and in order; others run elsewhere, with the same results.

    `get` fetches values, `check` only raises what a finished call raised, and leaves the value where it is. An engine
    can be sent to a spawned object, which then spawns in the same place: `child` says for how much. Where `apart` holds,
    spawned objects run beside each other.

    The calls of a spawned object run one after the other, in their order. One with several `callers` takes that many at
    once: a method that has to wait for others' calls returns a `concurrent.futures.Future`, with whose result the call
    ends. On `local` a call runs in the thread that makes it.
    """

    @property
    def apart(self) -> bool: ...
    def device(self, name: str, place: int) -> str:
        """What the device of a learner is called where that lives; several have places from 0."""
        ...

    def spawn(
        self,
        factory: Callable[..., Any],
        *args: Any,
        name: str = "",
        resources: Resources = ...,
        callers: int = 1,
        **kwargs: Any,
    ) -> Handle: ...
    def put(self, value: Any) -> Ref: ...
    def get(self, refs: Any, timeout: float | None = None) -> Any: ...
    def check(self, ref: Ref, timeout: float | None = None) -> None: ...
    def wait(
        self, refs: Sequence[Ref], n: int = 1, timeout: float | None = None
    ) -> tuple[Sequence[Ref], Sequence[Ref]]: ...
    def kill(self, handle: Handle) -> None: ...
    def child(self, reserve: Sequence[Resources] = ()) -> Engine: ...
    def group(self, handles: Sequence[Handle], patience: float = ...) -> Group:
        """A member that has waited for another one for `patience` seconds gives the group up."""
        ...

    def processes(self) -> list[dict[str, Any]]: ...
    def close(self) -> None: ...
