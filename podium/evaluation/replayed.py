"""The learner that learns from a replay: what is played goes into it, and minibatches are drawn from it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from podium.evaluation.evaluator import Evaluator
from podium.evaluation.sample import ONLY, Report, Sample, merge_reports
from podium.policies.base import Sgd
from podium.replay.base import Replay


@dataclass(frozen=True)
class Draws:
    """How minibatches are drawn: rows in each, the discount of the returns, and how far weights make up for priorities."""

    rows: int
    gamma: float
    beta: float = 0.0


DrawPlan = Callable[[float], Draws]  # by the progress of the run


class ReplayLearner(Evaluator):
    """An evaluator with a replay."""

    def __init__(self, *args: Any, make_replay: Callable[[], Replay], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._replay = make_replay()

    def insert(self, samples: Sequence[Sample], places: Sequence[int], of: int) -> Report:
        """Keep samples, each from one of `of` sources by its place from 1, and report what they held."""
        report = merge_reports([sample.report for sample in samples])
        for sample in samples:
            self._note_lag(report.metrics, sample.version)
        with self._timers.stage("insert"):
            by_place = dict(zip(places, samples, strict=True))
            batches = [by_place[place].batches[ONLY] if place in by_place else None for place in range(1, of + 1)]
            self._replay.insert(batches)
            for batch in batches:
                if batch is not None:
                    self.policy.observe(self.policy.observed(batch))
        report.metrics.last("replay_size", self._replay.size)
        report.timers.update(self._timers.take())
        return report

    def learn_replayed(self, updates: int, sgd: Sgd, draws: Draws) -> Report:
        """Learn on so many minibatches; the replay hears how wrong the policy was about each."""
        report = Report(learners=1)
        for _ in range(updates):
            with self._timers.stage("draw"):
                drawn = self._replay.sample(draws.rows, draws.gamma, draws.beta)
            with self._timers.stage("learn"):
                learned = self.policy.learn(drawn.batch, sgd)
            with self._timers.stage("draw"):
                self._replay.feedback(drawn.ids, learned.rows["error"])
            for name, value in learned.metrics.items():
                report.metrics.mean(name, value)
        report.timers.update(self._timers.take())
        return report

    def get_replay(self, known: Collection[str]) -> tuple[dict[str, Any], dict[str, Any]]:
        """The replay's state, and its pieces but for those that are known."""
        return self._replay.get_state(known)

    def set_replay(self, state: Mapping[str, Any], pieces: Mapping[str, Any]) -> None:
        self._replay.set_state(state, pieces)
