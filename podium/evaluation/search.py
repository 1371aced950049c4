"""Plays the perturbations of a search, and makes the step that their returns tell: the evaluator of evolution."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from podium.core import seeding
from podium.core.batch import empty_aligned
from podium.core.errors import TrainingError
from podium.core.noise import Noises
from podium.envs.base import VectorEnv
from podium.evaluation.holder import Holder
from podium.evaluation.play_each import play_each
from podium.evaluation.sample import WORK, Report
from podium.policies.base import Searched, Weights

Spread = float | np.ndarray


@dataclass(frozen=True)
class Centre:
    """What the perturbations of an update are around, and how far they are from it: one distance, or one for each
    parameter."""

    weights: Weights
    spread: Spread


@dataclass(frozen=True)
class Part:
    """Perturbations of an update that are played side by side: the number of the first, and where each begins in the table
    of noise."""

    update: int
    first: int
    offsets: np.ndarray


@dataclass
class Scored:
    """What a part came to: the mean return of each perturbation `[n, signs]`, what the filters are to see, and what was
    counted."""

    part: Part
    returns: np.ndarray
    observed: Mapping[str, Any]
    report: Report


class Rule(Protocol):
    """How a search goes on. `signs` are the directions in which each perturbation is played; `step` moves the mean, in
    place, by the returns `[n, signs]` of perturbations, and says what there is to know of it."""

    @property
    def signs(self) -> tuple[float, ...]: ...
    def spread(self, progress: float) -> Spread: ...
    def step(self, mean: np.ndarray, returns: np.ndarray, noises: Noises, progress: float) -> dict[str, float]: ...
    def get_state(self) -> dict[str, Any]: ...
    def set_state(self, state: dict[str, Any]) -> None: ...


class Searcher(Holder):
    """A worker plays parts, the learner has the rule. What is played depends on the numbers of its perturbations alone, not
    on who plays it or what came before."""

    policy: Searched

    def __init__(
        self,
        make_policy: Callable[[], Searched],
        make_rule: Callable[[int], Rule],
        make_env: Callable[[], VectorEnv] | None = None,
        *,
        seed: int = 0,
        rollouts: int = 1,
        longest: int = 100_000,
    ) -> None:
        super().__init__(make_policy, make_env, seed)
        self._rule = make_rule(self.policy.parameters)
        self._rollouts, self._longest = rollouts, longest

    # --- the worker's part ---

    def score(self, part: Part, centre: Centre, table: np.ndarray) -> Scored:
        """Whole episodes with every perturbation, both of a pair from one seed."""
        env: Any = self._env
        self.policy.set_weights(centre.weights)
        signs, count = self._rule.signs, len(part.offsets) * len(self._rule.signs)
        quota = np.where(np.arange(env.n) < count, self._rollouts, 0)
        number = part.first + np.arange(env.n) // len(signs)
        seeds = [seeding.integer(self.seed, "perturbed", part.update, int(one)) for one in number]
        rng = seeding.generator(self.seed, "act perturbed", part.update, part.first)
        with self._timers.stage("postprocess"):
            vectors = self._perturbed(centre, Noises(table, part.offsets, self.policy.parameters), env.n)
        played = play_each(env, self.policy, vectors, quota, seeds, rng, self._longest, self._timers)
        returns = (played.returns[:count] / self._rollouts).reshape(-1, len(signs))
        timers = self._timers.take()
        busy = sum(timers.get(name, 0.0) for name in WORK)
        report = Report(played.env_steps, played.episodes, timers=timers, samplers=1, slowest_s=busy)
        report.metrics.mean("idle_rows", played.idle, played.rows)
        return Scored(part, returns, played.observed, report)

    def _perturbed(self, centre: Centre, noises: Noises, rows: int) -> np.ndarray:
        """A row of parameters for each perturbation and sign; rows that are left over have the centre's own."""
        mean = centre.weights.flat[: self.policy.parameters]
        vectors = empty_aligned((rows, len(mean)), np.float32)
        vectors[:] = mean
        spread = np.asarray(centre.spread, np.float32)
        row = 0
        for noise in noises:
            step = spread * noise
            for sign in self._rule.signs:
                vectors[row] += np.float32(sign) * step
                row += 1
        return vectors

    # --- the learner's part ---

    def size(self) -> int:
        return self.policy.parameters

    def centre(self, progress: float) -> Centre:
        return Centre(self.get_weights(progress), self._rule.spread(progress))

    def advance(self, scored: Sequence[Scored], table: np.ndarray, progress: float) -> Report:
        """One step by what was scored, in the order that it is given."""
        report = Report(learners=1)
        with self._timers.stage("learn"):
            weights = self.policy.get_weights()
            mean, beside = weights.flat[: self.policy.parameters], weights.flat[self.policy.parameters :]
            returns = np.concatenate([one.returns for one in scored])
            noises = Noises(table, np.concatenate([one.part.offsets for one in scored]), len(mean))
            before = mean.copy()
            figures = self._rule.step(mean, returns, noises, progress)
            moved = float(np.linalg.norm(mean - before))
            if not np.isfinite(moved):
                raise TrainingError(
                    f"update {weights.version + 1}: weights are not finite; try a lower --lr or --sigma"
                )
            flat = np.concatenate([mean, beside])
            self.policy.set_weights(replace(weights, flat=flat, version=weights.version + 1, progress=progress))
            for one in scored:
                self.policy.observe(one.observed)
        for name, value in (*figures.items(), ("update_norm", moved), ("weight_norm", float(np.linalg.norm(mean)))):
            report.metrics.last(name, value)
        report.metrics.last("population_return_max", float(returns.max()))
        report.metrics.last("population_return_min", float(returns.min()))
        report.timers.update(self._timers.take())
        return report

    # --- state ---

    def get_state(self, restart: bool) -> dict[str, Any]:
        """The policy in full and the rule; the envs begin anew with every part, and have nothing to keep."""
        return {"policy": self.policy.get_state(full=True), "rule": self._rule.get_state(), "exact": True}

    def set_state(self, state: dict[str, Any]) -> None:
        self.policy.set_state(state["policy"])
        self._rule.set_state(state["rule"])
