"""How the benchmark's agent and observers reach each other, by the transport's name."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

from podium.bench.rpc.settings import Settings
from podium.serving.base import Client, Transport
from podium.serving.desk import Desk
from podium.serving.server import InferenceServer

ROOM_BYTES = 4096
"""For what goes with a state: names, shapes."""


@dataclass(frozen=True)
class Carrier:
    """`serve` makes the agent's side and `connect` an observer's, who counts from 0; `begin` is called on the agent's side
    while observers connect. `module` is what its processes load."""

    module: str
    serve: Callable[[InferenceServer, Settings], Transport]
    connect: Callable[[str, Settings, int], Client]
    begin: Callable[[Any, Settings], None] = lambda transport, settings: None

    def check(self) -> None:
        """Refuse what is not installed, before anything is started."""
        importlib.import_module(self.module)


def _serve_torch_rpc(server: InferenceServer, settings: Settings) -> Transport:
    from podium.serving.transports.torch_rpc import TorchRpcTransport

    world = settings.observers + 1
    return TorchRpcTransport(Desk(server), settings.master_addr, settings.master_port, world, "agent")


def _join_torch_rpc(transport: Any, settings: Settings) -> None:
    transport.join(settings.timeout)


def _connect_torch_rpc(address: str, settings: Settings, index: int) -> Client:
    from podium.serving.transports.torch_rpc import TorchRpcClient

    return TorchRpcClient(address, index + 1, f"observer-{index}", settings.timeout)


def _serve_shm(server: InferenceServer, settings: Settings) -> Transport:
    from podium.serving.transports.shm import ShmTransport

    return ShmTransport(Desk(server), settings.observers, request_bytes=4 * prod(settings.shape) + ROOM_BYTES)


def _connect_shm(address: str, settings: Settings, index: int) -> Client:
    from podium.serving.transports.shm import ShmClient

    return ShmClient(address)


CARRIERS = {
    "torch_rpc": Carrier("podium.serving.transports.torch_rpc", _serve_torch_rpc, _connect_torch_rpc, _join_torch_rpc),
    "shm": Carrier("podium.serving.transports.shm", _serve_shm, _connect_shm),
}
