"""The evaluator: policies and a vector env, turning weights into experience. A learner is one without an env."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

import numpy as np

from podium.core import seeding
from podium.core.batch import Batch, concat
from podium.core.metrics import Metrics, Timers
from podium.envs.base import VectorEnv
from podium.envs.make import EnvSpec, make
from podium.evaluation.collector import Collector
from podium.evaluation.play import Played, play
from podium.policies.base import Policy, Reduce, Sgd, Weights

EVAL_ENVS = 16
ONLY = "default"  # the policy id where there is one policy


@dataclass
class Sample:
    """Experience keyed by policy, with what was counted while it was gathered."""

    batches: dict[str, Batch]
    env_steps: int
    version: int
    episodes: list[tuple[float, int]] = field(default_factory=list)
    metrics: Metrics = field(default_factory=Metrics)
    timers: dict[str, float] = field(default_factory=dict)


def concat_samples(samples: Sequence[Sample]) -> Sample:
    """Samples of several evaluators as one, their batches side by side in the given order."""
    head = samples[0]
    return Sample(
        {name: concat([sample.batches[name] for sample in samples]) for name in head.batches},
        sum(sample.env_steps for sample in samples),
        min(sample.version for sample in samples),
        [episode for sample in samples for episode in sample.episodes],
        Metrics.merge([sample.metrics for sample in samples]),
        {name: sum(sample.timers.get(name, 0.0) for sample in samples) for name in head.timers},
    )


class Evaluator:
    """Samples with its policy in its own envs, and learns. `index` 0 is the learner, workers count from 1."""

    def __init__(
        self,
        make_policy: Callable[[], Policy],
        make_env: Callable[[], VectorEnv] | None = None,
        *,
        seed: int = 0,
        index: int = 0,
    ) -> None:
        self.policy = make_policy()
        self.seed, self.index = seed, index
        self._timers = Timers()
        self._restarts = 0
        self._env = make_env() if make_env is not None else None
        self._eval_env: VectorEnv | None = None
        self._collector: Collector | None = None

    def _collecting(self) -> Collector:
        """The collector, its envs reset from the run's seed when they are first needed."""
        if self._collector is None:
            assert self._env is not None, "this evaluator has no env: it learns only"
            self._collector = Collector(self._env, self.policy, self._timers, self._episode_seeds())
        return self._collector

    def _episode_seeds(self) -> list[int]:
        assert self._env is not None
        return [seeding.integer(self.seed, "env", self.index, i, self._restarts) for i in range(self._env.n)]

    def sample(self, steps: int) -> Sample:
        """`steps` rows of every env, finished by the policy."""
        collector = self._collecting()
        batch = collector.collect(steps)
        began = perf_counter()
        finished = self.policy.postprocess(batch)
        self._timers.add("postprocess", perf_counter() - began)
        return Sample(
            {ONLY: finished}, batch.steps, self.policy.version, collector.take_finished(), timers=self._timers.take()
        )

    def learn(self, sample: Sample, sgd: Sgd, reduce: Reduce | None = None) -> Metrics:
        metrics = Metrics()
        for name, value in self.policy.learn(sample.batches[ONLY], sgd, reduce).metrics.items():
            metrics.mean(name, value)
        return metrics

    def gradients(self, sample: Sample, sgd: Sgd) -> tuple[np.ndarray, dict[str, float]]:
        return self.policy.gradients(sample.batches[ONLY], sgd)

    def apply(self, flat: np.ndarray, sgd: Sgd) -> None:
        self.policy.apply(flat, sgd)

    def get_weights(self, progress: float) -> Weights:
        return replace(self.policy.get_weights(), progress=progress)

    def set_weights(self, weights: Weights) -> None:
        self.policy.set_weights(weights)

    def policy_state(self) -> dict[str, Any]:
        """What acting needs."""
        return self.policy.get_state()

    def start_from(self, policy: dict[str, Any]) -> None:
        """Take over another run's policy as far as acting goes; its optimizer and counts stay behind."""
        brief = {name: policy[name] for name in self.policy.get_state()}
        self.policy.set_state({**brief, "version": 0, "progress": 0.0})

    def evaluate(self, env: EnvSpec, episodes: int, seed: int) -> Played:
        """Whole episodes without exploration, in envs of their own that no training step touches."""
        if self._eval_env is None:
            self._eval_env = make(env, min(episodes, EVAL_ENVS))
        n = self._eval_env.n
        return play(self._eval_env, self.policy, episodes, [seeding.integer(seed, i) for i in range(n)])

    def get_state(self, restart: bool) -> dict[str, Any]:
        """The policy in full and the envs. Envs that can't give their state begin their episodes anew, here and in the
        run that resumes, if `restart`; else the state is not exact, and says so."""
        state: dict[str, Any] = {"policy": self.policy.get_state(full=True), "exact": True, "env": None}
        if self._env is not None:
            collector = self._collecting()
            state["env"] = collector.get_state()
            if state["env"] is None:
                state["exact"] = restart
                if restart:
                    self._restarts += 1
                    collector.reset(self._episode_seeds())
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

    def processes(self) -> list[dict[str, Any]]:
        """The processes that its envs run in, where they have any of their own."""
        pids = self._env.processes() if self._env is not None else []
        return [{"role": "env", "index": index, "pid": pid} for index, pid in enumerate(pids)]

    def close(self) -> None:
        for env in (self._env, self._eval_env):
            if env is not None:
                env.close()
