"""Echoes of bytes over each transport in plain code, pinned: what it carries when nothing is done with it.

A server answers every request with a few bytes at once; each client sends its bytes, waits, and sends them again. No
policy, no batches, no checks, no reports. Nothing in here imports Podium.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import socket
import tempfile
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

THREADS, POLLING = 1, 16
_counted = 0


class Server:
    """The side that answers."""

    def __init__(self, host: str, port: int, clients: int, nbytes: int) -> None:
        self.host, self.port, self.clients, self.reply = host, port, clients, bytes(nbytes)

    def join(self, address: str) -> None:
        """What it does while clients connect."""

    def answer(self, request: bytes) -> bytes:
        global _counted
        _counted += 1
        return self.reply

    def mark(self) -> None:
        global _counted
        _counted = 0

    def served(self) -> int:
        return _counted

    def close(self) -> None:
        """Its process ends."""


class Client:
    """A side that asks."""

    def __init__(self, index: int, nbytes: int, warmup: int, requests: int, timeout: float) -> None:
        self.index, self.request = index, bytes(nbytes)
        self.warmup, self.requests, self.timeout = warmup, requests, timeout

    def ask(self) -> bytes:
        raise NotImplementedError

    def warm(self) -> None:
        for _ in range(self.warmup):
            self.ask()

    def play(self, start: float) -> tuple[float, float]:
        began = time.monotonic()
        for _ in range(self.requests):
            self.ask()
        return began, time.monotonic()

    def close(self) -> None:
        """Its process ends."""


# --- torch.distributed.rpc ---


class TorchServer(Server):
    def open(self) -> str:
        self.socket = socket.create_server((self.host, self.port))
        return f"{self.host} {self.port} {self.clients + 1} {len(self.reply)}"

    def join(self, address: str) -> None:
        torch_join(address, 0, "server", self.socket)


class TorchClient(Client):
    def join(self, address: str) -> None:
        from torch.distributed import rpc

        torch_join(address, self.index + 1, f"client-{self.index}")
        self.rpc, self.nbytes = rpc, int(address.split()[-1])

    def ask(self) -> bytes:
        reply: bytes = self.rpc.rpc_sync("server", echo, args=(self.request, self.nbytes), timeout=self.timeout)
        return reply


def echo(request: bytes, nbytes: int) -> bytes:
    global _counted
    _counted += 1
    return request[:nbytes]


def torch_join(address: str, rank: int, name: str, listening: socket.socket | None = None) -> None:
    """As torch's own documentation starts it, with its listeners on the loopback interface."""
    from torch.distributed import TCPStore, rpc  # type: ignore[attr-defined]
    from torch.distributed.rendezvous import register_rendezvous_handler

    host, port, world, _ = address.split()
    os.environ |= {"TP_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "lo"}
    wait = timedelta(seconds=60)
    fd: dict[str, Any] = {} if listening is None else {"master_listen_fd": listening.detach()}
    store: Any = TCPStore(host, int(port), int(world), rank == 0, wait, False, **fd)
    register_rendezvous_handler("bare", lambda url, **how: iter([(store, rank, int(world))]))
    options = rpc.TensorPipeRpcBackendOptions(
        num_worker_threads=THREADS,
        init_method="bare://",
        _transports=["shm", "uv"] if int(world) <= POLLING else ["uv"],
        _channels=["basic"],
    )
    warnings.simplefilter("ignore")  # torch's own, of a class that it uses itself
    rpc.init_rpc(name, rank=rank, world_size=int(world), rpc_backend_options=options)


# --- grpc ---


class GrpcServer(Server):
    def open(self) -> str:
        import grpc

        call = grpc.unary_unary_rpc_method_handler(lambda request, context: self.answer(request))
        self.server = grpc.server(ThreadPoolExecutor(self.clients))
        self.server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("Echo", {"Ask": call}),))
        port = self.server.add_insecure_port(f"{self.host}:{self.port}")
        self.server.start()
        return f"{self.host}:{port}"


class GrpcClient(Client):
    def join(self, address: str) -> None:
        import grpc

        self.channel = grpc.insecure_channel(address, [("grpc.enable_http_proxy", 0)])
        self.call = self.channel.unary_unary("/Echo/Ask")

    def ask(self) -> bytes:
        reply: bytes = self.call(self.request, timeout=self.timeout, wait_for_ready=True)
        return reply


# --- shared memory and semaphores ---

SEMAPHORE = 32
PAGE = 4096
LARGEST = 1 << 22


class Memory:
    """A page for what comes in, and for each client a semaphore, its request and its reply."""

    def __init__(self, file: Any, clients: int, nbytes: int) -> None:
        self.place = -(-(2 * SEMAPHORE + nbytes) // PAGE) * PAGE
        os.ftruncate(file.fileno(), size := PAGE + clients * self.place)
        self.map = mmap.mmap(file.fileno(), size)
        self.start = ctypes.addressof(ctypes.c_char.from_buffer(self.map))
        self.libc = ctypes.CDLL(None, use_errno=True)

    def make(self, at: int) -> None:
        self.libc.sem_init(ctypes.c_void_p(self.start + at), 1, 0)

    def post(self, at: int) -> None:
        self.libc.sem_post(ctypes.c_void_p(self.start + at))

    def wait(self, at: int) -> None:
        while self.libc.sem_wait(ctypes.c_void_p(self.start + at)):
            pass


class ShmServer(Server):
    """Every client has a byte in the first page that says whether it waits."""

    def open(self) -> str:
        self.file = tempfile.TemporaryFile(dir="/dev/shm")
        self.memory = Memory(self.file, self.clients, LARGEST)
        for at in (0, *(PAGE + client * self.memory.place for client in range(self.clients))):
            self.memory.make(at)
        threading.Thread(target=self.serve, daemon=True).start()
        return f"/proc/{os.getpid()}/fd/{self.file.fileno()} {self.clients}"

    def serve(self) -> None:
        memory, waits = self.memory, memoryview(self.memory.map)[SEMAPHORE : SEMAPHORE + self.clients]
        while True:
            memory.wait(0)
            for client in range(self.clients):
                if waits[client]:
                    waits[client] = 0
                    at = PAGE + client * memory.place
                    reply = self.answer(b"")
                    memory.map[at + SEMAPHORE : at + SEMAPHORE + len(reply)] = reply
                    memory.post(at)


class ShmClient(Client):
    def join(self, address: str) -> None:
        path, clients = address.split()
        self.file = open(path, "r+b")
        self.memory = Memory(self.file, int(clients), LARGEST)
        self.at = PAGE + self.index * self.memory.place

    def ask(self) -> bytes:
        memory, at = self.memory, self.at + 2 * SEMAPHORE
        memory.map[at : at + len(self.request)] = self.request
        memory.map[SEMAPHORE + self.index] = 1
        memory.post(0)
        memory.wait(self.at)
        return memory.map[self.at + SEMAPHORE : self.at + 2 * SEMAPHORE]


BARE: dict[str, tuple[type[Server], type[Client]]] = {
    "torch_rpc": (TorchServer, TorchClient),
    "grpc": (GrpcServer, GrpcClient),
    "shm": (ShmServer, ShmClient),
}
