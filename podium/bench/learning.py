"""`podium bench learning`: env steps per second of whole PPO training, beside the bare loop and Stable-Baselines3."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

from torch import Tensor, nn

from podium.bench import bare, peers
from podium.bench.measure import THREADS, Contender, alternate, rate
from podium.bench.report import Measured, Report, Target
from podium.core.errors import UsageError, did_you_mean
from podium.run.callbacks import Callback

ENV = "CartPole-v1"
SETTINGS = bare.PPOSettings()
WARM_UP = 5
ENDLESS = 10**9


class SharedTrunk(nn.Module):
    """A network such as users bring: one trunk, two heads, its own activation and norm."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Linear(inputs, 64), nn.LayerNorm(64), nn.ReLU(), nn.Linear(64, 64), nn.LayerNorm(64), nn.ReLU()
        )
        self.policy_head = nn.Linear(64, outputs)
        self.value_head = nn.Linear(64, 1)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        features = self.trunk(obs)
        return self.policy_head(features), self.value_head(features).squeeze(-1)


def shared_trunk(space: Any, outputs: int) -> SharedTrunk:
    """What a user names with `--model`."""
    return SharedTrunk(space.shape[0], outputs)


def _own(env: bare.Env) -> nn.Module:
    return shared_trunk(env.observation, int(env.action.n))


class Clock(Callback):
    """Times a run from the end of its warm-up, by what is counted in a column of its rows, and stops it."""

    def __init__(self, seconds: float, column: str = "env_steps") -> None:
        self._seconds, self._column = seconds, column
        self._iterations = 0
        self._began, self._began_at = 0.0, 0
        self.rate = 0.0

    def on_iteration(self, run: Any, row: Mapping[str, Any]) -> bool:
        count = row[self._column]
        self._iterations += count > 0
        now = perf_counter()
        if self._iterations <= WARM_UP:
            self._began, self._began_at = now, count
            return False
        self.rate = (count - self._began_at) / (now - self._began)
        return now - self._began >= self._seconds


class PodiumLearning:
    """`podium train ppo` as it is, with the run's folder, logs and checkpoints; a new run in each measurement."""

    def __init__(self, model: str | None) -> None:
        settings = dataclasses.asdict(SETTINGS)
        self._settings = settings | {"steps": ENDLESS, "threads": THREADS}
        self._settings |= {"hidden": (64, 64)} if model is None else {"model": model}

    def measure(self, seconds: float) -> float:
        from podium import api

        clock = Clock(seconds)
        with tempfile.TemporaryDirectory(prefix="podium-bench-") as folder:
            out = Path(folder) / "run"
            api.train("ppo", ENV, out=out, callbacks=[clock], progress=False, **self._settings)
        return clock.rate

    def close(self) -> None:
        """Nothing outlives a measurement."""


class BareLearning:
    """The loop without the library, from its first step in each measurement."""

    def __init__(self, network: Callable[[bare.Env], nn.Module]) -> None:
        self._network = network

    def measure(self, seconds: float) -> float:
        env = bare.make_env(ENV, SETTINGS.envs, {})
        try:
            loop = bare.PPO(env, self._network(env), SETTINGS)
            for _ in range(WARM_UP):
                loop.iterate()
            return rate(loop.iterate, seconds)
        finally:
            env.vector.close()

    def close(self) -> None:
        """Nothing outlives a measurement."""


def run(report: Report, algo: str, rounds: int, seconds: float) -> None:
    """Measure PPO, or an algorithm that learns from a replay."""
    if algo == "ppo":
        run_ppo(report, rounds, seconds)
        return
    from podium.bench import bare_sac, learning_replay

    if algo not in bare_sac.LOOPS:
        known = ("ppo", *bare_sac.LOOPS)
        raise UsageError(f"--algo {algo!r}, expected one of {', '.join(known)}{did_you_mean(algo, known)}")
    learning_replay.run(report, algo, rounds, seconds)


def run_ppo(report: Report, rounds: int, seconds: float) -> None:
    """Measure PPO with the default networks and with a user's own."""
    shape = f"{SETTINGS.envs} envs x {SETTINGS.fragment} steps, {SETTINGS.epochs} epochs"
    default = f"ppo {ENV}, {shape}: default networks"
    makers: dict[str, Callable[[], Contender]] = {
        "podium": partial(PodiumLearning, None),
        "bare": partial(BareLearning, bare.network_for),
    }
    if peers.installed():
        makers["sb3"] = partial(peers.Learning, ENV, SETTINGS)
    else:
        report.note(f"{default}: no sb3, it is not installed (pip install 'podium[bench]')")
    targets = (Target("bare", 1.0), Target("sb3", 2.0))
    report.cases.append(Measured(default, alternate(makers, rounds, seconds), targets))
    own: dict[str, Callable[[], Contender]] = {
        "podium": partial(PodiumLearning, f"{__name__}:{shared_trunk.__name__}"),
        "bare": partial(BareLearning, _own),
    }
    case = f"ppo {ENV}, {shape}: own nn.Module"
    report.cases.append(Measured(case, alternate(own, rounds, seconds), (Target("bare", 1.0),)))
