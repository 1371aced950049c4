"""`podium bench central`: what workers on Ray sample that ask one server, beside workers that hold their own policies.

The policy is the CNN on pictures of 84x84x4 bytes that cost nothing to make, so that what is measured is acting alone.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from podium.bench.measure import Contender, alternate, rate
from podium.bench.report import Measured, Report, Target
from podium.engine.base import Engine
from podium.engine.pool import Pool
from podium.engine.start import start
from podium.envs.make import EnvSpec, spaces_of
from podium.optimizers.base import newest

SPEC = EnvSpec("toy:frames")
LEAST = 0.7


class Sampling:
    """PPO's workers, called as its optimizer calls them, with the learner's weights in each round."""

    def __init__(self, engine: Engine, settings: dict[str, Any]) -> None:
        from podium import algorithms
        from podium.algorithms.common.base import Setup

        ppo = algorithms.get("ppo")
        config = ppo.configure(None, settings)
        self._optimizer: Any = ppo.build(config, Setup(engine, SPEC, *spaces_of(SPEC)))
        self._engine, self._fragment = engine, config.fragment
        self._sample()

    def _sample(self) -> int:
        workers: Pool = self._optimizer.samplers
        weights = newest(self._optimizer.learner(), workers, 0.0)
        refs = [workers.handle(index).call("sample", self._fragment, weights) for index in workers.up]
        return sum(sample.report.env_steps for sample in self._engine.get(refs))

    def measure(self, seconds: float) -> float:
        return rate(self._sample, seconds)

    def close(self) -> None:
        self._optimizer.close()


def run(report: Report, workers: int, envs: int, fragment: int, threads: int, rounds: int, seconds: float) -> None:
    """Measure both in alternation, and put it into the report."""
    report.note(f"the server has {threads} compute threads, a worker that holds its own policy has one")
    shared = {"engine": "ray", "workers": workers, "envs": envs, "fragment": fragment, "minibatch": 256}
    settings = {"podium": {**shared, "inference": "central", "threads": threads}, "own policies": shared}
    engine = start("ray")
    try:
        makers: dict[str, Callable[[], Contender]] = {
            name: partial(Sampling, engine, given) for name, given in settings.items()
        }
        runs = alternate(makers, rounds, seconds)
    finally:
        engine.close()
    case = f"central inference, {workers} workers of {envs} envs, 84x84x4"
    report.cases.append(Measured(case, runs, (Target("own policies", LEAST),), "env steps/s"))
