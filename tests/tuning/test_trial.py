"""A trial's state, which another trial goes on from: also where the replay is not the learner's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from podium import algorithms
from podium.algorithms.common.base import RunConfig
from podium.engine.local import LocalEngine
from podium.envs.make import EnvSpec, traits_of
from podium.tuning.trial import Trial

SMALL = {"envs": 2, "hidden": (8,), "batch": 8, "learning_starts": 0, "eval_every": None, "steps": 10_000}


def configs(params: Mapping[str, Any]) -> Sequence[RunConfig]:
    return [algorithms.get("apex").configure(None, {**SMALL, **params})]


def trial(lr: float) -> Trial:
    spec = EnvSpec("CartPole-v1")
    return Trial(LocalEngine(), "apex", spec, traits_of(spec), configs, {"lr": lr})


def held(one: Trial) -> list[int]:
    optimizer: Any = one._runs[0].training.optimizer
    return [shard.held.size for shard in optimizer._shards.values()]


def test_a_replay_in_shards_goes_along() -> None:
    before, after = trial(1e-3), trial(2e-3)
    before.advance(600)
    after.set_state(before.get_state(), {"lr": 2e-3})
    assert held(after) == held(before) and min(held(after)) > 100
    after.advance(800)
    assert sum(held(after)) > sum(held(before))
    before.close()
    after.close()
