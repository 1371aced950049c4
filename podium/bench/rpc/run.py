"""The coordinator: it starts the processes of each row, watches them, gathers what they measured, and ends them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from podium.bench.rpc.bare_rpc import BARE
from podium.bench.rpc.carriers import CARRIERS
from podium.bench.rpc.crew import Crew, Processes
from podium.bench.rpc.roles import Agent, Observer
from podium.bench.rpc.settings import Settings
from podium.bench.usage import cpu_seconds

AGENT = "agent"
ACTION_BYTES = 8
Watch = Callable[[float], None]
"""Is told the share of a measurement that is done."""


@dataclass(frozen=True)
class Found:
    """One measurement, as it was measured; `bare` is the rate of a bare echo right after it."""

    latencies: np.ndarray
    passes: np.ndarray
    """Of each pass: requests, seconds."""

    wall_s: float
    cpu_s: float
    bare: float | None = None

    @property
    def rate(self) -> float:
        return len(self.latencies) / self.wall_s


def measure(settings: Settings, watch: Watch) -> Found:
    """Podium's server and clients."""
    with _crew(settings) as crew:
        observers = [f"observer-{index}" for index in range(settings.observers)]
        crew.add(AGENT, Agent, settings)
        for index, name in enumerate(observers):
            crew.add(name, Observer, settings, index)
        began, played, cpu_s = _play(crew, observers, settings.requests * settings.observers, watch)
        (passes,) = crew.call([AGENT], "passes")
    ended = max(end for _, end, _ in played)
    latencies = np.concatenate([taken for _, _, taken in played])
    return Found(latencies, passes, ended - began, cpu_s)


def measure_bare(settings: Settings, watch: Watch) -> float:
    """Requests per second of an echo of the same bytes between as many processes, without anything of Podium in it."""
    server, client = BARE[settings.transport]
    place = settings.master_addr, settings.master_port
    nbytes = 4 * int(np.prod(settings.shape))
    with _crew(settings) as crew:
        clients = [f"client-{index}" for index in range(settings.observers)]
        crew.add(AGENT, server, *place, settings.observers, ACTION_BYTES)
        for index, name in enumerate(clients):
            crew.add(name, client, index, nbytes, settings.warmup, settings.requests, settings.timeout)
        total = settings.requests * settings.observers
        began, played, _ = _play(crew, clients, total, watch)
    return total / (max(end for _, end in played) - began)


def _play(crew: Crew, names: Sequence[str], total: int, watch: Watch) -> tuple[float, list[Any], float]:
    """Bring everybody together, warm up, and play: when that began, what each one says of it, the CPU's seconds."""
    (address,) = crew.call([AGENT], "open", done="started")
    crew.call([AGENT, *names], "join", address, done="joined")
    crew.call(names, "warm", done="warmed up")
    crew.call([AGENT], "mark")
    before, served = cpu_seconds(os.getpid()), 0

    def moved() -> bool:
        nonlocal served
        (now,) = crew.call([AGENT], "served")
        moves, served = now > served, now
        watch(min(served / total, 1.0))
        return moves

    played = crew.call(names, "play", time.monotonic(), done="finished", watch=moved)
    return min(one[0] for one in played), played, cpu_seconds(os.getpid()) - before


@contextmanager
def _crew(settings: Settings) -> Iterator[Crew]:
    crew = Processes(settings.timeout, ["podium.bench.rpc.roles", CARRIERS[settings.transport].module])
    try:
        yield crew
    finally:
        crew.close()
