"""`podium bench controller`: what Podium's controller costs on Ray, beside the same calls in plain Ray code."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from podium.bench import bare_ray
from podium.bench.idle import Learner, Sampler
from podium.bench.measure import Contender, alternate, rate
from podium.bench.report import Measured, Report, Target
from podium.engine.base import Engine, Handle
from podium.engine.pool import Pool
from podium.engine.start import start
from podium.optimizers.async_samples import AsyncSamples
from podium.optimizers.base import Optimizer
from podium.optimizers.sync_samples import SyncSamples
from podium.policies.base import Sgd

SAMPLE_BYTES = 50_000
SAMPLES = 32
"""In an update of `async_samples`."""

LEAST = 0.8
UNIT = "calls/s"
NOTES = (
    "a call is any that the controller makes, the learner's two in each update too; one is in flight for each worker",
    "samples of 50 KB come into the controller's process with Ray's answer in every contender: plain Ray code asks for "
    "the value to know that a call ended well, Podium for a second, empty result; then the learner has the samples "
    "brought to it (in `calls` there is no learner)",
)


class PodiumLoop:
    """An optimizer as it is, over samplers and a learner that do nothing."""

    def __init__(self, engine: Engine, name: str, workers: int) -> None:
        learner = engine.spawn(Learner, name="learner-0")
        pool = Pool(engine, partial(_sampler, engine), workers)
        self._calls = (SAMPLES if name == "async_samples" else workers) + 2
        self._optimizer = _optimizer(name, engine, learner, pool)
        self._step()

    def _step(self) -> int:
        self._optimizer.step(0.0)
        return self._calls

    def measure(self, seconds: float) -> float:
        return rate(self._step, seconds)

    def close(self) -> None:
        self._optimizer.close()


class BareLoop:
    """The same calls without the library."""

    def __init__(self, kind: type[bare_ray.Loop], workers: int) -> None:
        self._loop = kind(workers, SAMPLE_BYTES, SAMPLES)
        self._loop.play()

    def measure(self, seconds: float) -> float:
        return rate(self._loop.play, seconds)

    def close(self) -> None:
        self._loop.close()


def _sampler(engine: Engine, index: int, replaced: int) -> Handle:
    return engine.spawn(Sampler, SAMPLE_BYTES, name=f"worker-{index}")


def _optimizer(name: str, engine: Engine, learner: Handle, pool: Pool) -> Optimizer:
    if name == "sync_samples":
        return SyncSamples(engine, learner, pool, 1, _sgd)
    return AsyncSamples(engine, learner, pool, 1, _sgd, samples=SAMPLES, queue=2 * SAMPLES)


def _sgd(progress: float, updates: int) -> Sgd:
    return Sgd(progress)


def run(report: Report, workers: int, rounds: int, seconds: float) -> None:
    """Measure both loops and put them into the report."""
    for note in NOTES:
        report.note(note)
    engine = start("ray")
    try:
        for name, kind in (("async_samples", bare_ray.Async), ("sync_samples", bare_ray.Sync)):
            makers: dict[str, Callable[[], Contender]] = {
                "podium": partial(PodiumLoop, engine, name, workers),
                "bare": partial(BareLoop, kind, workers),
            }
            if name == "async_samples":
                makers["calls"] = partial(BareLoop, bare_ray.Calls, workers)
            case = f"{name}, {workers} workers, {SAMPLE_BYTES // 1000} KB samples"
            runs = alternate(makers, rounds, seconds)
            report.cases.append(Measured(case, runs, (Target("bare", LEAST),), UNIT))
    finally:
        engine.close()
