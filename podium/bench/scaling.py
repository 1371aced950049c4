"""`podium bench scaling`: env steps per second against the number of workers on Ray, beside a straight line.

The env sleeps, so that many workers fit onto few cores: what a worker's own core would do elsewhere takes none here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from podium.algorithms import es
from podium.algorithms.common.base import RunConfig, Setup
from podium.algorithms.common.evolution import searcher
from podium.algorithms.common.on_policy import as_played
from podium.algorithms.common.strategies import Parts
from podium.bench.measure import rate
from podium.bench.report import Measured, Report, Target
from podium.bench.usage import available_bytes, busy, cpu_share, own_bytes, there
from podium.core.errors import UsageError
from podium.core.spaces import Leaf, Space
from podium.engine.base import Engine, Handle
from podium.engine.pool import START_S, Pool
from podium.engine.start import start
from podium.envs.make import EnvSpec, spaces_of
from podium.optimizers.async_samples import AsyncSamples
from podium.optimizers.base import Optimizer
from podium.optimizers.evolution import Evolution
from podium.optimizers.sync_samples import SyncSamples
from podium.policies.base import Sgd
from podium.policies.numpy import NumpyConfig, NumpyPolicy

ENVS, FRAGMENT = 1, 32
TABLE = 1_000_000
JUDGED = (32, 64)
LEAST = 0.9
CORES_FULL = 0.95
SHARE_OF_MEMORY = 0.8
SAMPLING, SEARCHING = ("sync_samples", "async_samples"), ("evolution",)

Spawn = Callable[[int, int], Handle]  # (the worker's index, how often it was replaced) -> a new worker
Make = Callable[[str, Engine, Handle, Pool], Optimizer]


@dataclass
class Fleet:
    """A learner and workers on one engine, and how optimizers are put over them; there are never more workers than the
    present point of the curve needs."""

    engine: Engine
    learner: Handle
    spawn: Spawn
    make: Make
    workers: list[Handle] = field(default_factory=list)

    def grow(self, count: int) -> None:
        new = [self.spawn(index, 0) for index in range(len(self.workers) + 1, count + 1)]
        self.engine.get([worker.ready for worker in new], START_S)
        self.workers += new

    def rounds(self, optimizer: str) -> Callable[[], int]:
        """A function that has every worker play once, on average, and says how many env steps that made."""
        count = len(self.workers)
        pool = Pool(self.engine, lambda index, replaced: self.workers[index - 1], count, max_failures=0)
        made = self.make(optimizer, self.engine, self.learner, pool)
        calls = count if optimizer == "async_samples" else 1
        return lambda: sum(made.step(0.0).env_steps for _ in range(calls))

    def worker_bytes(self) -> int:
        """The memory that one worker's process has to itself."""
        (started, *_) = self.engine.get(self.workers[0].ready)
        return own_bytes(started["pid"])

    def close(self) -> None:
        for handle in (*self.workers, self.learner):
            self.engine.kill(handle)


@contextmanager
def _samplers(engine: Engine, spec: EnvSpec) -> Iterator[Fleet]:
    """Who plays fragments, with the numpy policy."""
    config = RunConfig(envs=ENVS, fragment=FRAGMENT)
    parts = Parts(config, Setup(engine, spec, *spaces_of(spec)), _policy, _sgd, as_played)

    def make(name: str, engine: Engine, learner: Handle, pool: Pool) -> Optimizer:
        kind = SyncSamples if name == "sync_samples" else AsyncSamples
        return kind(engine, learner, pool, FRAGMENT, parts.sgd)

    fleet = Fleet(engine, parts.learner(), parts.worker, make)
    yield fleet
    fleet.close()


@contextmanager
def _searchers(engine: Engine, spec: EnvSpec) -> Iterator[Fleet]:
    """Who plays perturbations, as ES has them: both of a pair side by side, a pair for each worker in an update."""
    config = es.ESConfig(envs=2, population=2, workers=1)
    setup = Setup(engine, spec, *spaces_of(spec))

    def make(name: str, engine: Engine, learner: Handle, pool: Pool) -> Optimizer:
        return Evolution(engine, learner, pool, seed=0, count=len(pool), each=1, table_size=TABLE)

    def spawn(index: int, replaced: int) -> Handle:
        return searcher(es.ES, config, setup, index, replaced)

    fleet = Fleet(engine, spawn(0, 0), spawn, make)
    yield fleet
    fleet.close()


def _policy(config: RunConfig, observation: Space, action: Leaf, seed: int) -> NumpyPolicy:
    return NumpyPolicy(NumpyConfig(), observation, action, seed)


def _sgd(progress: float, updates: int) -> Sgd:
    return Sgd(progress, updates)


def run(report: Report, workers: Sequence[int], ms: float, rounds: int, seconds: float) -> None:
    """Measure every optimizer with each number of workers, those of a fleet in alternation, and put it into the report."""
    if not there():
        raise UsageError("podium bench scaling reads /proc, which this system has not")
    spec = EnvSpec("toy:sleep", {"ms": ms, "length": FRAGMENT})
    engine = start("ray")
    with ExitStack() as stack:
        stack.callback(engine.close)
        for make_fleet, names in ((_samplers, SAMPLING), (_searchers, SEARCHING)):
            runs: dict[str, dict[int, list[float]]] = {name: {} for name in names}
            shares: dict[str, dict[int, list[float]]] = {name: {} for name in names}
            with make_fleet(engine, spec) as fleet:
                fleet.grow(1)
                _check_memory(report, workers, fleet.worker_bytes())
                for count in workers:
                    fleet.grow(count)
                    for _ in range(rounds):
                        for name in names:
                            speed, share = _measured(fleet.rounds(name), seconds)
                            runs[name].setdefault(count, []).append(speed)
                            shares[name].setdefault(count, []).append(share)
            for name in names:
                report.cases += _curve(report, f"{name}, an env of {ms:g} ms a step", runs[name], shares[name])


def _measured(play: Callable[[], int], seconds: float) -> tuple[float, float]:
    """Steps per second after a round to warm up, and the share of the machine's cores that was busy meanwhile."""
    play()
    before = busy()
    return rate(play, seconds), cpu_share(before, busy())


def _curve(
    report: Report, case: str, runs: Mapping[int, list[float]], shares: Mapping[int, list[float]]
) -> list[Measured]:
    """A point for each number of workers; the straight line goes through the fewest workers' median."""
    fewest = min(runs)
    each = median(runs[fewest]) / fewest
    found = []
    for count, speeds in runs.items():
        share = median(shares[count])
        targets: tuple[Target, ...] = (Target("linear", LEAST),) if count in JUDGED else ()
        if targets and share >= CORES_FULL:
            report.note(f"{case}: {count} workers are not judged, the machine's cores were {share:.0%} busy")
            targets = ()
        point: dict[str, Any] = {"axis": "workers", "x": count, "cpu": share}
        straight = [each * count] * len(speeds)
        found.append(Measured(case, {"podium": speeds, "linear": straight}, targets, "env steps/s", point=point))
    return found


def _check_memory(report: Report, workers: Sequence[int], each: int) -> None:
    free = available_bytes()
    report.note(f"a worker's process takes {each / 2**20:.0f} MiB of its own; {free / 2**30:.1f} GiB are free")
    fit = int(SHARE_OF_MEMORY * free / each) + 1  # one is there already
    if max(workers) > fit:
        raise UsageError(f"--workers {max(workers)} do not fit into the memory, expected at most {fit}")
