"""`podium bench sampling`: env steps per second of one evaluator, beside the bare loop and Stable-Baselines3."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from podium.bench import bare, peers
from podium.bench.measure import Contender, alternate, rate
from podium.bench.report import Measured, Report, Target
from podium.core.errors import MissingExtra, UsageError, did_you_mean
from podium.core.spaces import Box, Discrete
from podium.envs.make import EnvSpec, spaces_of

POOL = "envpool:"
ENVS = 64


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
)


class PodiumSampling:
    """The evaluator of a PPO run, called as its optimizer calls it: advantages and counts are part of a sample."""

    def __init__(self, case: Case, fragment: int) -> None:
        from podium import algorithms
        from podium.algorithms.common.base import Setup
        from podium.api import env_spec
        from podium.engine.local import LocalEngine

        ppo = algorithms.get("ppo")
        config = ppo.configure(
            None, {"envs": case.envs, "fragment": fragment, "env_args": dict(case.env_args), "hidden": (64, 64)}
        )
        spec = env_spec(case.env, config)
        self._engine, self._fragment = LocalEngine(), fragment
        self._evaluator = ppo.build(config, Setup(self._engine, spec, *spaces_of(spec))).learner()
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
    kind, colon, _ = case.env.partition(":")
    if colon and kind != "envpool":
        known = [pinned.env for pinned in PINNED]
        near = did_you_mean(case.env, known)
        raise UsageError(
            f"--env is {case.env!r}, expected a gymnasium id or {POOL}NAME: the bare loop plays those{near}"
        )
    if colon and not _has_envpool():
        raise MissingExtra(case.env, "envpool")
    observation, action = spaces_of(EnvSpec(case.env, dict(case.env_args)))
    if not isinstance(observation, Box) or len(observation.shape) != 1:
        raise UsageError(f"{case.env} observes {observation}, expected a Box of one axis: the networks are 64x64")
    if not isinstance(action, Discrete) and not (isinstance(action, Box) and action.dtype.kind == "f"):
        raise UsageError(
            f"{case.env} takes {action}, expected Discrete or a Box of real numbers: the bare loop has those"
        )


def _has_envpool() -> bool:
    return importlib.util.find_spec("envpool") is not None


def run(report: Report, chosen: Sequence[Case], rounds: int, seconds: float, fragment: int) -> None:
    """Measure each case and put it into the report."""
    for case in chosen:
        if case.env.startswith(POOL) and not _has_envpool():
            report.note(f"{case.title}: left out, envpool is not installed (pip install 'podium[envpool]')")
            continue
        makers: dict[str, Callable[[], Contender]] = {
            "podium": partial(PodiumSampling, case, fragment),
            "bare": partial(BareSampling, case, fragment),
        }
        peer = _peer(report, case)
        if peer is not None:
            makers["sb3"] = partial(peers.Sampling, peer, case.envs, fragment)
        report.cases.append(Measured(case.title, alternate(makers, rounds, seconds), case.targets))


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
