"""A replay in shards, apart from who learns: those who play into it, the shards, and the learner that is sent minibatches."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np

from podium.core.batch import Batch
from podium.evaluation.evaluator import Evaluator
from podium.evaluation.replayed import Draws
from podium.evaluation.sample import ONLY, Report
from podium.policies.base import Prioritizing, Sgd, Weights
from podium.replay.base import ERROR, Drawn, Replay
from podium.replay.uniform import UniformReplay


@dataclass(frozen=True)
class Experience:
    """What one evaluator has played, on its way to a shard, and what the learner's filters are to see of it."""

    batch: Batch
    observed: Mapping[str, Any]


@dataclass(frozen=True)
class Held:
    """What a shard holds: rows that can be drawn, and what they weigh together; and the seconds it has worked since it
    said so last."""

    size: int = 0
    total: float = 0.0
    worked_s: float = 0.0


@dataclass(frozen=True)
class Handed:
    """Minibatches on their way to the learner, and what its filters are to see."""

    drawn: Drawn
    observed: Sequence[Mapping[str, Any]]


class Player(Evaluator):
    """An evaluator that says with its experience how wrong its policy is about the transitions which that completes, if it
    has somewhere to keep its latest rows and its policy can tell."""

    def __init__(self, *args: Any, make_recent: Callable[[], UniformReplay] | None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._recent = make_recent() if make_recent is not None else None

    def play(self, steps: int, weights: Weights, gamma: float) -> list[Any]:
        """A fragment: its report, and the experience."""
        sample = self.sample(steps, weights)
        batch, report = sample.batches[ONLY], sample.report
        with self._timers.stage("postprocess"):
            if self._recent is not None and isinstance(self.policy, Prioritizing):
                batch = batch.with_columns(**{ERROR: self._errors(batch, self._recent, self.policy, gamma)})
            observed = self.policy.observed(batch)
        report.timers["postprocess"] += self._timers.take()["postprocess"]
        return [report, Experience(batch, observed)]

    def _errors(self, batch: Batch, recent: UniformReplay, policy: Prioritizing, gamma: float) -> np.ndarray:
        recent.insert([batch])
        errors = np.full((batch.length, batch.width), np.nan, np.float32)
        completed = recent.newest(gamma)
        if completed.width:
            found = policy.priorities(completed).reshape(-1, batch.width)
            errors[batch.length - len(found) :] = found
        return errors


class ReplayShard:
    """A part of the replay, in a place of its own."""

    def __init__(self, make_replay: Callable[[], Replay]) -> None:
        self._replay = make_replay()
        self._observed: list[Mapping[str, Any]] = []
        self._worked = 0.0

    def insert(self, played: Sequence[Experience], places: Sequence[int], of: int) -> Held:
        """Keep a fragment each of some of its `of` sources, by their places from 1."""
        began = perf_counter()
        batches: list[Batch | None] = [None] * of
        for place, one in zip(places, played, strict=True):
            batches[place - 1] = one.batch
        self._replay.insert(batches)
        self._observed += [one.observed for one in played if one.observed]
        return self._held(began)

    def draw(self, count: int, draws: Draws) -> list[Any]:
        """What it holds, and `count` minibatches in one: the rows of each are those of every `count`-th place, so that each
        has its own from every part of the priorities."""
        began = perf_counter()
        drawn = self._replay.sample(count * draws.rows, draws.gamma, draws.beta)
        observed, self._observed = self._observed, []
        return [self._held(began), Handed(drawn, observed)]

    def feedback(self, told: tuple[np.ndarray, np.ndarray]) -> Held:
        """How wrong the policy was about rows that were drawn here."""
        began = perf_counter()
        self._replay.feedback(*told)
        return self._held(began)

    def _held(self, began: float) -> Held:
        return Held(self._replay.size, self._replay.total, perf_counter() - began)

    def get_replay(self, known: Collection[str]) -> tuple[dict[str, Any], dict[str, Any]]:
        """The replay's state, and its pieces but for those that are known."""
        return self._replay.get_state(known)

    def set_replay(self, state: Mapping[str, Any], pieces: Mapping[str, Any]) -> Held:
        began = perf_counter()
        self._replay.set_state(state, pieces)
        return self._held(began)


class ShardedLearner(Evaluator):
    """A learner that is handed its minibatches."""

    def learn_handed(self, handed: Handed, count: int, sgd: Sgd) -> list[Any]:
        """Learn on each of `count` minibatches: the report, and how wrong the policy was about which rows."""
        report, drawn = Report(learners=1), handed.drawn
        found = []
        with self._timers.stage("learn"):
            for observed in handed.observed:
                self.policy.observe(observed)
            for number in range(count):
                learned = self.policy.learn(drawn.batch.slice(envs=slice(number, None, count)), sgd)
                found.append(learned.rows["error"])
                for name, value in learned.metrics.items():
                    report.metrics.mean(name, value)
        report.timers.update(self._timers.take())
        errors = np.stack(found, axis=-1).reshape(*found[0].shape[:-1], -1)  # back in the order of the draw
        return [report, (drawn.ids, errors)]
