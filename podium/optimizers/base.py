"""The control plane's interface: a distribution strategy over evaluators, one `step` at a time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import Any, Protocol, runtime_checkable

from podium.core.errors import GroupBroken, WorkerDied
from podium.engine.base import Engine, Handle, Ref
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


@runtime_checkable
class HoldsReplay(Protocol):
    """An optimizer whose replay is not the learner's: it has the state and the pieces, as a replay has."""

    def get_replay(self, known: Collection[str]) -> tuple[State, dict[str, Any]]: ...
    def set_replay(self, state: Mapping[str, Any], pieces: Mapping[str, Any]) -> None: ...


def get_replay(engine: Engine, optimizer: Optimizer, known: Collection[str]) -> tuple[State, dict[str, Any]] | None:
    """The replay's state and its pieces but for those that are known; nothing where there is none."""
    if isinstance(optimizer, HoldsReplay):
        return optimizer.get_replay(known)
    return engine.get(optimizer.learner().call("get_replay", known))


def set_replay(engine: Engine, optimizer: Optimizer, state: State, pieces: Mapping[str, Any]) -> None:
    if isinstance(optimizer, HoldsReplay):
        optimizer.set_replay(state, pieces)
    else:
        engine.get(optimizer.learner().call("set_replay", state, pieces))


@contextmanager
def timed(report: Report, stage: str) -> Iterator[None]:
    """Note the seconds that the controller spends in a stage."""
    began = perf_counter()
    yield
    report.timers[stage] = report.timers.get(stage, 0.0) + perf_counter() - began


def everyone(learner: Handle, pool: Pool) -> list[Handle | None]:
    """The learner, the workers' server if they have one, and then the workers, where they are others; none for one that
    is just being replaced."""
    up = pool.up
    workers = [pool.handle(index) if index in up else None for index in range(1, len(pool) + 1)]
    server = [] if pool.server is None else [pool.server]
    return [learner, *server, *(worker for worker in workers if worker is not learner)]


def newest(learner: Handle, pool: Pool, progress: float) -> Ref:
    """The learner's weights, to call the workers with. Where a server plays for them it takes the weights, and hands on
    to the workers what else there is to know of these."""
    weights = learner.call("get_weights", progress)
    return weights if pool.server is None else pool.server.call("set_weights", weights)


def together(engine: Engine, refs: Sequence[Ref]) -> list[Any]:
    """The values of calls in a group. Where one fails the others do as well: its error is raised, not theirs."""
    engine.wait(refs, len(refs))
    broken: GroupBroken | None = None
    for ref in refs:
        try:
            engine.check(ref)
        except GroupBroken as error:
            broken = error
    if broken is not None:
        raise broken
    return engine.get(refs)


def states(engine: Engine, evaluators: Sequence[Handle | None], restart: bool) -> list[State | None]:
    """Their states, asked for at once; none for a worker that has just died, whom its pool will find and replace."""
    calls = [None if one is None else one.call("get_state", restart) for one in evaluators]
    found: list[State | None] = []
    for call in calls:
        try:
            found.append(None if call is None else engine.get(call))
        except WorkerDied:
            if not found:
                raise  # the learner
            found.append(None)
    return found


def restore(engine: Engine, evaluators: Sequence[Handle | None], saved: Sequence[State | None]) -> None:
    """Give them their states back, as far as they have one."""
    pairs = zip(evaluators, saved, strict=False)
    engine.get([one.call("set_state", state) for one, state in pairs if one is not None and state is not None])


def pool_figures(report: Report, pool: Pool) -> Report:
    """How the workers are, beside what they did."""
    report.metrics.last("workers_up", len(pool.up))
    report.metrics.last("workers_replaced", pool.replaced)
    report.metrics.last("calls_lost", pool.lost)
    return report
