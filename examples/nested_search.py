"""Hyperparameter search with nested rollouts: whole algorithms run as spawned objects, and each spawns its own workers."""

from __future__ import annotations

import sys

from podium import algorithms
from podium.algorithms.common.base import Setup
from podium.core.metrics import EpisodeWindow
from podium.engine.base import Engine
from podium.engine.start import start
from podium.envs.make import EnvSpec, spaces_of


class Trial:
    """One run of PPO with its own learner and workers, on the engine that it was given."""

    def __init__(self, engine: Engine, settings: dict) -> None:
        spec, ppo = EnvSpec("CartPole-v1"), algorithms.get("ppo")
        self.config = ppo.configure(None, {"workers": 2, "envs": 4, "seed": 1, **settings})
        self.optimizer = ppo.build(self.config, Setup(engine, spec, *spaces_of(spec)))

    def train(self, steps: int) -> float:
        window, done = EpisodeWindow(), 0
        while done < steps:
            report = self.optimizer.step(progress=done / steps)
            done += report.env_steps
            window.add([r for r, _ in report.episodes], [length for _, length in report.episodes])
        return window.mean or 0.0


if __name__ == "__main__":
    engine = start(sys.argv[1] if len(sys.argv) > 1 else "local")
    rates = [1e-4, 1e-3, 3e-3]
    trials = [engine.spawn(Trial, engine.child(), {"lr": lr}, name=f"trial-{lr:g}") for lr in rates]
    returns = engine.get([trial.call("train", 15_000) for trial in trials])
    best = max(zip(returns, rates, strict=True))
    print(f"returns {[round(r, 1) for r in returns]} at steps {rates}: the best is {best[1]:g}")
    engine.close()
