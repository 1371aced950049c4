"""Evolution: workers play perturbations of one vector, the learner steps by their returns; numbers travel, no weights back."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Literal

from podium.core import noise
from podium.core.errors import ConfigError
from podium.engine.base import Engine, Handle, Ref
from podium.engine.pool import Pool
from podium.evaluation.sample import Report, merge_reports
from podium.evaluation.search import Part, Scored
from podium.optimizers.base import State, pool_figures, timed

Late = Literal["use", "drop"]


class Evolution:
    """An update takes `count` perturbations, which are played in parts of `each`. They are those of the update's number,
    and what comes of them goes in their order, so that it is the same whoever plays and however many do.

    Nobody is waited for beyond the share `wait_for` of the perturbations, once none is left to be handed out. What comes later
    is used in the update that is then due, as though it were of that one's weights, or dropped; both are counted, and so
    are its env steps. What a lost worker was in the midst of is played again, as long as its update lasts.
    """

    def __init__(
        self,
        engine: Engine,
        learner: Handle,
        workers: Pool,
        *,
        seed: int,
        count: int,
        each: int,
        table_size: int,
        wait_for: float = 1.0,
        late: Late = "drop",
    ) -> None:
        self.engine, self._learner, self.workers = engine, learner, workers
        self.seed, self.count, self.each, self.wait_for, self.late = seed, count, each, wait_for, late
        self.updates = self.late_used = self.late_dropped = self.played_again = 0
        self._length: int = engine.get(learner.call("size"))
        self._table_size = table_size
        if table_size < self._length:
            raise ConfigError(
                f"--noise-table is {table_size}, expected at least the policy's {self._length} parameters"
            )
        self._table = engine.put(noise.table(seed, table_size))
        self._asked: dict[int, tuple[int, Part]] = {}  # by worker: who it was then, and what it plays

    def learner(self) -> Handle:
        return self._learner

    def step(self, progress: float) -> Report:
        stages = Report()
        with timed(stages, "sampling"):
            came = self._scored(self._learner.call("centre", progress))
        with timed(stages, "learning"):
            came.sort(key=lambda one: (one[1].part.update, one[1].part.first))
            used = self._used(came)
            advanced = self.engine.get(self._learner.call("advance", used, self._table, progress))
        self.updates += 1
        report = merge_reports([*(one.report for _, one in came), advanced, stages])
        report.samplers, report.slowest_s = len(self.workers), _slowest(came)
        report.metrics.last("late_used", self.late_used)
        report.metrics.last("late_dropped", self.late_dropped)
        report.metrics.last("played_again", self.played_again)
        return pool_figures(report, self.workers)

    def _scored(self, centre: Ref) -> list[tuple[int, Scored]]:
        """What came while this update's perturbations were played, each with its worker."""
        waiting, missing = deque(self._parts()), self.count
        allowed = math.floor((1.0 - self.wait_for) * self.count)
        came: list[tuple[int, Scored]] = []
        while waiting or missing > allowed:
            self._hand_out(waiting, centre)
            for one in self.workers.wait():
                if self._asked.pop(one.index, None) is not None:
                    scored: Scored = self.engine.get(one.ref)
                    came.append((one.index, scored))
                    missing -= len(scored.part.offsets) if scored.part.update == self.updates else 0
            self._take_back(waiting)
        return came

    def _parts(self) -> Iterator[Part]:
        offsets = noise.offsets(self.seed, self.updates, self.count, self._table_size, self._length)
        for first in range(0, self.count, self.each):
            yield Part(self.updates, first, offsets[first : first + self.each])

    def _hand_out(self, waiting: deque[Part], centre: Ref) -> None:
        for index in self.workers.free:
            if waiting and index not in self._asked:
                part = waiting.popleft()
                self._asked[index] = self.workers.generation(index), part
                self.workers.call(index, "score", part, centre, self._table)

    def _take_back(self, waiting: deque[Part]) -> None:
        """What was with workers that are no more."""
        for index, (generation, part) in list(self._asked.items()):
            if self.workers.generation(index) != generation:
                del self._asked[index]
                if part.update == self.updates:
                    waiting.appendleft(part)
                    self.played_again += len(part.offsets)

    def _used(self, came: Sequence[tuple[int, Scored]]) -> list[Scored]:
        used = []
        for _, one in came:
            is_late = one.part.update < self.updates
            if is_late and self.late == "drop":
                self.late_dropped += len(one.part.offsets)
                continue
            self.late_used += len(one.part.offsets) if is_late else 0
            used.append(one)
        return used

    def get_state(self, restart: bool) -> State:
        """Where nobody's results come late, an update depends on its number and the learner alone."""
        state = self.engine.get(self._learner.call("get_state", restart))
        exact = self.wait_for == 1.0 or not self.engine.apart
        return {"updates": self.updates, "evaluators": [{**state, "exact": exact}]}

    def set_state(self, state: State) -> None:
        """What is still under way is of another course of things, and will not be looked at."""
        self.engine.get(self._learner.call("set_state", state["evaluators"][0]))
        self.updates = state["updates"]
        self._asked.clear()

    def adopt(self, policy: State) -> None:
        self.engine.get(self._learner.call("start_from", policy))

    def close(self) -> None:
        self.workers.close()
        self.engine.kill(self._learner)


def _slowest(came: Sequence[tuple[int, Scored]]) -> float:
    """The seconds of the worker that took longest for all of its parts."""
    busy: dict[int, float] = {}
    for index, one in came:
        busy[index] = busy.get(index, 0.0) + one.report.slowest_s
    return max(busy.values(), default=0.0)
