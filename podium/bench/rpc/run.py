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
from podium.bench.rpc.crew import AGENT, Crew, Processes
from podium.bench.rpc.roles import Agent, Observer
from podium.bench.rpc.settings import Settings
from podium.bench.usage import cpu_seconds

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
        agent, observer = _roles(settings)
        observers = [f"observer-{index}" for index in range(settings.observers)]
        crew.add(AGENT, agent, settings)
        for index, name in enumerate(observers):
            crew.add(name, observer, settings, index)
        began, played, cpu_s = _play(crew, observers, settings.requests * settings.observers, watch)
        (passes,) = crew.call([AGENT], "passes")
    ended = max(end for _, end, _ in played)
    latencies = np.concatenate([taken for _, _, taken in played])
    return Found(latencies, passes, ended - began, cpu_s)


def measure_bare(settings: Settings, watch: Watch) -> float:
    """Requests per second of an echo of the same bytes between as many processes, without anything of Podium in it."""
    nbytes = 4 * int(np.prod(settings.shape))
    if settings.transport == "ray":
        return _measure_bare_ray(settings, nbytes)
    server, client = BARE[settings.transport]
    place = settings.master_addr, settings.master_port
    with _crew(settings) as crew:
        clients = [f"client-{index}" for index in range(settings.observers)]
        crew.add(AGENT, server, *place, settings.observers, ACTION_BYTES)
        for index, name in enumerate(clients):
            crew.add(name, client, index, nbytes, settings.warmup, settings.requests, settings.timeout)
        total = settings.requests * settings.observers
        began, played, _ = _play(crew, clients, total, watch)
    return total / (max(end for _, end in played) - began)


def _measure_bare_ray(settings: Settings, nbytes: int) -> float:
    from podium.bench import bare_ray
    from podium.engine.start import start

    engine = start("ray")
    try:
        return bare_ray.echo(settings.observers, nbytes, ACTION_BYTES, settings.warmup, settings.requests)
    finally:
        engine.close()


def _play(crew: Crew, names: Sequence[str], total: int, watch: Watch) -> tuple[float, list[Any], float]:
    """Bring everybody together, warm up, and play: when that began, what each one says of it, the CPU's seconds."""
    crew.call([AGENT, *names], "join", crew.address(), done="joined")
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


def _roles(settings: Settings) -> tuple[type[Agent], type[Observer]]:
    if settings.transport == "ray":
        from podium.bench.rpc.actors import SpawnedAgent, SpawnedObserver

        return SpawnedAgent, SpawnedObserver
    return Agent, Observer


@contextmanager
def _crew(settings: Settings) -> Iterator[Crew]:
    crew: Crew
    if settings.transport == "ray":
        from podium.bench.rpc.actors import Actors

        crew = Actors(settings.timeout, settings.observers)
    else:
        crew = Processes(settings.timeout, ["podium.bench.rpc.roles", CARRIERS[settings.transport].module])
    try:
        yield crew
    finally:
        crew.close()
