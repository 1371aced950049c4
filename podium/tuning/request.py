"""What a search was asked for, checked, and as config.json keeps it for whoever goes on with it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from podium import algorithms
from podium.algorithms.common.base import Algorithm, RunConfig
from podium.api import Env, env_spec
from podium.core.config import flag
from podium.core.errors import ConfigError, UsageError, known_names
from podium.envs.make import EnvSpec, describe
from podium.tuning.goal import Goal
from podium.tuning.space import Space, Value, parse

SCHEDULERS = ("median", "halving", "hyperband", "none", "population")
SAMPLERS = ("tpe", "random", "grid", "cmaes")
REPORTS = 20
"""How often a trial reports in its whole length, where nothing else is asked for."""

EXPLOITS = 20
TRIALS, POPULATION = 30, 8
PLACE = (
    *("engine", "address", "workers", "cpus_per_worker", "gpus_per_worker", "memory_per_worker", "max_failures"),
    *("worker_timeout", "checkpoint_every", "keep", "device", "threads"),
)
"""Settings that controllers of the same search may have each of their own: where its trials run."""

OF_OTHERS = {
    "population": ("trials", "sampler", "storage", "study", "report_every"),
    "search": ("population", "exploit_every"),
}
"""What would not be read: by a population what belongs to trials, and the other way round."""


@dataclass(frozen=True)
class TuneRequest:
    """The words of `podium tune`; none is what was not given."""

    search: Sequence[str] = ()
    trials: int | None = None
    metric: str = "return_mean"
    direction: str | None = None
    scheduler: str = "median"
    sampler: str | None = None
    parallel: int | None = None
    report_every: int | None = None
    max_failed_trials: int = 5
    storage: str | None = None
    study: str | None = None
    seeds: Sequence[int] | None = None
    population: int | None = None
    exploit_every: int | None = None


@dataclass(frozen=True)
class Asked:
    """A request with all of its parts found: what is searched, over which runs, for what."""

    algo: str | Algorithm
    algorithm: Algorithm
    env: EnvSpec
    config: RunConfig
    space: Space
    goal: Goal
    request: TuneRequest

    @property
    def algo_name(self) -> str:
        return self.algo if isinstance(self.algo, str) else self.algorithm.name

    @property
    def seeds(self) -> list[int]:
        return list(self.request.seeds or [self.config.seed])

    @property
    def trials(self) -> int:
        """Trials in all, or members."""
        if self.request.scheduler == "population":
            return self.request.population or POPULATION
        wanted = self.request.trials or TRIALS
        return min(wanted, len(self.space.grid())) if self.sampler == "grid" else wanted

    @property
    def sampler(self) -> str:
        return self.request.sampler or "tpe"

    @property
    def every(self) -> int:
        """Env steps between two looks at a trial."""
        share = EXPLOITS if self.request.scheduler == "population" else REPORTS
        asked = self.request.exploit_every or self.request.report_every
        return asked or max(self.config.steps // share, 1)

    @property
    def study(self) -> str:
        return self.request.study or f"{self.algo_name}-{describe(self.env)}"

    def configs(self) -> Any:
        """From parameters to the settings of a trial's runs; it can be sent to where they are."""
        return partial(configs_of, self.config, self.space, self.seeds)

    def facts(self) -> dict[str, Any]:
        """What makes it the same search, wherever its trials run."""
        settings = {name: value for name, value in differing(self.config).items() if name not in PLACE}
        return {
            "algo": self.algo_name,
            "env": describe(self.env),
            "search": [one.text for one in self.space.dimensions],
            "metric": self.goal.metric,
            "direction": self.goal.direction,
            "seeds": self.seeds,
            "every": self.every,
            "settings": settings,
        }


def configs_of(base: RunConfig, space: Space, seeds: Sequence[int], params: Mapping[str, Value]) -> list[RunConfig]:
    """The settings of a trial's runs."""
    return [base.replace(**{**space.settings(params), "seed": seed}) for seed in seeds]


def differing(config: RunConfig) -> dict[str, Any]:
    """Settings that are not the defaults, as JSON has them."""
    plain = type(config)().to_json()
    return {name: value for name, value in config.to_json().items() if value != plain[name]}


