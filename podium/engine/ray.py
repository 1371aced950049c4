"""The engine on Ray: every spawned object is an actor, every result a reference into the object store."""

from __future__ import annotations

import _thread
import asyncio
import contextlib
import logging
import os
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import ray
from ray import cloudpickle
from ray._private import ray_constants, services
from ray._private import utils as ray_utils
from ray._private import worker as ray_worker
from ray._raylet import Config  # type: ignore[attr-defined]
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from podium.core.errors import ArgumentLost, CallTimedOut, GroupBroken, PodiumError, UsageError, WorkerDied
from podium.engine.address import check_listening
from podium.engine.base import PATIENCE_S, Handle, Ref, Resources
from podium.engine.groups import Groups

LOOPBACK = "127.0.0.1"
CLOSE_S = 2.0
RESERVE_S = 60.0
ATTEMPTS = 2
MANY_CALLS = 1000
SIGNALS = {signal.SIGINT, signal.SIGTERM}


@dataclass(frozen=True)
class RayRef:
    """A call's value, beside it what became of the call (small, so that asking fetches no value), and who was called."""

    value: Any
    outcome: Any | None = None
    who: str = "a worker"


def _ref(returned: Sequence[Any], who: str) -> RayRef:
    value, outcome = returned
    return RayRef(value, outcome, who)


