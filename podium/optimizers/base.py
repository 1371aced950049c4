"""The control plane's interface: a distribution strategy over evaluators, one `step` at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import Any, Protocol

from podium.engine.base import Engine, Handle
from podium.engine.pool import Pool
from podium.evaluation.sample import Report
from podium.policies.base import Sgd

SgdPlan = Callable[[float, int], Sgd]  # (progress of the run, number of the update) -> how to go over the next batch
State = dict[str, Any]


class Optimizer(Protocol):
    """`step` gathers, learns and reports. State is everything that the next step depends on, as far as the strategy has
    an order: `evaluators` are the states of the evaluators, the learner's first."""

    updates: int

    def learner(self) -> Handle:
        """The evaluator that has the newest weights."""
        ...

    def step(self, progress: float) -> Report: ...
    def adopt(self, policy: State) -> None:
        """Begin with another run's policy, as far as acting goes."""
        ...

    def get_state(self, restart: bool) -> State: ...
    def set_state(self, state: State) -> None: ...
    def close(self) -> None: ...


@contextmanager
def timed(report: Report, stage: str) -> Iterator[None]:
    """Note the seconds that the controller spends in a stage."""
    began = perf_counter()
    yield
    report.timers[stage] = report.timers.get(stage, 0.0) + perf_counter() - began


def states(engine: Engine, learner: Handle, pool: Pool, restart: bool) -> list[State | None]:
    """The learner's state and those of the workers, none for one that is just being replaced."""
    handles = {0: learner} | {index: pool.handle(index) for index in pool.up if pool.handle(index) is not learner}
    found = dict(zip(handles, engine.get([h.call("get_state", restart) for h in handles.values()]), strict=True))
    return [found.get(index) for index in range(max(found, default=0) + 1)]


def restore(engine: Engine, learner: Handle, pool: Pool, saved: Sequence[State | None]) -> None:
    """Give the learner and the workers their states back."""
    handles = [learner, *(pool.handle(index) for index in pool.up if pool.handle(index) is not learner)]
    calls = [
        handle.call("set_state", state) for handle, state in zip(handles, saved, strict=False) if state is not None
    ]
    engine.get(calls)


def pool_figures(report: Report, pool: Pool) -> Report:
    """How the workers are, beside what they did."""
    report.metrics.last("workers_up", len(pool.up))
    report.metrics.last("workers_replaced", pool.replaced)
    report.metrics.last("calls_lost", pool.lost)
    return report
