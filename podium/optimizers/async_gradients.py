"""Asynchronous gradients (A3C): workers compute gradients on their own experience, applied in the order they come."""

from __future__ import annotations

from podium.core.errors import ArgumentLost
from podium.engine.base import Engine, Handle
from podium.engine.pool import Pool
from podium.evaluation.sample import Report, merge_reports
from podium.optimizers.base import SgdPlan, State, pool_figures, timed


class AsyncGradients:
    """Each worker gets the newest weights with every call; how far they have moved on when its gradient is applied is the
    weight lag."""

    def __init__(self, engine: Engine, learner: Handle, workers: Pool, fragment: int, sgd: SgdPlan) -> None:
        self.engine, self._learner, self.workers = engine, learner, workers
        self.fragment, self.sgd = fragment, sgd
        self.updates = 0

    def learner(self) -> Handle:
        return self._learner

    def step(self, progress: float) -> Report:
        stages, reports = Report(), []
        self._keep_busy(progress)
        with timed(stages, "sampling"):
            finished = self.workers.wait()
        with timed(stages, "learning"):
            for one in finished:
                applied = self._learner.call("apply", one.ref, self.sgd(progress, self.updates))
                try:
                    reports.append(self.engine.get(applied))
                    self.updates += 1
                except ArgumentLost:  # with the machine it lay on
                    self.workers.lost += 1
                self._keep_busy(progress)
        report = merge_reports([*reports, stages])
        report.samplers, report.learners, report.overlapping = len(self.workers), 1, True
        return pool_figures(report, self.workers)

    def _keep_busy(self, progress: float) -> None:
        if free := self.workers.free:
            weights = self._learner.call("get_weights", progress)
            for index in free:
                self.workers.call(index, "compute_gradients", self.fragment, self.sgd(progress, self.updates), weights)

    def get_state(self, restart: bool) -> State:
        """The learner's state: what the workers are in the midst of has no order that could be had again."""
        state = self.engine.get(self._learner.call("get_state", restart))
        return {"updates": self.updates, "evaluators": [{**state, "exact": False}]}

    def set_state(self, state: State) -> None:
        self.engine.get(self._learner.call("set_state", state["evaluators"][0]))
        self.updates = state["updates"]

    def adopt(self, policy: State) -> None:
        self.engine.get(self._learner.call("start_from", policy))

    def close(self) -> None:
        self.workers.close()
        self.engine.kill(self._learner)
