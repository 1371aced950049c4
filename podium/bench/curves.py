"""`podium bench curves`: how well Podium and Stable-Baselines3 learn with the same settings, seed by seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean
from time import perf_counter
from typing import Any

import numpy as np

from podium.bench import peers
from podium.bench.peers_replay import make_peer
from podium.bench.report import Measured, Report
from podium.core.errors import UsageError, did_you_mean
from podium.run.folder import RunFolder, to_json, write_atomically

EPISODES = 20
"""Played without exploring at each evaluation, by both."""

OURS, PEER = "podium", "sb3"


def run(
    report: Report,
    algo: str,
    env: str,
    preset: str | None,
    steps: int,
    every: int,
    seeds: Sequence[int],
    contenders: Sequence[str],
    runs: Path,
) -> None:
    """Train every seed that has no finished run in its folder yet, and put the last evaluations into the report."""
    makers: dict[str, Callable[..., None]] = {OURS: _podium, PEER: _sb3}
    for name in contenders:
        if name not in makers:
            raise UsageError(f"--contenders {name!r}, expected some of {OURS}, {PEER}{did_you_mean(name, makers)}")
    if PEER in contenders and not peers.installed():
        raise UsageError("sb3 is not installed (pip install 'podium[bench]'), expected --contenders podium")
    if PEER in contenders:
        make_peer(algo, _config(algo, preset, steps, seeds[0]), _gymnasium(env))
    case = f"{algo}-{env.replace(':', '-')}"
    folders = {name: {seed: runs / f"{name}-{case}-{seed}" for seed in seeds} for name in contenders}
    for seed in seeds:
        for name in contenders:
            folder = folders[name][seed]
            if not (folder / "result.json").exists():
                makers[name](algo, env, preset, steps, every, seed, folder)
                report.note(f"{name} seed {seed}: {_last(folder, steps):,.1f} in {_took(folder):,.0f} s")
    ends = {name: [_last(folder, steps) for folder in by_seed.values()] for name, by_seed in folders.items()}
    report.cases.append(Measured(f"{algo} {env} at {steps:,}", ends, (), "return"))
    if len(ends) == 2:
        low, high = min(ends[PEER]), max(ends[PEER])
        ours = mean(ends[OURS])
        verdict = "below" if ours < low else "above" if ours > high else "inside"
        report.note(f"sb3's seeds lie from {low:,.1f} to {high:,.1f}; the mean of podium's, {ours:,.1f}, is {verdict}")
    from podium.run.plot import plot_runs

    shown = [folder for by_seed in folders.values() for folder in by_seed.values()]
    report.note(f"curves  {plot_runs(shown, runs / f'{case}.png', 'eval_return_mean')}")


def _podium(algo: str, env: str, preset: str | None, steps: int, every: int, seed: int, folder: Path) -> None:
    from podium import api

    settings: dict[str, Any] = {
        "steps": steps,
        "eval_every": every,
        "eval_episodes": EPISODES,
        "checkpoint_every": None,
        "seed": seed,
    }
    api.train(algo, env, out=folder, overwrite=True, preset=preset, progress=False, **settings)


def _sb3(algo: str, env: str, preset: str | None, steps: int, every: int, seed: int, folder: Path) -> None:
    """Its model through `learn`, evaluated as often; what it came to is written as a run's folder is."""
    import torch
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.vec_env import DummyVecEnv, VecMonitor

    began = perf_counter()
    rows: list[dict[str, Any]] = []

    def vector(n: int) -> Any:
        return VecMonitor(DummyVecEnv([lambda: _gymnasium(env)] * n))

    config = _config(algo, preset, steps, seed)
    torch.set_num_threads(config.threads)
    playing, evaluating = vector(config.envs), vector(1)
    playing.seed(seed)
    evaluating.seed(seed + 1000)

    class Evaluate(BaseCallback):
        def _on_step(self) -> bool:
            if self.num_timesteps // every > len(rows):
                returns, _ = evaluate_policy(self.model, evaluating, EPISODES, return_episode_rewards=True)
                recent = [episode["r"] for episode in self.model.ep_info_buffer or ()]
                trained = float(np.mean(recent)) if recent else None
                row = {
                    "env_steps": self.num_timesteps,
                    "return_mean": trained,
                    "eval_return_mean": float(np.mean(returns)),
                }
                rows.append({**row, "wall_s": perf_counter() - began})
                with (folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
                    file.write(to_json(rows[-1]) + "\n")
            return True

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metrics.jsonl").unlink(missing_ok=True)
    write_atomically(folder / "config.json", to_json({"algo": f"sb3's {algo}", "env": env, "seed": seed}) + "\n")
    make_peer(algo, config, playing).learn(steps, callback=Evaluate())
    write_atomically(folder / "result.json", to_json({"seed": seed, **rows[-1]}) + "\n")


def _config(algo: str, preset: str | None, steps: int, seed: int) -> Any:
    from podium import algorithms

    return algorithms.get(algo).configure(preset, {"steps": steps, "seed": seed})


def _gymnasium(env: str) -> Any:
    import gymnasium

    from podium.envs.minatar import MinAtar

    kind, _, game = env.partition(":")
    return MinAtar(game) if kind == "minatar" else gymnasium.make(env)


def _last(folder: Path, steps: int) -> float:
    """The last evaluation at no more than so many env steps, or the first one after."""
    rows = [row for row in RunFolder(folder).read_metrics() if row.get("eval_return_mean") is not None]
    before = [row for row in rows if row["env_steps"] <= steps] or rows[:1]
    return float(before[-1]["eval_return_mean"])


def _took(folder: Path) -> float:
    return float((RunFolder(folder).read_result() or {})["wall_s"])
