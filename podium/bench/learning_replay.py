"""`podium bench learning --algo sac` and td3: gradient updates per second of whole training from a replay, beside the bare
loop and Stable-Baselines3."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from podium import algorithms
from podium.bench import bare, bare_sac, peers
from podium.bench.learning import ENDLESS, Clock
from podium.bench.measure import THREADS, Contender, alternate, rate
from podium.bench.report import Measured, Report, Target

ENV = "HalfCheetah-v5"
SETTINGS = bare_sac.Settings()
WARM_UP = 20
UNIT = "updates/s"
SHARED = ("hidden", "batch", "buffer", "learning_starts", "lr", "gamma", "tau")
NOISY = ("action_noise", "policy_delay", "target_noise", "target_noise_clip")


def settings_of(algo: str) -> dict[str, Any]:
    """What everybody gets, as the algorithm's settings."""
    given = dataclasses.asdict(SETTINGS)
    names = SHARED + (NOISY if algo == "td3" else ())
    return {**{name: given[name] for name in names}, "train_every": 1}


class PodiumLearning:
    """`podium train` as it is, with the run's folder, logs and checkpoints; a new run in each measurement."""

    def __init__(self, algo: str) -> None:
        self._algo = algo
        self._settings = {**settings_of(algo), "steps": ENDLESS, "threads": THREADS, "eval_every": None}

    def measure(self, seconds: float) -> float:
        from podium import api

        clock = Clock(seconds, "updates")
        with tempfile.TemporaryDirectory(prefix="podium-bench-") as folder:
            out = Path(folder) / "run"
            api.train(self._algo, ENV, out=out, callbacks=[clock], progress=False, **self._settings)
        return clock.rate

    def close(self) -> None:
        """Nothing outlives a measurement."""


class BareLearning:
    """The loop without the library, from its first step in each measurement."""

    def __init__(self, algo: str) -> None:
        self._algo = algo

    def measure(self, seconds: float) -> float:
        env = bare.make_env(ENV, 1, {})
        try:
            loop = bare_sac.LOOPS[self._algo](env, SETTINGS)
            while loop.updates < WARM_UP:
                loop.iterate()
            return rate(loop.iterate, seconds)
        finally:
            env.vector.close()

    def close(self) -> None:
        """Nothing outlives a measurement."""


def run(report: Report, algo: str, rounds: int, seconds: float) -> None:
    """Measure an algorithm with the customary networks and an update for each env step."""
    case = f"{algo} {ENV}, batch {SETTINGS.batch}, {'x'.join(map(str, SETTINGS.hidden))}, an update for each step"
    makers: dict[str, Callable[[], Contender]] = {
        "podium": partial(PodiumLearning, algo),
        "bare": partial(BareLearning, algo),
    }
    if peers.installed():
        makers["sb3"] = partial(
            peers.ReplayLearning, algo, ENV, algorithms.get(algo).configure(None, settings_of(algo)), WARM_UP
        )
    else:
        report.note(f"{case}: no sb3, it is not installed (pip install 'podium[bench]')")
    targets = (Target("bare", 0.9), Target("sb3", 1.3))
    report.cases.append(Measured(case, alternate(makers, rounds, seconds), targets, UNIT))
