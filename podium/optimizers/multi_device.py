"""Multi-device: samples are divided once among the memories of several devices, and many passes are made there."""

from __future__ import annotations

from collections.abc import Sequence

from podium.core.errors import ArgumentLost
from podium.engine.base import Engine, Handle, Ref
from podium.engine.pool import Pool
from podium.evaluation.sample import Report, merge_reports
from podium.optimizers.base import SgdPlan, State, everyone, newest, pool_figures, restore, states, timed, together


class MultiDevice:
    """The learners hold equal weights, one device each; gradients are averaged among them at every step. A device takes
    at most `memory` bytes of a batch; without a figure, what it says is free."""

    def __init__(
        self,
        engine: Engine,
        learners: Sequence[Handle],
        samplers: Pool,
        fragment: int,
        sgd: SgdPlan,
        memory: int | None = None,
    ) -> None:
        self.engine, self.learners, self.samplers = engine, list(learners), samplers
        self.fragment, self.sgd, self.memory = fragment, sgd, memory
        self.updates = 0
        self._make_equal()
        self._group = engine.group(self.learners)

    def learner(self) -> Handle:
        return self.learners[0]

    def _make_equal(self) -> None:
        policy = self.learners[0].call("policy_state", True)
        self.engine.get([other.call("learn_from_here", policy) for other in self.learners[1:]])

    def step(self, progress: float) -> Report:
        stages = Report()
        with timed(stages, "sampling"):
            weights = newest(self.learners[0], self.samplers, progress)
        loaded = None
        while loaded is None:
            loaded = self._loaded(weights, stages)
        with timed(stages, "learning"):
            parts = len(self.learners)
            sgd = self.sgd(progress, self.updates)
            learned = together(self.engine, self._group.call("learn_loaded", [(sgd,)] * parts))
        self.updates += 1
        report = merge_reports([*loaded, *learned])
        report.timers.update(stages.timers)
        return pool_figures(report, self.samplers)

    def _loaded(self, weights: Ref, stages: Report) -> list[Report] | None:
        """The learners' reports of the samples that they hold now, or None if one was lost with the machine it lay on."""
        with timed(stages, "sampling"):
            samples = [sample.ref for sample in self.samplers.each("sample", self.fragment, weights)]
        with timed(stages, "learning"):
            parts = len(self.learners)
            loads = [one.call("load", samples, part, parts, self.memory) for part, one in enumerate(self.learners)]
            try:
                return self.engine.get(loads)
            except ArgumentLost:
                self.samplers.lost += len(samples)
                return None

    def get_state(self, restart: bool) -> State:
        return {
            "updates": self.updates,
            "evaluators": states(self.engine, everyone(self.learners[0], self.samplers), restart),
        }

    def set_state(self, state: State) -> None:
        restore(self.engine, everyone(self.learners[0], self.samplers), state["evaluators"])
        self._make_equal()
        self.updates = state["updates"]

    def adopt(self, policy: State) -> None:
        self.engine.get(self.learners[0].call("start_from", policy))
        self._make_equal()

    def close(self) -> None:
        self._group.close()
        self.samplers.close()
        for learner in self.learners:
            self.engine.kill(learner)
