"""Put the parts together by hand: an engine, an evaluator, an optimizer, and a loop that you own."""

from __future__ import annotations

from functools import partial

from podium import algorithms
from podium.core.metrics import EpisodeWindow
from podium.engine.local import LocalEngine
from podium.engine.pool import Pool
from podium.envs.make import EnvSpec, make, spaces_of
from podium.evaluation.evaluator import Evaluator
from podium.optimizers.sync_samples import SyncSamples
from podium.policies.base import Sgd

if __name__ == "__main__":
    ppo = algorithms.get("ppo")
    config = ppo.configure(None, {"lr": "2e-3->0", "seed": 1})
    spec = EnvSpec("CartPole-v1")
    engine = LocalEngine()
    make_policy = partial(ppo.policy, config, *spaces_of(spec), config.seed)
    learner = engine.spawn(Evaluator, make_policy, None, seed=1)
    make_env = partial(make, spec, 4)
    samplers = Pool(engine, lambda i, _: engine.spawn(Evaluator, make_policy, make_env, seed=1, index=i), 2)
    optimizer = SyncSamples(
        engine, learner, samplers, 64, lambda progress, update: Sgd(progress, update, epochs=10, minibatch=128)
    )
    window, done, steps = EpisodeWindow(), 0, 30_000
    while done < steps:
        step = optimizer.step(progress=done / steps)
        done += step.env_steps
        window.add(*zip(*step.episodes, strict=True) if step.episodes else ((), ()))
    print(f"{done:,} steps, {window.episodes} episodes, return {window.mean:.1f}, {step.metrics.values()['lr']:.5f} lr")
    optimizer.close()