class Host:
    """The actor that holds one spawned object. What may take long returns twice: the value, and that there is one."""

    def __init__(self) -> None:
        self._target: Any = None
        self._failed: Exception | None = None
        self._stores: dict[str, Any] = {}
        self._reduces: dict[str, Any] = {}

    @ray.method(num_returns=2)
    def start(self, factory: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[Any, None]:
        with _carrying():
            try:
                self._target = factory(*_resolve(args), **{key: _resolve(value) for key, value in kwargs.items()})
            except Exception as error:
                self._failed = error
                raise
            own = self._target.processes() if hasattr(self._target, "processes") else []
            return [{"pid": os.getpid()}, *own], None

    @ray.method(num_returns=2)
    def call(self, method: str, *args: Any, **kwargs: Any) -> tuple[Any, None]:
        with _carrying():
            return self._method(method)(*_resolve(args), **{k: _resolve(v) for k, v in kwargs.items()}), None

    def brief(self, method: str, *args: Any) -> Any:
        with _carrying():
            return self._method(method)(*args)

    def split(self, method: str, *args: Any) -> tuple[Any, ...]:
        with _carrying():
            return (*self._method(method)(*_resolve(args)), None)

    def _method(self, name: str) -> Callable[..., Any]:
        if self._failed is not None:
            raise self._failed
        return getattr(self._target, name)

    def open_group(self, group: str, rank: int) -> tuple[str, int] | None:
        """The first member's address; the others say by their answer that they are there."""
        from podium.engine.collective import Store

        if rank:
            return None
        store = self._stores[group] = Store(ray.util.get_node_ip_address())
        return store.address

    @ray.method(num_returns=2)
    def join_group(
        self, group: str, rank: int, size: int, address: tuple[str, int], patience: float
    ) -> tuple[None, None]:
        from podium.engine.collective import TorchReduce

        with _carrying():
            host = ray.util.get_node_ip_address()
            self._reduces[group] = TorchReduce(rank, size, address, host, self._stores.pop(group, None), patience)
            return None, None

    @ray.method(num_returns=2)
    def call_in_group(self, group: str, method: str, *args: Any) -> tuple[Any, None]:
        with _carrying():
            reduce = self._reduces.get(group)
            if reduce is None:
                raise GroupBroken("the group was left when one of its members failed")
            try:
                return self._method(method)(*_resolve(args), reduce=reduce), None
            except BaseException:
                self.leave_group(group)  # the others would wait for this one
                raise

    def leave_group(self, group: str) -> None:
        if (reduce := self._reduces.pop(group, None)) is not None:
            reduce.close()

    def close(self) -> None:
        if hasattr(self._target, "close"):
            self._target.close()


class SharedHost(Host):
    """One that takes several calls at once, in one thread and in no order: they wait for the start, and who returns a
    Future doesn't hold the others up."""

    def __init__(self) -> None:
        super().__init__()
        self._started = asyncio.Event()

    @ray.method(num_returns=2)
    async def start(self, factory: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[Any, None]:
        try:
            return super().start(factory, *args, **kwargs)
        finally:
            self._started.set()

    @ray.method(num_returns=2)
    async def call(self, method: str, *args: Any, **kwargs: Any) -> tuple[Any, None]:
        await self._start()
        value, outcome = super().call(method, *args, **kwargs)
        return await _come_true(value), outcome

    async def brief(self, method: str, *args: Any) -> Any:
        await self._start()
        return await _come_true(super().brief(method, *args))

    async def _start(self) -> None:
        if not self._started.is_set():
            await asyncio.wait_for(self._started.wait(), PATIENCE_S)


async def _come_true(value: Any) -> Any:
    with _carrying():
        return await asyncio.wrap_future(value) if isinstance(value, Future) else value


class RayHandle:
    """An object in an actor; it may be sent to others. `ready` is its start, with the processes that it made."""

    def __init__(self, actor: Any, name: str, ready: RayRef) -> None:
        self.actor, self.name, self.ready = actor, name, ready
        self.processes: list[dict[str, Any]] | None = None

    def call(self, method: str, *args: Any, **kwargs: Any) -> RayRef:
        called = self.actor.call.remote(method, *map(_top, args), **{k: _top(v) for k, v in kwargs.items()})
        return _ref(called, self.name)

    def brief(self, method: str, *args: Any) -> RayRef:
        return RayRef(self.actor.brief.remote(method, *args), who=self.name)

    def split(self, n: int, method: str, *args: Any) -> list[RayRef]:
        *values, outcome = self.actor.split.options(num_returns=n + 1).remote(method, *map(_top, args))
        return [RayRef(value, outcome, self.name) for value in values]


class RayGroup:
    """Actors that reduce over torch.distributed among themselves."""

    def __init__(self, engine: RayEngine, handles: Sequence[Any], patience: float) -> None:
        self.handles = list(handles)
        self._name = uuid.uuid4().hex
        size = len(self.handles)
        opened = [handle.actor.open_group.remote(self._name, rank) for rank, handle in enumerate(self.handles)]
        addresses = []
        for handle, one in zip(self.handles, opened, strict=True):
            with _typed(handle.name):
                addresses.append(ray.get(one))
        joined = [
            _ref(handle.actor.join_group.remote(self._name, rank, size, addresses[0], patience), handle.name)
            for rank, handle in enumerate(self.handles)
        ]
        for ref in joined:
            engine.check(ref)

    def call(self, method: str, args: Sequence[Sequence[Any]]) -> Sequence[Ref]:
        calls = zip(self.handles, args, strict=True)
        return [
            _ref(handle.actor.call_in_group.remote(self._name, method, *map(_top, given)), handle.name)
            for handle, given in calls
        ]

    def close(self) -> None:
        for handle in self.handles:
            handle.actor.leave_group.remote(self._name)


class RayEngine:
    """Ray, attached to the cluster at `address`, or started here and then ended by `close`. Within a process that is part
    of a cluster already, it uses that one."""

    apart = True

    def __init__(
        self, address: str | None = None, num_cpus: int | None = None, reserved: PlacementGroup | None = None
    ) -> None:
        self._handles: list[RayHandle] = []
        self._reserved = reserved
        self._owns_reservation = False
        self._groups = Groups()
        self._joined = not ray.is_initialized()
        if self._joined:
            _attach(address) if address is not None else _start(num_cpus, self._groups)
        self._host = ray.remote(Host)
        self._shared_host = ray.remote(SharedHost)

    def device(self, name: str, place: int) -> str:
        """Each object sees the GPU that it reserves as its only one."""
        if name == "auto":
            return "cuda" if ray.cluster_resources().get("GPU", 0) > place else "cpu"
        return "cuda" if name.startswith("cuda") else name

    def spawn(
        self,
        factory: Callable[..., Any],
        *args: Any,
        name: str = "",
        resources: Resources = Resources(),
        callers: int = 1,
        **kwargs: Any,
    ) -> RayHandle:
        options: dict[str, Any] = {
            # Calls may wait for the start already, which must find room beside them: waiting takes none of a thread.
            "max_concurrency": 1 if callers == 1 else MANY_CALLS + callers,
            "num_cpus": resources.cpus,
            "num_gpus": resources.gpus,
            "memory": resources.memory_bytes or None,
            "max_restarts": 0,
            "max_task_retries": 0,
        }
        if self._reserved is not None:
            options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(
                self._reserved, placement_group_capture_child_tasks=True
            )
        elif resources.near:
            here = ray.get_runtime_context().get_node_id()
            # What reserves nothing has room everywhere; Ray takes a soft wish lightly there.
            options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(here, soft=bool(resources))
        actor = (self._host if callers == 1 else self._shared_host).options(**options).remote()
        given = {key: _top(value) for key, value in kwargs.items()}
        name = name or f"ray-{len(self._handles)}"
        ready = _ref(actor.start.remote(factory, *map(_top, args), **given), name)
        handle = RayHandle(actor, name, ready)
        self._handles.append(handle)
        return handle

    def put(self, value: Any) -> RayRef:
        return RayRef(ray.put(value))

    def get(self, refs: Any, timeout: float | None = None) -> Any:
        """The value of one Ref, or the values of a sequence of them."""
        many = list(refs) if isinstance(refs, Sequence) else [refs]
        limit = None if timeout is None else time.monotonic() + timeout
        try:
            values = ray.get([ref.value for ref in many], timeout=timeout)
        except Exception:
            for ref in many:  # the first of them to fail tells whose call it was
                self.check(ref, None if limit is None else max(limit - time.monotonic(), 0.0))
            with _typed(many[0].who):
                raise
        return values if isinstance(refs, Sequence) else values[0]

    def check(self, ref: Any, timeout: float | None = None) -> None:
        if ref.outcome is None:
            return
        with _typed(ref.who):
            ray.get(ref.outcome, timeout=timeout)

    def wait(
        self, refs: Sequence[Any], n: int = 1, timeout: float | None = None
    ) -> tuple[Sequence[Ref], Sequence[Ref]]:
        """Refs whose calls have ended, in well or not, and the rest; values stay where they are."""
        by_key = {ref.outcome if ref.outcome is not None else ref.value: ref for ref in refs}
        ready, rest = ray.wait(list(by_key), num_returns=min(n, len(by_key)), timeout=timeout, fetch_local=False)
        return [by_key[key] for key in ready], [by_key[key] for key in rest]

    def kill(self, handle: Handle) -> None:
        assert isinstance(handle, RayHandle)
        self._handles = [other for other in self._handles if other is not handle]
        ray.kill(handle.actor)

    def child(self, reserve: Sequence[Resources] = ()) -> RayEngine:
        """An engine to be sent to a spawned object. What it will spawn there is reserved at once and together, so that
        engines within engines can't wait for each other's halves."""
        bundles = [_bundle(resources) for resources in reserve if resources]
        if not bundles:
            return RayEngine(reserved=self._reserved)
        group = placement_group(bundles)
        if not group.wait(RESERVE_S):
            remove_placement_group(group)
            raise PodiumError(f"could not reserve {bundles} within {RESERVE_S:.0f} s: there is {cluster()}")
        engine = RayEngine(reserved=group)
        engine._owns_reservation = True
        return engine

    def group(self, handles: Sequence[Handle], patience: float = PATIENCE_S) -> RayGroup:
        return RayGroup(self, handles, patience)

    def processes(self) -> list[dict[str, Any]]:
        """This process, and those of the objects that have told theirs; nobody is waited for, and each is asked once."""
        found: list[dict[str, Any]] = [{"role": "controller", "index": 0, "pid": os.getpid()}]
        for handle in self._handles:
            if handle.processes is None and ray.wait([handle.ready.value], timeout=0)[0]:
                handle.processes = self._processes_of(handle)
            found += handle.processes or []
        return found

    def _processes_of(self, handle: RayHandle) -> list[dict[str, Any]]:
        role, _, index = handle.name.rpartition("-")
        try:
            own, *others = self.get(handle.ready)
        except Exception:
            return []
        return [{"role": role or handle.name, "index": int(index) if index.isdigit() else 0, **own}, *others]

    def __reduce__(self) -> tuple[Any, ...]:
        return RayEngine, (None, None, self._reserved)

    def close(self) -> None:
        """End every object spawned here, and Ray itself where this engine started it."""
        handles, self._handles = self._handles, []
        try:
            if ray.is_initialized():
                self._close(handles)
        finally:
            self._groups.end()

    def _close(self, handles: Sequence[RayHandle]) -> None:
        up = [handle for handle in handles if ray.wait([handle.ready.outcome], timeout=0, fetch_local=False)[0]]
        closing = [handle.actor.close.remote() for handle in up]
        if closing:
            with contextlib.suppress(Exception):
                ray.wait(closing, num_returns=len(closing), timeout=CLOSE_S, fetch_local=False)
        for handle in handles:
            with contextlib.suppress(Exception):
                ray.kill(handle.actor)
        if self._owns_reservation and self._reserved is not None:
            remove_placement_group(self._reserved)
        if self._joined:
            _leave()


def cluster() -> dict[str, float]:
    """What the cluster has in all: CPU, GPU, memory."""
    return {name: amount for name, amount in ray.cluster_resources().items() if name in ("CPU", "GPU", "memory")}


def _start(num_cpus: int | None, groups: Groups) -> None:
    """A cluster of this machine alone. Now and then, as where two of them start at once, it doesn't come up within the
    half minute that Ray gives it: then once more."""
    for attempt in range(ATTEMPTS):
        try:
            _start_once(num_cpus, groups)
            return
        except BaseException as error:
            _leave()
            groups.end()
            if not (isinstance(error, Exception) and "timed out during startup" in str(error)):
                raise
            if attempt + 1 == ATTEMPTS:
                raise PodiumError(f"Ray did not come up in {ATTEMPTS} attempts; is the machine very busy?") from error


def _start_once(num_cpus: int | None, groups: Groups) -> None:
    """A token, no dashboard, nothing beyond loopback, nothing told to anyone; its processes are of the groups."""
    importable = os.pathsep.join(dict.fromkeys([os.getcwd(), *filter(None, sys.path)]))
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    Config.initialize("")  # what Ray read of the environment when it was imported is out of date
    with (
        _quietly(),
        _changed(os.environ, PYTHONPATH=importable),
        # The address is taken at its word only where no cluster of several nodes can be.
        _changed(vars(ray_constants), ENABLE_RAY_CLUSTER=False),
        _changed(vars(services), ConsolePopen=groups.start),
    ):
        ray.init(
            address="local",
            num_cpus=num_cpus,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            _node_ip_address=LOOPBACK,
        )


def _attach(address: str) -> None:
    """Join a running cluster; the code of the current folder goes along."""
    check_listening(address)
    far = ray_constants.ENABLE_RAY_CLUSTER and not _here_alone(address)
    try:
        with _quietly(), _changed(vars(ray_constants), ENABLE_RAY_CLUSTER=far):
            ray.init(
                address=address,
                log_to_driver=False,
                logging_level=logging.ERROR,
                runtime_env={"working_dir": os.getcwd(), "excludes": ["runs", ".git", ".venv", "*.mp4"]},
            )
    except (ConnectionError, ray.exceptions.RaySystemError) as error:
        raise UsageError(f"--address {address}: {str(error).splitlines()[0]}") from None


def _here_alone(address: str) -> bool:
    """Whether it is of a cluster that listens on loopback alone: Ray would look for it at this machine's other address."""
    host, _, port = address.rpartition(":")
    if host not in (LOOPBACK, "localhost"):
        return False
    try:
        check_listening(f"{services.get_node_ip_address()}:{port}")
    except UsageError:
        return True
    return False


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """For ray.init: signals stay the caller's, and what happens to workers is told by the errors of calls alone, not
    printed beside them."""
    handing_on = contextlib.ExitStack()
    ray_connect = ray_worker.connect

    def connect(*args: Any, **kwargs: Any) -> None:
        handing_on.close()  # what it makes can be ended when it is whole
        ray_connect(*args, **kwargs)

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")
    with (
        _signals_kept(),
        _changed(vars(ray_utils), set_sigterm_handler=lambda handler: None),
        _changed(vars(ray_worker), listen_error_messages=lambda worker, stopped: None, connect=connect),
        handing_on,
    ):
        handing_on.enter_context(_signals_handed_on())
        yield


def _leave() -> None:
    with _signals_kept():
        ray.shutdown()


@contextlib.contextmanager
def _signals_kept() -> Iterator[None]:
    """Ray's own code takes SIGTERM over while it comes up, and drops what was there when it ends; and a half of it can't
    be ended. So signals wait, also in the threads that begin meanwhile, and find the handlers that were there before."""
    with contextlib.ExitStack() as undo:
        undo.callback(signal.pthread_sigmask, signal.SIG_SETMASK, signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS))
        undo.callback(_put_back_sigterm)
        yield


def _put_back_sigterm() -> None:
    handler = signal.getsignal(signal.SIGTERM)
    if threading.current_thread() is threading.main_thread() and handler is not None:
        signal.signal(signal.SIGTERM, handler)


@contextlib.contextmanager
def _signals_handed_on() -> Iterator[None]:
    """While they are kept: Python's handlers, where it has any, learn of them all the same."""
    over = threading.Event()
    handled = {number for number in SIGNALS if callable(signal.getsignal(number))}

    def hand_on() -> None:
        while not over.wait(0.05):
            if handled & signal.sigpending():
                _thread.interrupt_main(signal.Signals(signal.sigwait(handled)))

    watch = threading.Thread(target=hand_on, daemon=True)
    watch.start()
    try:
        yield
    finally:
        over.set()
        watch.join(1.0)


def _top(value: Any) -> Any:
    """A Ref that stands as an argument is handed to Ray, which brings its value along."""
    return value.value if isinstance(value, RayRef) else value


def _resolve(value: Any) -> Any:
    """Values in the place of the Refs that stand in sequences, fetched together."""
    refs = list(_refs(value))
    if not refs:
        return value
    try:
        return _replaced(value, dict(zip(refs, ray.get(refs), strict=True)))
    except ray.exceptions.RayTaskError as error:
        raise _raised(error) from error
    except GONE as error:
        raise _lost(error) from None


def _refs(value: Any) -> Iterator[Any]:
    if isinstance(value, RayRef):
        yield value.value
    elif type(value) in (list, tuple):
        for item in value:
            yield from _refs(item)


def _replaced(value: Any, values: dict[Any, Any]) -> Any:
    if isinstance(value, RayRef):
        return values[value.value]
    return type(value)(_replaced(item, values) for item in value) if type(value) in (list, tuple) else value


def _bundle(resources: Resources) -> dict[str, float]:
    amounts = {"CPU": resources.cpus, "GPU": resources.gpus, "memory": float(resources.memory_bytes)}
    return {name: amount for name, amount in amounts.items() if amount}


class Carried(Exception):
    """An error on its way to whoever asks for the call's value, and there again what it was."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.error = error

    def __reduce__(self) -> tuple[Any, ...]:
        error = self.error
        args = error.args if _dumped(error.args) else (str(error),)
        state = {name: value for name, value in vars(error).items() if _dumped(value)}
        return _arrived, (type(error), args, state, _faithful(error))


def _arrived(kind: type[BaseException], args: tuple[Any, ...], state: dict[str, Any], dumped: bytes | None) -> Carried:
    """Where an error's own way of being sent loses something, it is made without its `__init__`, which may want other
    arguments than it has kept; notes are added in any case."""
    error = cloudpickle.loads(dumped) if dumped is not None else kind.__new__(kind, *args)
    vars(error).update(state)
    return Carried(error)


def _faithful(error: BaseException) -> bytes | None:
    """The error as it sends itself, if it arrives as the same."""
    dumped = _dumped(error)
    if dumped is None:
        return None
    try:
        again = cloudpickle.loads(dumped)
    except Exception:
        return None
    return dumped if type(again) is type(error) and str(again) == str(error) else None


def _dumped(value: Any) -> bytes | None:
    try:
        return cloudpickle.dumps(value)
    except Exception:
        return None


@contextlib.contextmanager
def _carrying() -> Iterator[None]:
    """What the code of a spawned object raises is sent to its caller whole."""
    try:
        yield
    except SystemExit as leaving:
        if hasattr(leaving, "ray_terminate_msg"):  # Ray's own, on SIGTERM
            raise
        raise Carried(RuntimeError(f"something called sys.exit({leaving.code!r})")) from leaving
    except Exception as error:
        raise Carried(error) from error


GONE = (
    ray.exceptions.RayActorError,
    ray.exceptions.WorkerCrashedError,
    ray.exceptions.NodeDiedError,
    ray.exceptions.ObjectLostError,
)


@contextlib.contextmanager
def _typed(who: str) -> Iterator[None]:
    """Ray's errors as ours; what the code itself raised as its own type."""
    try:
        yield
    except ray.exceptions.RayTaskError as error:
        raise _raised(error) from error
    except ray.exceptions.GetTimeoutError:
        raise CallTimedOut(f"{who} did not answer in time") from None
    except ray.exceptions.OutOfMemoryError as error:
        raise WorkerDied(f"{who} was ended: the machine is out of memory ({_line(error)})") from None
    except GONE as error:
        raise WorkerDied(f"{who} is gone: {_line(error)}") from None
    except ray.exceptions.RayError as error:
        raise PodiumError(f"{who}: {str(error).strip().splitlines()[-1]}") from error


def _raised(error: ray.exceptions.RayTaskError) -> Exception:
    """What a call raised, also where it is an argument that could not be had."""
    cause: Any = error.cause
    while isinstance(cause, ray.exceptions.RayTaskError):
        cause = cause.cause
    if isinstance(cause, Carried):
        cause = cause.error
    if isinstance(cause, GONE):
        return _lost(cause)
    return cause if isinstance(cause, Exception) else WorkerDied(str(error))


def _lost(error: BaseException) -> ArgumentLost:
    return ArgumentLost(f"an argument is gone with who was to give it: {_line(error)}")


def _line(error: BaseException) -> str:
    """The error's sentences in one line, without the table of Ray's ids."""
    lines = [line for line in str(error).splitlines() if not line.startswith("\t")]
    return " ".join(" ".join(lines).split()).partition(" Some common causes")[0][:300]


@contextlib.contextmanager
def _changed(names: MutableMapping[str, Any], **values: Any) -> Iterator[None]:
    """Some names with other values for a while."""
    before = {name: names.get(name) for name in values}
    names.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del names[name]
            else:
                names[name] = value
