"""Synchronous samples: every sampler plays a fragment with the same weights, the learner learns on all of them."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Any

from podium.engine.base import Engine, Handle
from podium.evaluation.evaluator import concat_samples
from podium.optimizers.base import SgdPlan, Step


class SyncSamples:
    """`samplers` are the evaluators that play; the learner may be among them."""

    def __init__(
        self, engine: Engine, learner: Handle, samplers: Sequence[Handle], fragment: int, sgd: SgdPlan
    ) -> None:
        self.engine, self.learner, self.samplers = engine, learner, list(samplers)
        self.fragment, self.sgd = fragment, sgd
        self.evaluators: Sequence[Handle] = [learner, *(sampler for sampler in samplers if sampler is not learner)]
        self.updates = 0

    def step(self, progress: float) -> Step:
        engine = self.engine
        began = perf_counter()
        weights = self.learner.call("get_weights", progress)
        engine.get([sampler.call("set_weights", weights) for sampler in self.samplers])
        sent = perf_counter()
        sample = concat_samples(engine.get([sampler.call("sample", self.fragment) for sampler in self.samplers]))
        sampled = perf_counter()
        metrics = engine.get(self.learner.call("learn", sample, self.sgd(progress, self.updates)))
        self.updates += 1
        metrics.update(sample.metrics)
        timers = {"weights": sent - began, "sample": sampled - sent, "learn": perf_counter() - sampled, **sample.timers}
        return Step(sample.env_steps, sample.episodes, metrics, timers)

    def get_state(self, restart: bool) -> dict[str, Any]:
        states = self.engine.get([evaluator.call("get_state", restart) for evaluator in self.evaluators])
        return {"updates": self.updates, "evaluators": states}

    def set_state(self, state: dict[str, Any]) -> None:
        calls = zip(self.evaluators, state["evaluators"], strict=True)
        self.engine.get([evaluator.call("set_state", saved) for evaluator, saved in calls])
        self.updates = state["updates"]

    def close(self) -> None:
        for evaluator in self.evaluators:
            self.engine.kill(evaluator)
