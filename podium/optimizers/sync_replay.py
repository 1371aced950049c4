"""Synchronous replay (DQN): samplers play with the newest weights into the learner's replay, which it then learns from."""

from __future__ import annotations

from podium.core.errors import ArgumentLost
from podium.engine.base import Engine, Handle, Ref
from podium.engine.pool import Pool
from podium.evaluation.replayed import DrawPlan, Draws
from podium.evaluation.sample import Report, in_turn, merge_reports
from podium.optimizers.base import SgdPlan, State, everyone, pool_figures, restore, states, timed


class SyncReplay:
    """An update is a minibatch, and is due for each `every` env steps beyond the first `starts`. The samplers may be the
    learner alone. Sampling and learning take turns until `log_every` env steps are there to report."""

    def __init__(
        self,
        engine: Engine,
        learner: Handle,
        samplers: Pool,
        fragment: int,
        sgd: SgdPlan,
        draws: DrawPlan,
        *,
        starts: int,
        every: float,
        log_every: int = 1,
    ) -> None:
        self.engine, self._learner, self.samplers = engine, learner, samplers
        self.fragment, self.sgd, self.draws = fragment, sgd, draws
        self.starts, self.every, self.log_every = starts, every, log_every
        self.updates = self.seen = 0

    def learner(self) -> Handle:
        return self._learner

    def step(self, progress: float) -> Report:
        turns: list[Report] = []
        draws, until = self.draws(progress), self.seen + self.log_every
        while not turns or self.seen < until:
            turns.append(self._turn(progress, draws))
        return pool_figures(in_turn(turns), self.samplers)

    def _turn(self, progress: float, draws: Draws) -> Report:
        stages = Report()
        with timed(stages, "sampling"):
            weights = self._learner.call("get_weights", progress)
        report = None
        while report is None:
            report = self._inserted(weights, stages)
        before, self.seen = self.seen, self.seen + report.env_steps
        due = self._due(self.seen) - self._due(before)
        if due and report.metrics.values()["replay_size"] >= draws.rows:
            with timed(stages, "learning"):
                learn = self._learner.call("learn_replayed", due, self.sgd(progress, self.updates), draws)
                learned = self.engine.get(learn)
            self.updates += due
            report = merge_reports([report, learned])
        report.timers.update(stages.timers)
        return report

    def _due(self, seen: int) -> int:
        return max(int((seen - self.starts) / self.every), 0)

    def _inserted(self, weights: Ref, stages: Report) -> Report | None:
        """The learner's report of everyone's samples, or None if one was lost with the machine it lay on."""
        with timed(stages, "sampling"):
            played = self.samplers.each("sample", self.fragment, weights)
            refs, places = [one.ref for one in played], [one.index for one in played]
        with timed(stages, "learning"):
            try:
                return self.engine.get(self._learner.call("insert", refs, places, len(self.samplers)))
            except ArgumentLost:
                self.samplers.lost += len(refs)
                return None

    def get_state(self, restart: bool) -> State:
        """All but the replay, which the learner is asked for when a checkpoint is written."""
        evaluators = states(self.engine, everyone(self._learner, self.samplers), restart)
        return {"updates": self.updates, "seen": self.seen, "evaluators": evaluators}

    def set_state(self, state: State) -> None:
        restore(self.engine, everyone(self._learner, self.samplers), state["evaluators"])
        self.updates, self.seen = state["updates"], state["seen"]

    def adopt(self, policy: State) -> None:
        self.engine.get(self._learner.call("start_from", policy))

    def close(self) -> None:
        self.samplers.close()
        self.engine.kill(self._learner)
