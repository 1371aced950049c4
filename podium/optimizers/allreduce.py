"""Allreduce: every evaluator plays and learns on its own experience; gradients are averaged among them, in their group."""

from __future__ import annotations

from podium.core.errors import GroupBroken, TrainingError, WorkerDied
from podium.engine.base import Engine, Group, Handle, Ref
from podium.engine.pool import Pool
from podium.evaluation.sample import Report, merge_reports
from podium.optimizers.base import SgdPlan, State, everyone, pool_figures, restore, states, timed

PATIENCE_S = 10.0
"""How long the others wait for the replacement of one that died, before they go on without it for a while."""

GIVING_UP_S = 1.0


class AllReduce:
    """The ranks are a pool's workers, with equal weights at all times; no data comes past the controller. When one dies
    the group forms anew around those that are left, and its replacement takes over their weights."""

    def __init__(self, engine: Engine, ranks: Pool, fragment: int, sgd: SgdPlan) -> None:
        self.engine, self.ranks = engine, ranks
        self.fragment, self.sgd = fragment, sgd
        self.updates = 0
        self._group: Group | None = None
        first = ranks.up[0]
        self._equal = {first: ranks.generation(first)}  # who has the weights, by which holder of the place

    def learner(self) -> Handle:
        return self.ranks.handle(next(iter(self._equal)))

    def step(self, progress: float) -> Report:
        stages = Report()
        with timed(stages, "learning"):
            reports = None
            while reports is None:
                reports = self._together(self._joined(), progress)
        self.updates += 1
        report = merge_reports(reports)
        report.timers.update(stages.timers)
        return pool_figures(report, self.ranks)

    def _together(self, group: Group, progress: float) -> list[Report] | None:
        """Everyone's reports of one fragment, or None if somebody failed, who is then replaced."""
        sgd = self.sgd(progress, self.updates)
        refs = group.call("sample_and_learn", [(self.fragment, sgd)] * len(group.handles))
        limit = self.ranks.time_limit
        if len(self.engine.wait(refs, len(refs), limit)[0]) < len(refs):
            self.engine.wait(refs, len(refs), limit + GIVING_UP_S)  # those who only wait for one that is late give up
        errors = {index: self._error(ref) for index, ref in zip(sorted(self._equal), refs, strict=True)}
        if not any(errors.values()):
            self.ranks.note_success()
            return self.engine.get(refs)
        self._disband()
        for index, error in errors.items():
            if isinstance(error, TrainingError):
                raise error
            if error is not None and not isinstance(error, GroupBroken):
                self.ranks.fail(index, error)
        return None

    def _error(self, ref: Ref) -> Exception | None:
        try:
            self.engine.check(ref, 0.0)
        except Exception as error:
            return error
        return None

    def _joined(self) -> Group:
        """The group as it is, or a new one in which everybody has the weights of one that is still there."""
        self.ranks.poll()
        up = {index: self.ranks.generation(index) for index in self.ranks.up}
        if self._group is not None and up == self._equal:
            return self._group
        self._disband()
        self.ranks.check_alive()
        self.ranks.wait_for_all(PATIENCE_S)
        up = {index: self.ranks.generation(index) for index in self.ranks.up}
        stayed = [index for index in up if self._equal.get(index) == up[index]]
        if not stayed:
            raise WorkerDied("every member of the group is gone, and the weights with them: resume the run")
        policy = self.ranks.handle(stayed[0]).call("policy_state", True)
        others = [self.ranks.handle(index) for index in up if index != stayed[0]]
        self.engine.get([handle.call("learn_from_here", policy) for handle in others], self.ranks.time_limit)
        self._equal = up
        members = [self.ranks.handle(index) for index in sorted(up)]
        self._group = self.engine.group(members, self.ranks.time_limit)
        return self._group

    def _disband(self) -> None:
        if self._group is not None:
            self._group.close()
            self._group = None

    def _in_order(self) -> list[Handle | None]:
        """The ranks; where the first is missing, another stands in its place, so that the weights are there."""
        first, *others = everyone(self.ranks.handle(1), self.ranks)
        return [first if 1 in self._equal and 1 in self.ranks.up else self.learner(), *others]

    def get_state(self, restart: bool) -> State:
        return {"updates": self.updates, "evaluators": states(self.engine, self._in_order(), restart)}

    def set_state(self, state: State) -> None:
        restore(self.engine, self._in_order(), state["evaluators"])
        self.updates = state["updates"]

    def adopt(self, policy: State) -> None:
        self.engine.get(self.learner().call("start_from", policy))
        self._disband()  # the next step makes the others equal

    def close(self) -> None:
        self._disband()
        self.ranks.close()