def asked(
    algo: str | Algorithm,
    env: Env,
    request: TuneRequest,
    preset: str | None,
    settings: Mapping[str, Any],
) -> Asked:
    """Check what was asked for, as far as it can be known before anything is made."""
    _check_words(request)
    algorithm = algo if isinstance(algo, Algorithm) else algorithms.get(algo)
    space = parse(request.search, algorithm.config, settings)
    if request.seeds is not None and "seed" in settings:
        raise UsageError("--seed and --seeds can't go together")
    config = _base(algorithm, preset, settings, space)
    goal = Goal.of(request.metric, request.direction, config)
    found = Asked(algo, algorithm, env_spec(env, config), config, space, goal, request)
    _check_fits(found)
    return found


def _base(algorithm: Algorithm, preset: str | None, settings: Mapping[str, Any], space: Space) -> RunConfig:
    """The settings that all trials have. Some may be read only beside a value that is searched."""
    try:
        return algorithm.configure(preset, settings)
    except ConfigError:
        first = {one.name: one.setting(one.ends[-1]) for one in space.dimensions}
        return algorithm.configure(preset, {**settings, **first})


def _check_words(request: TuneRequest) -> None:
    for name, value, known in (
        ("--scheduler", request.scheduler, SCHEDULERS),
        ("--sampler", request.sampler or "tpe", SAMPLERS),
    ):
        if value not in known:
            raise UsageError(f"{name} is {value!r}{known_names(value, known)}")
    kind = "population" if request.scheduler == "population" else "search"
    for name in OF_OTHERS[kind]:
        if getattr(request, name) is not None:
            raise UsageError(f"{flag(name)} would not be read with --scheduler {request.scheduler}")
    for name in ("trials", "parallel", "report_every", "population", "exploit_every"):
        least = 2 if name == "population" else 1
        if (value := getattr(request, name)) is not None and value < least:
            raise UsageError(f"{flag(name)} is {value}, expected at least {least}")
    if request.max_failed_trials < 0:
        raise UsageError(f"--max-failed-trials is {request.max_failed_trials}, expected 0 or more")
    if request.sampler == "cmaes" and request.storage is not None:
        raise UsageError(
            "--sampler cmaes keeps pickled state with the trials, and a --storage may be others' as well: expected it without"
        )


def _check_fits(found: Asked) -> None:
    """Refuse reports that never come, grids that can't be, and ranges of which no corner makes a run."""
    request, steps = found.request, found.config.steps
    if found.every > steps:
        name = "--exploit-every" if request.exploit_every else "--report-every"
        raise UsageError(f"{name} is {found.every}, expected at most --steps, which is {steps}")
    if found.sampler == "grid":
        found.space.grid()
    if found.sampler == "cmaes" and not any(not one.choices for one in found.space.dimensions):
        raise UsageError("--sampler cmaes searches ranges, and there are choices alone: expected tpe, random or grid")
    rng, failed = np.random.default_rng(0), None
    for _ in range(20):
        try:
            found.configs()(found.space.draw(rng))
            break
        except ConfigError as error:
            failed = error
    else:
        raise UsageError(f"nothing that --search names makes a run: {failed}")
    if request.scheduler == "population":
        _check_population(found)


def _check_population(found: Asked) -> None:
    of_all = {one.name for one in dataclasses.fields(RunConfig)} - {"fragment"}
    for one in found.space.dimensions:
        if one.name in of_all:
            raise UsageError(
                f"--search {one.text}: members of a population take over each other's states, which {flag(one.name)} is a part "
                "of; expected settings of how they learn, such as lr"
            )
    if found.goal.spends:
        raise UsageError(
            f"--metric {found.goal.metric} is known at the end alone, and a population is compared on the way: expected a "
            "figure of how good a member is, such as return_mean"
        )


def to_json(found: Asked) -> dict[str, Any]:
    """What config.json keeps of it, under `search`."""
    from podium.tuning.storage import shown

    request = dataclasses.asdict(found.request)
    if found.request.storage is not None:
        request["storage"] = shown(found.request.storage)
    return {**request, "search": list(found.request.search)}


def from_json(stored: Mapping[str, Any], **changes: Any) -> TuneRequest:
    return TuneRequest(**{**stored, **{name: value for name, value in changes.items() if value is not None}})
