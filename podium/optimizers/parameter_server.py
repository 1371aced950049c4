"""A parameter server: the weights lie in shards, workers push gradients to all of them and pull what comes of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from podium.core.sgd import Adam, shrink
from podium.engine.base import Engine, Handle, Ref, Resources
from podium.engine.pool import Finished, Pool
from podium.evaluation.sample import Report, merge_reports
from podium.optimizers.base import SgdPlan, State, everyone, pool_figures, restore, states, timed

Rule = Callable[[float], tuple[float, float | None]]  # progress -> (step size, longest gradient)


class Shard:
    """One part of the parameters, with the part of Adam's state that belongs to it."""

    def __init__(self, eps: float) -> None:
        self._eps = eps
        self.begin(np.zeros(0, np.float32))

    def begin(self, vector: np.ndarray) -> None:
        self._vector = np.array(vector, np.float32)
        self._adam = Adam(len(vector), self._eps)
        self._mean: np.ndarray | None = None

    def pull(self) -> np.ndarray:
        return self._vector.copy()

    def push(self, gradient: np.ndarray, scale: float, lr: float) -> np.ndarray:
        """Step against one worker's gradient."""
        self._adam.step(self._vector, gradient * np.float32(scale), lr)
        return self.pull()

    def gather(self, gradients: Sequence[np.ndarray], weights: Sequence[float]) -> float:
        """Keep the mean of several gradients, added up in their order, and return its squared length."""
        total = np.zeros_like(self._vector)
        for gradient, weight in zip(gradients, weights, strict=True):
            total += gradient * np.float32(weight)
        self._mean = total
        return float(np.dot(total, total))

    def step(self, scale: float, lr: float) -> np.ndarray:
        """Step against the mean that was gathered."""
        assert self._mean is not None
        return self.push(self._mean, scale, lr)

    def get_state(self) -> State:
        return {"vector": self.pull(), "adam": self._adam.get_state()}

    def set_state(self, state: State) -> None:
        self._vector[:] = state["vector"]
        self._adam.set_state(state["adam"])


class ParameterServer:
    """With `synchronous` a step takes a gradient of every worker and applies their mean; else each is applied as it
    comes. Gradients go from the workers to the shards in parts; the controller sees their lengths alone."""

    def __init__(
        self,
        engine: Engine,
        learner: Handle,
        workers: Pool,
        fragment: int,
        sgd: SgdPlan,
        *,
        shards: int,
        rule: Rule,
        eps: float,
        synchronous: bool = False,
    ) -> None:
        self.engine, self._learner, self.workers = engine, learner, workers
        self.fragment, self.sgd, self.rule, self.synchronous = fragment, sgd, rule, synchronous
        self.updates = 0
        self.shards = [
            engine.spawn(Shard, eps, name=f"shard-{index}", resources=Resources(near=True)) for index in range(shards)
        ]
        self._parts: Sequence[Ref] = []
        self._fill_shards()

    def _fill_shards(self) -> None:
        """Give every shard its part of the learner's parameters; what it knew of earlier ones is forgotten."""
        self._parts = self._learner.split(len(self.shards), "parameters", len(self.shards))
        self.engine.get([shard.call("begin", part) for shard, part in zip(self.shards, self._parts, strict=True)])

    def learner(self) -> Handle:
        """With the shards' weights brought together in it."""
        self.engine.get(self._learner.call("set_parameters", self._parts, self.updates))
        return self._learner

    def step(self, progress: float) -> Report:
        stages = Report()
        with timed(stages, "sampling"):
            self._keep_busy(progress)
            finished = list(self.workers.wait())
            while self.synchronous and self.workers.in_flight:
                finished += self.workers.wait()
        with timed(stages, "learning"):
            finished.sort(key=lambda one: one.index)
            reports = self.engine.get([one.ref for one in finished])
            (self._apply_mean if self.synchronous else self._apply_each)(finished, reports, progress)
            self.engine.check(self._learner.call("observe", [one.parts[0] for one in finished]))
        report = merge_reports([*reports, stages])
        report.samplers, report.learners, report.overlapping = len(self.workers), 1, not self.synchronous
        return pool_figures(report, self.workers)

    def _keep_busy(self, progress: float) -> None:
        if free := self.workers.free:
            filters = self._learner.call("filters", progress)
            args = (self.fragment, self.sgd(progress, self.updates), self._parts, filters, len(self.shards))
            for index in free:
                self.workers.call(index, "push_gradients", *args, tag=self.updates, parts=len(self.shards) + 1)

    def _apply_each(self, finished: Sequence[Finished], reports: Sequence[Report], progress: float) -> None:
        """One update for each gradient; its worker goes on at once."""
        lr, longest = self.rule(progress)
        for one, report in zip(finished, reports, strict=True):
            scale = shrink(report.metrics.values()["gradient_norm"], longest)
            report.metrics.mean("weight_lag", self.updates - one.tag)
            report.metrics.max("weight_lag_max", self.updates - one.tag)
            self._step([s.call("push", part, scale, lr) for s, part in zip(self.shards, one.parts[1:], strict=True)])
            self._keep_busy(progress)

    def _apply_mean(self, finished: Sequence[Finished], reports: Sequence[Report], progress: float) -> None:
        """One update by the mean of all, each by its number of rows; no longer than may be as a whole."""
        lr, longest = self.rule(progress)
        total = max(sum(report.env_steps for report in reports), 1)
        weights = [report.env_steps / total for report in reports]
        columns = zip(*(one.parts[1:] for one in finished), strict=True)
        calls = [shard.call("gather", list(parts), weights) for shard, parts in zip(self.shards, columns, strict=True)]
        scale = shrink(math.sqrt(sum(self.engine.get(calls))), longest)
        self._step([shard.call("step", scale, lr) for shard in self.shards])

    def _step(self, parts: Sequence[Ref]) -> None:
        for part in parts:
            self.engine.check(part)
        self._parts = parts
        self.updates += 1

    def get_state(self, restart: bool) -> State:
        learner = self.learner()
        shards: list[Any] = self.engine.get([shard.call("get_state") for shard in self.shards])
        if self.synchronous:
            evaluators = states(self.engine, everyone(learner, self.workers), restart)
        else:
            evaluators = [{**self.engine.get(learner.call("get_state", restart)), "exact": False}]
        return {"updates": self.updates, "evaluators": evaluators, "shards": shards}

    def set_state(self, state: State) -> None:
        restore(self.engine, everyone(self._learner, self.workers), state["evaluators"])
        calls = zip(self.shards, state["shards"], strict=True)
        self.engine.get([shard.call("set_state", saved) for shard, saved in calls])
        self._parts = [shard.call("pull") for shard in self.shards]
        self.updates = state["updates"]

    def adopt(self, policy: State) -> None:
        self.engine.get(self._learner.call("start_from", policy))
        self._fill_shards()

    def close(self) -> None:
        self.workers.close()
        for handle in (*self.shards, self._learner):
            self.engine.kill(handle)
