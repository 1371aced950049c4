"""`podium bench apex`: Ape-X on Ray beside DQN in one process, and its learner's rate against workers whose env sleeps.

Both train with the same policy and the same updates for an env step. The learner's rate is that of one which waits for
nobody: what many workers take of it is what they take of the controller, the shards and the machine.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from podium import algorithms
from podium.algorithms.common.base import Setup
from podium.algorithms.common.off_policy import ReplayConfig, parts_of
from podium.algorithms.common.strategies import Parts, async_replay
from podium.algorithms.dqn import make_policy
from podium.bench.learning import ENDLESS, Clock
from podium.bench.measure import THREADS, rate
from podium.bench.report import Measured, Report, Target
from podium.bench.scaling import CORES_FULL, SHARE_OF_MEMORY
from podium.bench.usage import available_bytes, busy, cpu_share, own_bytes, there
from podium.core.errors import UsageError
from podium.engine.base import Handle
from podium.engine.pool import START_S
from podium.engine.start import start
from podium.envs.make import EnvSpec, spaces_of
from podium.optimizers.async_replay import AsyncReplay

ENV = "CartPole-v1"
POLICY = ("double", "dueling", "prioritized", "n_step", "hidden")
"""What makes DQN learn as Ape-X does."""

FRAGMENT = 8
LEAST_UPDATES, LEAST_RATE = 0.9, 0.9


def run(report: Report, workers: Sequence[int], ms: float, rounds: int, seconds: float) -> None:
    """Measure whole training, and then the learner alone, and put both into the report."""
    if not there():
        raise UsageError("podium bench apex reads /proc, which this system has not")
    report.cases += _training(rounds, seconds)
    engine = start("ray")
    with ExitStack() as stack:
        stack.callback(engine.close)
        report.cases += _learner(report, engine, workers, ms, rounds, seconds)


# --- whole training ---


def _training(rounds: int, seconds: float) -> list[Measured]:
    """Env steps per second, and updates per env step, of runs with their folders, logs and checkpoints, in alternation."""
    defaults = algorithms.get("apex").configure(None, {})
    parts = {name: getattr(defaults, name) for name in POLICY}
    contenders: dict[str, Callable[[], tuple[float, float]]] = {
        "podium": partial(_trained, "apex", seconds, engine="ray", workers=2),
        "dqn on local, the same parts": partial(_trained, "dqn", seconds, **parts),
        "dqn on local": partial(_trained, "dqn", seconds),
    }
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, measure in contenders.items():
            found[name].append(measure())
    case = f"apex {ENV} on Ray, 2 workers"
    speeds, updates = ({name: [pair[part] for pair in runs] for name, runs in found.items()} for part in (0, 1))
    same = "dqn on local, the same parts"
    return [
        Measured(f"{case}: env steps", speeds, (Target(same, 1.0), Target("dqn on local", 1.0)), "env steps/s"),
        Measured(f"{case}: updates for each", updates, (Target(same, LEAST_UPDATES),), "updates/env step"),
    ]


class _Rates(Clock):
    """Counts updates too, from where learning has begun."""

    def __init__(self, seconds: float, starts: int) -> None:
        super().__init__(seconds)
        self._starts, self._first, self._last = starts, (0, 0), (0, 0)

    def on_iteration(self, run: Any, row: Mapping[str, Any]) -> bool:
        if row["env_steps"] < self._starts:
            return False
        self._last = row["env_steps"], row["updates"]
        self._first = self._first if any(self._first) else self._last
        return super().on_iteration(run, row)

    @property
    def updates_per_step(self) -> float:
        steps, updates = (last - first for first, last in zip(self._first, self._last, strict=True))
        return updates / max(steps, 1)


def _trained(algo: str, seconds: float, **settings: Any) -> tuple[float, float]:
    from podium import api

    clock = _Rates(seconds, starts=1500)
    with tempfile.TemporaryDirectory(prefix="podium-bench-") as folder:
        settings |= {"steps": ENDLESS, "threads": THREADS, "eval_every": None}
        api.train(algo, ENV, out=Path(folder) / "run", callbacks=[clock], progress=False, **settings)
    return clock.rate, clock.updates_per_step


# --- the learner among workers whose env sleeps ---


@dataclass(frozen=True)
class Standing(Parts):
    """Parts whose learner and workers are there already, for one optimizer after another."""

    standing: tuple[Handle, ...] = ()

    def sharded_learner(self) -> Handle:
        return self.standing[0]

    def player(self, index: int, replaced: int) -> Handle:
        return self.standing[index]


def _learner(
    report: Report, engine: Any, counts: Sequence[int], ms: float, rounds: int, seconds: float
) -> list[Measured]:
    spec = EnvSpec("toy:sleep", {"ms": ms})
    settings = {"envs": 1, "fragment": FRAGMENT, "pacing": "none", "learning_starts": 0, "engine": "ray"}
    config = algorithms.get("apex").configure(None, {**settings, "workers": max(counts)})
    assert isinstance(config, ReplayConfig)
    parts = parts_of(config, Setup(engine, spec, *spaces_of(spec)), make_policy)
    everyone = [parts.sharded_learner()]
    rates: dict[int, list[float]] = {}
    shares: dict[int, list[float]] = {}
    for count in counts:
        everyone += [parts.player(index, 0) for index in range(len(everyone), count + 1)]
        engine.get([handle.ready for handle in everyone], START_S)
        if count == min(counts):
            _check_memory(report, counts, own_bytes(engine.get(everyone[1].ready)[0]["pid"]))
        own = {name: value for name, value in vars(parts).items() if name != "config"}
        standing = Standing(config=config.replace(workers=count), **own, standing=tuple(everyone))
        optimizer = async_replay(standing)
        assert isinstance(optimizer, AsyncReplay)
        for _ in range(rounds):
            speed, share = _measured(optimizer, seconds)
            rates.setdefault(count, []).append(speed)
            shares.setdefault(count, []).append(share)
        optimizer.shards.close()
    fewest = median(rates[min(rates)])
    case = f"apex: its learner, beside workers whose env takes {ms:g} ms a step"
    full = {count: median(found) >= CORES_FULL for count, found in shares.items()}
    for count in (count for count in counts if full[count]):
        report.note(
            f"{case}: {count} workers are not judged, the machine's cores were {median(shares[count]):.0%} busy"
        )
    return [
        Measured(
            case,
            {"podium": found, "fewest workers": [fewest] * len(found)},
            (Target("fewest workers", LEAST_RATE),) if count > min(rates) and not full[count] else (),
            "updates/s",
            point={"axis": "workers", "x": count, "cpu": median(shares[count])},
        )
        for count, found in rates.items()
    ]


def _measured(optimizer: AsyncReplay, seconds: float) -> tuple[float, float]:
    """Updates per second once every worker has played, and the share of the machine's cores that was busy meanwhile."""

    def updates() -> int:
        before = optimizer.updates
        optimizer.step(0.0)
        return optimizer.updates - before

    limit = perf_counter() + START_S
    while not updates() and perf_counter() < limit:
        pass
    before = busy()
    return rate(updates, seconds), cpu_share(before, busy())


def _check_memory(report: Report, counts: Sequence[int], each: int) -> None:
    free = available_bytes()
    report.note(f"a worker's process takes {each / 2**20:.0f} MiB of its own; {free / 2**30:.1f} GiB are free")
    fit = int(SHARE_OF_MEMORY * free / each) + min(counts)
    if max(counts) > fit:
        raise UsageError(f"--workers {max(counts)} do not fit into the memory, expected at most {fit}")
