"""Rows over torch.distributed.rpc: the server and its callers are the ranks of one group, and a pass answers many."""

from __future__ import annotations

import atexit
import ipaddress
import os
import socket
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import torch
from torch.distributed import PrefixStore, TCPStore, autograd, rpc  # type: ignore[attr-defined]

from podium.core.errors import CallTimedOut, PodiumError
from podium.core.spaces import Columns
from podium.serving.base import WAIT_S, Answer, ServerGone
from podium.serving.desk import Desk
from podium.serving.server import BadRequest, Reply
from podium.serving.wire import Wire

SCHEME = "torch-rpc"
THREADS = 1
"""Of each process for calls: no call waits in one, and more of them only wait for each other's turn."""

SOCKETS, MEMORY = ["uv"], ["shm", "uv"]
POLLING = 16
"""So many ranks of one machine talk through memory, for which a thread of each looks all the time, giving its core away
again and again: that halves what a call takes, and with more ranks nobody gets to work any more."""

ANSWERED, REFUSED, FAILED = range(3)
Told = tuple[int, int, bytes]
"""The version, what became of the request, and the columns or what went wrong."""


@dataclass(frozen=True)
class Counter:
    """Where a server's callers come to."""

    desk: Desk
    wire: Wire


_counters: dict[str, Counter] = {}
"""The servers of this process, by the names of their ranks."""


class TorchRpcTransport:
    """The group's first rank. It listens from the beginning; callers are answered once `join` has found them all: a group
    has a size, and nobody can come later. Whoever reaches it can run code in it, since torch unpickles what it is sent."""

    def __init__(self, desk: Desk, host: str, port: int, world: int, name: str = "server") -> None:
        self._desk, self.name, self.world = desk, name, world
        family = socket.getaddrinfo(host, port)[0][0]
        self._socket = socket.create_server((host, port), family=family, backlog=max(world, 128))
        self._host, self._port = host, int(self._socket.getsockname()[1])

    @property
    def address(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{SCHEME}://{host}:{self._port}/{self.name}/{self.world}"

    def join(self, timeout: float = WAIT_S) -> None:
        """Meet everybody."""
        wait = timedelta(seconds=timeout)
        # Kept also where somebody is missing: the others ask it who that is.
        self._store = store = TCPStore(
            self._host, self._port, self.world, True, wait, False, master_listen_fd=self._socket.detach()
        )
        _counters[self.name] = Counter(self._desk, Wire())
        _join(store, self._host, self.name, 0, self.world, timeout)

    def close(self) -> None:
        _counters.pop(self.name, None)
        self._socket.close()
        _leave()


class TorchRpcClient:
    """A rank above 0; one in a process. Making it is joining: it returns when everybody is there."""

    def __init__(self, address: str, rank: int, name: str, timeout: float = WAIT_S) -> None:
        parts = urlsplit(address)
        host, port = str(parts.hostname), int(parts.port or 0)
        self._server_name, world = parts.path.strip("/").rsplit("/", 1)
        try:
            store = TCPStore(host, port, int(world), False, timedelta(seconds=timeout), False)
        except RuntimeError as error:
            raise ServerGone(f"nobody answers at {host}:{port}: {_line(error)}") from None
        _join(store, host, name, rank, int(world), timeout)
        self._server = rpc.get_worker_info(self._server_name)
        self._wire = Wire()

    def ask(self, columns: Columns, kind: str = "act", timeout: float = WAIT_S) -> Answer:
        try:
            version, status, body = rpc.rpc_sync(
                self._server, _ask, args=(self._server_name, self._wire.pack(columns, kind)), timeout=timeout
            )
        except RuntimeError as failed:
            if "timeout" in str(failed):
                raise CallTimedOut(f"{self._server_name} did not answer within {timeout:g} s") from None
            raise ServerGone(f"{self._server_name} is gone: {_line(failed)}") from None
        if status != ANSWERED:
            raise BadRequest(body.decode()) if status == REFUSED else PodiumError(body.decode())
        return Answer(self._wire.read(memoryview(bytearray(body)))[0], version)

    def close(self) -> None:
        _leave()


@rpc.functions.async_execution
def _ask(server: str, body: bytes) -> torch.futures.Future[Told]:
    """Runs in the server's process; the answer is sent when a pass has it, and no thread waits for that."""
    answer: torch.futures.Future[Told] = torch.futures.Future()
    counter = _counters.get(server)
    if counter is None:
        answer.set_result((0, FAILED, f"{server} has ended".encode()))
        return answer
    try:
        columns, kind = counter.wire.read(memoryview(body))
    except BadRequest as error:
        answer.set_result((0, REFUSED, str(error).encode()))
        return answer
    rows = len(next(iter(columns.values()), ()))
    counter.desk.submit(columns, rows, kind, lambda reply: answer.set_result(_told(reply, counter.wire)))
    return answer


def _told(reply: Reply, wire: Wire) -> Told:
    """Errors as what they say: their types needn't be known to the caller."""
    if reply.error is None:
        return reply.version, ANSWERED, wire.pack(reply.columns, "")
    if isinstance(reply.error, BadRequest):
        return reply.version, REFUSED, str(reply.error).encode()
    return reply.version, FAILED, f"{type(reply.error).__name__}: {reply.error}".encode()


# --- joining ---


def _join(store: Any, host: str, name: str, rank: int, world: int, timeout: float) -> None:
    """Be there, wait for the others, and become able to call and be called."""
    _wait_for_all(store, rank, world, timeout)
    if _is_loopback(host):
        os.environ["TP_SOCKET_IFNAME"] = next(found for _, found in socket.if_nameindex() if found.startswith("lo"))
    options = rpc.TensorPipeRpcBackendOptions(
        num_worker_threads=THREADS,
        rpc_timeout=timeout,
        _transports=MEMORY if world <= POLLING and _is_loopback(host) else SOCKETS,
        _channels=["basic"],
    )
    store.set_timeout(timedelta(seconds=timeout))
    atexit.register(_leave)  # the threads of torch's agent would abort a process that ends without it
    lib: Any = rpc
    gradients: Any = autograd
    try:
        gradients._init(rank)
        # What `init_rpc` does, less the connections that it makes between all ranks: callers connect to the server alone.
        agent = lib.TensorPipeAgent(PrefixStore("rpc", store), name, rank, world, options, {}, [])
        lib.api._init_rpc_states(agent)
    except RuntimeError as error:
        raise ServerGone(f"{name} could not join the group of {world}: {_line(error)}") from None


def _wait_for_all(store: Any, rank: int, world: int, timeout: float) -> None:
    keys = [f"rank-{other}" for other in range(world)]
    store.set(keys[rank], b"here")
    try:
        store.wait(keys, timedelta(seconds=timeout))
    except RuntimeError:
        try:
            absent = [str(other) for other, key in enumerate(keys) if not store.check([key])]
        except RuntimeError:
            raise ServerGone("the group's first rank is gone") from None
        who = f"rank {absent[0]} has" if len(absent) == 1 else f"ranks {', '.join(absent)} have"
        raise CallTimedOut(f"{who} not joined within {timeout:g} s") from None


def _leave() -> None:
    atexit.unregister(_leave)
    lib: Any = rpc
    if lib.api._is_current_rpc_agent_set():
        rpc.shutdown(graceful=False)


def _is_loopback(host: str) -> bool:
    return ipaddress.ip_address(socket.gethostbyname(host) if ":" not in host else host).is_loopback


def _line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
