"""Synchronous samples: every sampler plays a fragment with the same weights, the learner learns on all of them."""

from __future__ import annotations

from podium.core.errors import ArgumentLost
from podium.engine.base import Engine, Handle, Ref
from podium.engine.pool import Pool
from podium.evaluation.sample import Report
from podium.optimizers.base import SgdPlan, State, everyone, newest, pool_figures, restore, states, timed


class SyncSamples:
    """The samplers may be the learner alone."""

    def __init__(self, engine: Engine, learner: Handle, samplers: Pool, fragment: int, sgd: SgdPlan) -> None:
        self.engine, self._learner, self.samplers = engine, learner, samplers
        self.fragment, self.sgd = fragment, sgd
        self.updates = 0

    def learner(self) -> Handle:
        return self._learner

    def step(self, progress: float) -> Report:
        stages = Report()
        with timed(stages, "sampling"):
            weights = newest(self._learner, self.samplers, progress)
        report = None
        while report is None:
            report = self._learned(weights, progress, stages)
        self.updates += 1
        report.timers.update(stages.timers)
        return pool_figures(report, self.samplers)

    def _learned(self, weights: Ref, progress: float, stages: Report) -> Report | None:
        """The learner's report of everyone's samples, or None if one was lost with the machine it lay on."""
        with timed(stages, "sampling"):
            refs = [sample.ref for sample in self.samplers.each("sample", self.fragment, weights)]
        with timed(stages, "learning"):
            try:
                return self.engine.get(self._learner.call("learn", refs, self.sgd(progress, self.updates)))
            except ArgumentLost:
                self.samplers.lost += len(refs)
                return None

    def get_state(self, restart: bool) -> State:
        return {
            "updates": self.updates,
            "evaluators": states(self.engine, everyone(self._learner, self.samplers), restart),
        }

    def set_state(self, state: State) -> None:
        restore(self.engine, everyone(self._learner, self.samplers), state["evaluators"])
        self.updates = state["updates"]

    def adopt(self, policy: State) -> None:
        self.engine.get(self._learner.call("start_from", policy))

    def close(self) -> None:
        self.samplers.close()
        self.engine.kill(self._learner)
