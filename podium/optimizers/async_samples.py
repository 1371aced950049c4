"""Asynchronous samples (IMPALA): samplers play on while the learner learns on what they played with older weights."""

from __future__ import annotations

from collections import deque

from podium.core.errors import ArgumentLost
from podium.engine.base import Engine, Handle, Ref
from podium.engine.pool import Finished, Pool
from podium.evaluation.sample import Report
from podium.optimizers.base import SgdPlan, State, newest, pool_figures, timed


class AsyncSamples:
    """A queue of samples stands between the samplers and the learner. When it is full the samplers wait; samples whose
    weights are more than `max_lag` updates old are dropped, and counted."""

    def __init__(
        self,
        engine: Engine,
        learner: Handle,
        samplers: Pool,
        fragment: int,
        sgd: SgdPlan,
        *,
        samples: int = 1,
        queue: int = 8,
        max_lag: int | None = None,
    ) -> None:
        self.engine, self._learner, self.samplers = engine, learner, samplers
        self.fragment, self.sgd = fragment, sgd
        self.samples, self.max_lag = samples, max_lag
        self.queue_size = max(queue, samples, len(samplers))  # with less some would never play
        self.updates = self.dropped = 0
        self._queue: deque[Finished] = deque()
        self._weights: Ref | None = None
        self._learning: Ref | None = None

    def learner(self) -> Handle:
        return self._learner

    def step(self, progress: float) -> Report:
        stages = Report()
        if self._weights is None:
            self._weights = newest(self._learner, self.samplers, progress)
        report = None
        while report is None:
            report = self._learned(progress, stages)
        self.updates += 1
        self._weights = newest(self._learner, self.samplers, progress)
        report.metrics.last("queue_depth", len(self._queue))
        report.metrics.last("samples_dropped", self.dropped)
        report.samplers, report.learners, report.overlapping = len(self.samplers), 1, True
        report.timers.update(stages.timers)
        return pool_figures(report, self.samplers)

    def _learned(self, progress: float, stages: Report) -> Report | None:
        """The learner's report of the oldest samples, or None if one was lost with the machine it lay on."""
        self._learn(progress)
        while self._learning is None:
            with timed(stages, "sampling"):
                self._sample()
            self._learn(progress)
        learning, self._learning = self._learning, None
        with timed(stages, "learning"):
            ended = bool(self.engine.wait([learning], 1, 0.0)[0])
            while not ended:
                self._sample(until=learning)
                ended = self.samplers.until_ended
            try:
                return self.engine.get(learning)
            except ArgumentLost:
                self.samplers.lost += self.samples
                return None

    def _sample(self, until: Ref | None = None) -> None:
        """Keep the samplers playing, and queue what has come; wait for that, or until the call given has ended."""
        room = self.queue_size - len(self._queue) - self.samplers.in_flight
        for index in self.samplers.free[: max(room, 0)]:
            self.samplers.call(index, "sample", self.fragment, self._weights, tag=self.updates)
        self._queue += self.samplers.wait(until=until)

    def _learn(self, progress: float) -> None:
        """Begin to learn on the oldest samples, if enough of them are young enough."""
        while self.max_lag is not None and self._queue and self.updates - self._queue[0].tag > self.max_lag:
            self._queue.popleft()
            self.dropped += 1
        if len(self._queue) >= self.samples:
            refs = [self._queue.popleft().ref for _ in range(self.samples)]
            self._learning = self._learner.call("learn", refs, self.sgd(progress, self.updates))

    def get_state(self, restart: bool) -> State:
        """The learner's state: what the samplers are in the midst of has no order that could be had again."""
        state = self.engine.get(self._learner.call("get_state", restart))
        return {"updates": self.updates, "evaluators": [{**state, "exact": False}]}

    def set_state(self, state: State) -> None:
        self.engine.get(self._learner.call("set_state", state["evaluators"][0]))
        self.updates = state["updates"]

    def adopt(self, policy: State) -> None:
        self.engine.get(self._learner.call("start_from", policy))
        self._weights = None

    def close(self) -> None:
        self.samplers.close()
        self.engine.kill(self._learner)
