"""`podium bench shards`: what a parameter server moves, against the number of its shards, beside a plain copy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import Any

import numpy as np

from podium.bench.idle import ConstantPolicy
from podium.bench.measure import Contender, alternate, rate
from podium.bench.report import Measured, Report
from podium.core.errors import UsageError
from podium.engine.base import Engine, Handle
from podium.engine.pool import Pool
from podium.engine.start import start
from podium.envs.make import EnvSpec, make
from podium.evaluation.evaluator import Evaluator
from podium.optimizers.parameter_server import ParameterServer
from podium.policies.base import Sgd

ENGINES = ("local", "ray")
GIGA = 1e9
ENV = EnvSpec("toy:constant")


class Server:
    """A parameter server and workers whose gradients cost nothing."""

    def __init__(self, engine: Engine, shards: int, workers: int, parameters: int) -> None:
        self._bytes = 2 * parameters * np.dtype(np.float32).itemsize  # a worker pulls all, and pushes as much
        pool = Pool(engine, partial(_worker, engine, parameters), workers)
        learner = engine.spawn(Evaluator, partial(ConstantPolicy, parameters), None, name="learner-0")
        self._server = ParameterServer(engine, learner, pool, 1, _sgd, shards=shards, rule=_rule, eps=1e-8)
        self._step()

    def _step(self) -> int:
        before = self._server.updates
        self._server.step(0.0)
        return (self._server.updates - before) * self._bytes

    def measure(self, seconds: float) -> float:
        return rate(self._step, seconds) / GIGA

    def close(self) -> None:
        self._server.close()


class Copy:
    """The same bytes copied within one process, by one thread."""

    def __init__(self, parameters: int) -> None:
        self._from, self._to = np.ones(parameters, np.float32), np.zeros(parameters, np.float32)

    def _step(self) -> int:
        np.copyto(self._to, self._from)
        return self._from.nbytes

    def measure(self, seconds: float) -> float:
        return rate(self._step, seconds) / GIGA

    def close(self) -> None:
        """Nothing outlives it."""


def _worker(engine: Engine, parameters: int, index: int, replaced: int) -> Handle:
    policy, env = partial(ConstantPolicy, parameters), partial(make, ENV, 1)
    return engine.spawn(Evaluator, policy, env, index=index, name=f"worker-{index}")


def _sgd(progress: float, updates: int) -> Sgd:
    return Sgd(progress, updates)


def _rule(progress: float) -> tuple[float, float | None]:
    return 1e-3, None


def run(report: Report, shards: Sequence[int], workers: int, parameters: int, rounds: int, seconds: float) -> None:
    """Measure each number of shards on each engine, and put it into the report."""
    if max(shards) > parameters:
        raise UsageError(f"--shards {max(shards)}, expected at most --parameters, which is {parameters}")
    size = parameters * np.dtype(np.float32).itemsize
    report.note(
        f"an update moves {2 * size / 1e6:g} MB: a worker pulls all parameters and pushes a gradient of that size"
    )
    for name in ENGINES:
        engine = start(name)
        try:
            for parts in shards:
                makers: dict[str, Callable[[], Contender]] = {
                    "podium": partial(Server, engine, parts, workers, parameters),
                    "copy": partial(Copy, parameters),
                }
                runs = alternate(makers, rounds, seconds)
                point: dict[str, Any] = {"axis": "shards", "x": parts}
                point["updates_per_s"] = median(runs["podium"]) * GIGA / (2 * size)
                case = f"{name}, {parameters:,} parameters, {workers} workers"
                report.cases.append(Measured(case, runs, (), "GB/s", point=point))
        finally:
            engine.close()
