"""A trial: whole runs that are nested on an engine, one for each seed, and go on as far as they are told to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from podium import algorithms
from podium.algorithms.common.base import Algorithm, RunConfig
from podium.engine.base import Engine
from podium.envs.make import EnvSpec, Traits
from podium.optimizers.base import get_replay, set_replay
from podium.training import Training
from podium.tuning.space import Value

State = dict[str, Any]
Configs = Callable[[Mapping[str, Value]], Sequence[RunConfig]]
"""From a trial's parameters to the settings of its runs."""


@dataclass(frozen=True)
class Advanced:
    """What came of going on: the new rows of each run, the figures as they stand, and whether all runs are over; `reached`
    says whether all of them ended by reaching their return. `processes` are those that the runs have beside the trial's."""

    rows: Sequence[Sequence[Mapping[str, Any]]]
    figures: dict[str, Any]
    over: bool
    reached: bool
    processes: Sequence[dict[str, Any]]


@dataclass
class Nested:
    """One run, and what it last said."""

    training: Training
    figures: dict[str, Any] = field(default_factory=dict)
    stopped_by: str | None = None
    wall_s: float = 0.0

    def advance(self, env_steps: int) -> list[dict[str, Any]]:
        began, rows = perf_counter(), []
        while self.stopped_by is None and self.training.counters.env_steps < env_steps:
            row = self.training.iterate()
            rows.append(row)
            self.figures.update(
                {name: value for name, value in row.items() if self.figures.get(name) is None or value is not None}
            )
            self.stopped_by = self.training.stop_reason()
        self.wall_s += perf_counter() - began
        self.figures.update(wall_s=self.wall_s, best_return=self.training.counters.best_return)
        return rows


class Trial:
    """Its runs are built on the engine that it is given, with workers of their own. A state fits every trial of the same
    env and network: settings are no part of it, so that those which a trial is given beside it hold from there on."""

    def __init__(
        self,
        engine: Engine,
        algo: str | Algorithm,
        env: EnvSpec,
        traits: Traits,
        configs: Configs,
        params: Mapping[str, Value],
    ) -> None:
        self.engine, self.env, self.traits, self._configs = engine, env, traits, configs
        self.algorithm = algo if isinstance(algo, Algorithm) else algorithms.get(algo)
        self._runs: list[Nested] = []
        self._build(params)

    def _build(self, params: Mapping[str, Value]) -> None:
        for config in self._configs(params):
            self._runs.append(Nested(Training(self.algorithm, self.env, config, self.engine, self.traits)))

    def advance(self, env_steps: int) -> Advanced:
        """Go on until every run has so many env steps, or is over."""
        rows = [run.advance(env_steps) for run in self._runs]
        ends = [run.stopped_by for run in self._runs]
        figures = mean_figures([run.figures for run in self._runs])
        return Advanced(rows, figures, None not in ends, all(end == "stop_return" for end in ends), self.processes())

    def policy(self) -> State:
        """The policy of the best return of the first run, or as it stands where there was none yet."""
        training = self._runs[0].training
        return training.best if training.best is not None else training.policy()

    def get_state(self) -> list[State]:
        """What going on depends on, the settings apart. Envs that can't give their state begin new episodes."""
        return [
            {
                **run.training.get_state(restart=True),
                "replay": get_replay(self.engine, run.training.optimizer, ()),
                "figures": dict(run.figures),
                "stopped_by": run.stopped_by,
                "wall_s": run.wall_s,
            }
            for run in self._runs
        ]

    def set_state(self, states: Sequence[State], params: Mapping[str, Value]) -> None:
        """Go on from a state, another trial's perhaps, with these parameters: its runs are built anew for them."""
        self._end_runs()
        self._build(params)
        for run, state in zip(self._runs, states, strict=True):
            run.training.optimizer.set_state(state["optimizer"])
            run.training.counters.set_state(state["counters"])
            run.training.best = state["best"]
            if state["replay"] is not None:
                set_replay(self.engine, run.training.optimizer, *state["replay"])
            run.figures, run.stopped_by, run.wall_s = dict(state["figures"]), state["stopped_by"], state["wall_s"]

    def processes(self) -> list[dict[str, Any]]:
        """Those of its runs, beside its own."""
        return self.engine.processes()[1:]

    def _end_runs(self) -> None:
        runs, self._runs = self._runs, []
        for run in runs:
            run.training.close()

    def close(self) -> None:
        try:
            self._end_runs()
        finally:
            self.engine.close()


def mean_figures(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The mean over the runs of every figure that all of them have, none where one has none yet; words are the first's."""
    if len(found) == 1:
        return dict(found[0])
    return {name: _mean([one[name] for one in found]) for name in found[0] if all(name in one for one in found)}


def _mean(values: Sequence[Any]) -> Any:
    if None in values:
        return None
    return sum(values) / len(values) if isinstance(values[0], int | float) else values[0]
