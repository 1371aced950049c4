"""The evaluator: policies and a vector env, turning weights into experience. A learner is one without an env."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from podium.core import seeding
from podium.core.metrics import Metrics
from podium.envs.base import VectorEnv
from podium.evaluation.collector import Collecting, Collector, Paced
from podium.evaluation.holder import Holder
from podium.evaluation.sample import ONLY, WORK, Gradients, Report, Sample, concat_samples
from podium.policies.base import Policy, Reduce, Sgd, Weights


class Evaluator(Holder):
    """Samples with its policy in its own envs, and learns. `index` 0 is the learner, workers count from 1; one that
    takes a lost worker's place says how many came before it, so that it plays other episodes. `players` is how many play
    beside each other, with itself."""

    policy: Policy

    def __init__(
        self,
        make_policy: Callable[[], Policy],
        make_env: Callable[[], VectorEnv | Paced] | None = None,
        *,
        seed: int = 0,
        index: int = 0,
        replaced: int = 0,
        players: int = 1,
    ) -> None:
        super().__init__(make_policy, make_env, seed)
        self.policy.player = (max(index, 1), players)
        self.index = index
        self._restarts = 0
        self._replaced = replaced
        self._collector: Collecting | None = None
        self._loaded: Any = None

    def _collecting(self) -> Collecting:
        """The collector, its envs reset from the run's seed when they are first needed."""
        if self._collector is None:
            assert self._env is not None, "this evaluator has no env: it learns only"
            self._collector = self._begin(self._env)
        return self._collector

    def _begin(self, env: VectorEnv | Paced) -> Collecting:
        """Those that keep a pace of their own bring a collector."""
        if isinstance(env, Paced):
            return env.collector(self.policy, self._timers)
        return Collector(env, self.policy, self._timers, self._episode_seeds())

    def _episode_seeds(self) -> list[int]:
        assert self._env is not None
        path = ("env", self.index) if not self._replaced else ("env of a replacement", self._replaced, self.index)
        return [seeding.integer(self.seed, *path, i, self._restarts) for i in range(self._env.n)]

    # --- sampling ---

    def sample(self, steps: int, weights: Weights | None = None) -> Sample:
        """`steps` rows of every env, played with the given weights and finished by the policy."""
        if weights is not None:
            self.policy.set_weights(weights)
        collector = self._collecting()
        batch = collector.collect(steps)
        with self._timers.stage("postprocess"):
            finished = self.policy.postprocess(batch)
        return Sample({ONLY: finished}, self.policy.version, self._report(batch.steps, collector))

    def _report(self, env_steps: int, collector: Collecting) -> Report:
        timers = self._timers.take()
        busy = sum(timers.get(name, 0.0) for name in WORK)
        return Report(env_steps, collector.take_finished(), collector.figures(), timers, 1, 0, busy)

    # --- learning ---

    def learn(self, samples: Sequence[Sample], sgd: Sgd, reduce: Reduce | None = None) -> Report:
        """Learn on samples side by side, and report what they held and how old they were."""
        with self._timers.stage("concat"):
            sample = concat_samples(samples)
        report = sample.report
        for one in samples:
            self._note_lag(report.metrics, one.version)
        with self._timers.stage("learn"):
            self._learn(sample.batches[ONLY], sgd, reduce, report.metrics)
        report.learners = 1
        report.timers.update(self._timers.take())
        return report

    def sample_and_learn(self, steps: int, sgd: Sgd, *, reduce: Reduce) -> Report:
        """Play a fragment, and learn on it together with the other members of a group, who do the same."""
        self.policy.progress = sgd.progress
        return self.learn([self.sample(steps)], sgd, reduce)

    def load(self, samples: Sequence[Sample], part: int, parts: int, limit: int | None = None) -> Report:
        """Keep one of `parts` equal shares of the samples' envs in the device's memory. The first share's report is that
        of the samples."""
        with self._timers.stage("load"):
            sample = concat_samples(samples)
            batch = sample.batches[ONLY]
            share = slice(part * batch.width // parts, (part + 1) * batch.width // parts)
            self._loaded = self.policy.load(batch.slice(envs=share), limit)
        report = sample.report if part == 0 else Report()
        report.timers.update(self._timers.take())
        return report

    def learn_loaded(self, sgd: Sgd, *, reduce: Reduce) -> Report:
        """Learn on what was loaded, together with the other members of a group."""
        report = Report(learners=1)
        with self._timers.stage("learn"):
            self._learn(self._loaded, sgd, reduce, report.metrics)
        self._loaded = None
        report.timers.update(self._timers.take())
        return report

    def _learn(self, batch: Any, sgd: Sgd, reduce: Reduce | None, metrics: Metrics) -> None:
        counted = Counted(reduce) if reduce is not None else None
        for name, value in self.policy.learn(batch, sgd, counted).metrics.items():
            metrics.mean(name, value)
        if counted is not None:
            metrics.max("reduced_bytes", counted.nbytes)

    def compute_gradients(self, steps: int, sgd: Sgd, weights: Weights) -> Gradients:
        """Play a fragment with the given weights, and return its loss's gradient at them."""
        sample = self.sample(steps, weights)
        batch, report = sample.batches[ONLY], sample.report
        with self._timers.stage("gradients"):
            flat, figures = self.policy.gradients(batch, sgd)
            observed = self.policy.observed(batch)
        for name, value in figures.items():
            report.metrics.mean(name, value)
        report.timers.update(self._timers.take())
        report.slowest_s = sum(report.timers.get(name, 0.0) for name in WORK)
        return Gradients(flat, weights.version, report, batch.steps, observed)

    def push_gradients(
        self, steps: int, sgd: Sgd, parts: Sequence[np.ndarray], filters: Weights, shards: int
    ) -> list[Any]:
        """As `compute_gradients`, with the weights from a parameter server's shards and the gradient in such parts: the
        report, what the filters are to see, and a part for each shard."""
        weights = replace(filters, flat=np.concatenate([*parts, filters.flat]))
        gradients = self.compute_gradients(steps, sgd, weights)
        return [gradients.report, gradients.observed, *np.array_split(gradients.flat, shards)]

    def apply(self, gradients: Gradients, sgd: Sgd) -> Report:
        """Step against a worker's gradient; the filters see what it has seen."""
        report = gradients.report
        self._note_lag(report.metrics, gradients.version)
        with self._timers.stage("learn"):
            self.policy.apply(gradients.flat, sgd)
            self.policy.observe(gradients.observed)
        report.learners = 1
        report.timers.update(self._timers.take())
        return report

    def observe(self, observed: Sequence[Any]) -> None:
        for part in observed:
            self.policy.observe(part)

    def _note_lag(self, metrics: Metrics, version: int) -> None:
        """How many updates the weights were behind when they were played with."""
        metrics.mean("weight_lag", self.policy.version - version)
        metrics.max("weight_lag_max", self.policy.version - version)

    # --- weights and state ---

    def parameters(self, parts: int) -> list[np.ndarray]:
        """The part of the weights that gradients are by, in equal parts."""
        return [part.copy() for part in np.array_split(self.policy.get_weights().flat[: self.policy.parameters], parts)]

    def set_parameters(self, parts: Sequence[np.ndarray], version: int) -> None:
        weights = self.policy.get_weights()
        flat = np.concatenate([*parts, weights.flat[self.policy.parameters :]])
        self.policy.set_weights(replace(weights, flat=flat, version=version))

    def filters(self, progress: float) -> Weights:
        """The part of the weights that no gradient is by."""
        weights = self.get_weights(progress)
        return replace(weights, flat=weights.flat[self.policy.parameters :].copy())

    def learn_from_here(self, policy: dict[str, Any]) -> None:
        """Take over another learner's policy with its optimizer, but not its random generator."""
        own = self.policy.get_state(full=True)
        self.policy.set_state({**policy, "rng": own["rng"]})

    def get_state(self, restart: bool) -> dict[str, Any]:
        """The policy in full and the envs. Envs that can't give their state begin their episodes anew, here and in the
        run that resumes, if `restart`; else the state is not exact, and says so."""
        state: dict[str, Any] = {"policy": self.policy.get_state(full=True), "exact": True, "env": None}
        if self._env is not None:
            collector = self._collecting()
            state["env"] = collector.get_state()
            if state["env"] is None:
                self._restarts += restart
                state["exact"] = restart and collector.reset(self._episode_seeds())
            state["restarts"] = self._restarts + (not state["exact"])
        return state

    def set_state(self, state: dict[str, Any]) -> None:
        self.policy.set_state(state["policy"])
        if self._env is not None:
            self._restarts = state.get("restarts", 0)
            if state["env"] is None:
                self._collector = None
            else:
                self._collecting().set_state(state["env"])


class Counted:
    """A reduction that counts its bytes."""

    def __init__(self, reduce: Reduce) -> None:
        self.size = reduce.size
        self.nbytes = 0
        self._reduce = reduce

    def __call__(self, values: np.ndarray) -> np.ndarray:
        self.nbytes += values.nbytes
        return self._reduce(values)
