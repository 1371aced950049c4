"""Optuna's samplers and pruners by the names that the command has for them, the same for a search that was resumed."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import optuna
from optuna.pruners import BasePruner, HyperbandPruner, MedianPruner, NopPruner, SuccessiveHalvingPruner
from optuna.samplers import BaseSampler, CmaEsSampler, RandomSampler, TPESampler

from podium.core import seeding

FACTOR = 3
"""Halving and hyperband let one trial of so many go on."""

STARTUP = 5
"""Trials that the median waits for."""

MAKERS: dict[str, Callable[[int], BaseSampler]] = {
    "tpe": lambda seed: TPESampler(seed=seed, n_startup_trials=8),
    "random": lambda seed: RandomSampler(seed=seed),
    "grid": lambda seed: RandomSampler(seed=seed),  # every value stands in the queue: there is nothing to be sampled
    "cmaes": lambda seed: CmaEsSampler(seed=seed, n_startup_trials=1, warn_independent_sampling=False),
}


class PerTrial(BaseSampler):
    """A sampler with random numbers of their own for each trial: a search that goes on draws on, and does not begin
    again, and controllers that share a search draw differently."""

    def __init__(self, name: str, seed: int) -> None:
        self._make, self._seed = MAKERS[name], seed
        self._now = self._make(seed)

    def before_trial(self, study: optuna.Study, trial: optuna.trial.FrozenTrial) -> None:
        self._now = self._make(seeding.integer(self._seed, "sampler", trial.number))

    def infer_relative_search_space(self, study: Any, trial: Any) -> dict[str, Any]:
        return self._now.infer_relative_search_space(study, trial)

    def sample_relative(self, study: Any, trial: Any, search_space: dict[str, Any]) -> dict[str, Any]:
        return self._now.sample_relative(study, trial, search_space)

    def sample_independent(self, study: Any, trial: Any, param_name: str, param_distribution: Any) -> Any:
        return self._now.sample_independent(study, trial, param_name, param_distribution)


def pruner(name: str, every: int, steps: int) -> BasePruner:
    """What stops trials early; `every` is how often they report, in env steps, as all of it is."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if name == "median":
            early = max(every, steps // 4)  # what little has been learned by then says nothing
            return MedianPruner(n_startup_trials=STARTUP, n_warmup_steps=early, n_min_trials=STARTUP)
        if name == "halving":
            return SuccessiveHalvingPruner(min_resource=every, reduction_factor=FACTOR)
        if name == "hyperband":
            return HyperbandPruner(min_resource=every, max_resource=steps, reduction_factor=FACTOR)
        return NopPruner()
