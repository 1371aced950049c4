"""`podium bench sampling`: env steps per second of one evaluator, beside the bare loop and Stable-Baselines3."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Any

import numpy as np

from podium.bench import bare, peers
from podium.bench.measure import Contender, alternate, rate
from podium.bench.report import Measured, Report, Target
from podium.core.errors import MissingExtra, UsageError, did_you_mean
from podium.core.spaces import Box, Discrete, Space
from podium.envs.make import EnvSpec, spaces_of, traits_of

POOL, ATARI = "envpool:", "atari:"
PACKAGES = {POOL: ("envpool", "envpool"), ATARI: ("ale_py", "atari")}
"""The package that a kind of name needs, and its extra."""

ENVS = 64
MLP: Mapping[str, Any] = {"hidden": (64, 64)}
NATURE: Mapping[str, Any] = {"hidden": (512,), "activation": "relu", "shared": True}


@dataclass(frozen=True)
class Case:
    """An env, how many of it, and what is to be reached there."""

    env: str
    envs: int = ENVS
    env_args: Mapping[str, Any] = field(default_factory=dict)
    targets: tuple[Target, ...] = ()

    @property
    def title(self) -> str:
        return f"sampling {self.env}, {self.envs} envs"


PINNED = (
    Case("CartPole-v1", 64, {}, (Target("bare", 0.8),)),
    Case(f"{POOL}Pendulum-v1", 1024, {"num_threads": 2}, (Target("bare", 0.8),)),
    Case(f"{ATARI}Pong", 64, {}, (Target("bare", 0.8),)),
)


class PodiumSampling:
    """The evaluator of a PPO run, called as its optimizer calls it: advantages and counts are part of a sample."""

    def __init__(self, case: Case, fragment: int) -> None:
        from podium import algorithms
        from podium.algorithms.common.base import Setup
        from podium.api import env_spec
        from podium.engine.local import LocalEngine

        ppo = algorithms.get("ppo")
        spaces = spaces_of(EnvSpec(case.env, dict(case.env_args)))
        network = NATURE if _pictures(spaces[0]) else MLP
        config = ppo.configure(
            None, {"envs": case.envs, "fragment": fragment, "env_args": dict(case.env_args), **network}
        )
        self._engine, self._fragment = LocalEngine(), fragment
        self._evaluator = ppo.build(config, Setup(self._engine, env_spec(case.env, config), *spaces)).learner()
        self._sample()

    def _sample(self) -> int:
        return self._engine.get(self._evaluator.call("sample", self._fragment)).report.env_steps

    def measure(self, seconds: float) -> float:
        return rate(self._sample, seconds)

    def close(self) -> None:
        self._engine.close()


class BareSampling:
    """The loop without the library."""

    def __init__(self, case: Case, fragment: int) -> None:
        env = bare.make_env(case.env, case.envs, case.env_args)
        self._loop = bare.Sampling(env, bare.network_for(env), fragment)
        self._loop.collect()

    def measure(self, seconds: float) -> float:
        return rate(self._loop.collect, seconds)

    def close(self) -> None:
        self._loop.env.vector.close()


def cases(env: str | None, envs: int | None) -> list[Case]:
    """The pinned cases, or the one that was asked for."""
    if env is None:
        if envs is not None:
            raise UsageError(f"--envs {envs} would not be read: it goes with --env NAME")
        return list(PINNED)
    case = next((case for case in PINNED if case.env == env and envs in (None, case.envs)), None)
    case = case or Case(env, envs or ENVS)
    _check(case)
    return [case]


def _check(case: Case) -> None:
    """Refuse what the bare loop can't play."""
    if ":" in case.env and not case.env.startswith((POOL, ATARI)):
        near = did_you_mean(case.env, [pinned.env for pinned in PINNED])
        raise UsageError(
            f"--env is {case.env!r}, expected a gymnasium id, {ATARI}NAME or {POOL}NAME: the bare loop plays those{near}"
        )
    if missing := _missing(case):
        raise MissingExtra(case.env, missing)
    observation, action = spaces_of(EnvSpec(case.env, dict(case.env_args)))
    if not _pictures(observation) and (not isinstance(observation, Box) or len(observation.shape) != 1):
        raise UsageError(
            f"{case.env} observes {observation}, expected a Box of one axis or pictures of 84x84: the networks are "
            "64x64 and the DQN paper's"
        )
    if not isinstance(action, Discrete) and not (isinstance(action, Box) and action.dtype.kind == "f"):
        raise UsageError(
            f"{case.env} takes {action}, expected Discrete or a Box of real numbers: the bare loop has those"
        )


def _pictures(observation: Space) -> bool:
    """Whether the DQN paper's network is for it: stacked pictures of 84x84 bytes."""
    return isinstance(observation, Box) and observation.dtype == np.uint8 and observation.shape[1:] == (84, 84)


def _missing(case: Case) -> str | None:
    """The extra that the case needs and that is not installed."""
    package, extra = next((needed for kind, needed in PACKAGES.items() if case.env.startswith(kind)), (None, None))
    return extra if package is not None and importlib.util.find_spec(package) is None else None


def run(report: Report, env: str | None, envs: int | None, fragment: int, rounds: int, seconds: float) -> None:
    """Measure each case and put it into the report."""
    for case in cases(env, envs):
        if missing := _missing(case):
            report.note(f"{case.title}: left out, what it needs is not installed (pip install 'podium[{missing}]')")
            continue
        makers: dict[str, Callable[[], Contender]] = {
            "podium": partial(PodiumSampling, case, fragment),
            "bare": partial(BareSampling, case, fragment),
        }
        peer = _peer(report, case)
        if peer is not None:
            makers["sb3"] = partial(peers.Sampling, peer, case.envs, fragment)
        runs = alternate(makers, rounds, seconds)
        frames = traits_of(EnvSpec(case.env, dict(case.env_args))).frames_per_step
        if frames > 1:
            rates = ", ".join(f"{name} {median(rate) * frames:,.0f}" for name, rate in runs.items())
            report.note(f"{case.title}: frames per second, {frames} in a step: {rates}")
        report.cases.append(Measured(case.title, runs, case.targets))


def _peer(report: Report, case: Case) -> str | None:
    """The env that Stable-Baselines3 plays in this case, if it can."""
    import gymnasium

    name = case.env.removeprefix(POOL)
    if not peers.installed():
        report.note(f"{case.title}: no sb3, it is not installed (pip install 'podium[bench]')")
        return None
    if name not in gymnasium.registry:
        report.note(f"{case.title}: no sb3, it has no such env")
        return None
    report.note(f"{case.title}: sb3 steps gymnasium's {name} in its own vector env, one by one")
    return name
