"""`podium bench scaling`: env steps per second against the number of workers on Ray, beside a straight line.

The env sleeps, so that many workers fit onto few cores: what a worker's own core would do elsewhere takes none here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median
from typing import Any

from podium.algorithms.common.base import RunConfig, Setup
from podium.algorithms.common.on_policy import as_played
from podium.algorithms.common.strategies import Parts
from podium.bench.measure import rate
from podium.bench.report import Measured, Report, Target
from podium.bench.usage import available_bytes, busy, cpu_share, own_bytes, there
from podium.core.errors import UsageError
from podium.core.spaces import Leaf, Space
from podium.engine.base import Handle
from podium.engine.pool import START_S, Pool
from podium.engine.start import start
from podium.envs.make import EnvSpec, spaces_of
from podium.optimizers.async_samples import AsyncSamples
from podium.optimizers.sync_samples import SyncSamples
from podium.policies.base import Sgd
from podium.policies.numpy import NumpyConfig, NumpyPolicy

ENVS, FRAGMENT = 1, 32
JUDGED = (32, 64)
LEAST = 0.9
CORES_FULL = 0.95
SHARE_OF_MEMORY = 0.8
OPTIMIZERS = ("sync_samples", "async_samples")


@dataclass
class Fleet:
    """A learner and workers on one engine; there are never more than the present point of the curve needs."""

    parts: Parts
    learner: Handle
    workers: list[Handle]

    def grow(self, count: int) -> None:
        engine = self.parts.setup.engine
        new = [self.parts.worker(index, 0) for index in range(len(self.workers) + 1, count + 1)]
        engine.get([worker.ready for worker in new], START_S)
        self.workers += new

    def rounds(self, optimizer: str) -> Callable[[], int]:
        """A function that has every worker play a fragment, on average, and says how many env steps that made."""
        engine, count = self.parts.setup.engine, len(self.workers)
        pool = Pool(engine, lambda index, replaced: self.workers[index - 1], count, max_failures=0)
        if optimizer == "sync_samples":
            sync = SyncSamples(engine, self.learner, pool, FRAGMENT, self.parts.sgd)
            return lambda: sync.step(0.0).env_steps
        samples = AsyncSamples(engine, self.learner, pool, FRAGMENT, self.parts.sgd)
        return lambda: sum(samples.step(0.0).env_steps for _ in range(count))

    def worker_bytes(self) -> int:
        """The memory that one worker's process has to itself."""
        (started, *_) = self.parts.setup.engine.get(self.workers[0].ready)
        return own_bytes(started["pid"])


def _policy(config: RunConfig, observation: Space, action: Leaf, seed: int) -> NumpyPolicy:
    return NumpyPolicy(NumpyConfig(), observation, action, seed)


def _sgd(progress: float, updates: int) -> Sgd:
    return Sgd(progress, updates)


def run(report: Report, workers: Sequence[int], ms: float, rounds: int, seconds: float) -> None:
    """Measure both optimizers with each number of workers, in alternation, and put it into the report."""
    if not there():
        raise UsageError("podium bench scaling reads /proc, which this system has not")
    spec = EnvSpec("toy:sleep", {"ms": ms})
    engine = start("ray")
    with ExitStack() as stack:
        stack.callback(engine.close)
        config = RunConfig(envs=ENVS, fragment=FRAGMENT)
        parts = Parts(config, Setup(engine, spec, *spaces_of(spec)), _policy, _sgd, as_played)
        fleet = Fleet(parts, parts.learner(), [])
        fleet.grow(1)
        _check_memory(report, workers, fleet.worker_bytes())
        runs: dict[str, dict[int, list[float]]] = {name: {} for name in OPTIMIZERS}
        shares: dict[str, dict[int, list[float]]] = {name: {} for name in OPTIMIZERS}
        for count in workers:
            fleet.grow(count)
            for _ in range(rounds):
                for name in OPTIMIZERS:
                    speed, share = _measured(fleet.rounds(name), seconds)
                    runs[name].setdefault(count, []).append(speed)
                    shares[name].setdefault(count, []).append(share)
    for name in OPTIMIZERS:
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
