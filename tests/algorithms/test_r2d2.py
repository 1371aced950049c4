"""R2D2 learns values exactly where they are known, and what only memory tells; without its stored state it does not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from podium import algorithms
from podium.envs.make import EnvSpec, spaces_of
from podium.planning.replay import replay_bytes
from podium.policies.q_sequences import SequenceQPolicy
from tests.algorithms.test_learning import build

GAMMA = 0.8
SMALL: dict[str, Any] = {
    "seed": 1,
    "envs": 8,
    "fragment": 4,
    "hidden": (32,),
    "memory_size": 16,
    "lr": 3e-3,
    "gamma": GAMMA,
    "epsilon": 1.0,
    "buffer": 4000,
    "batch": 16,
    "sequence": 12,
    "burn_in": 4,
    "sequence_every": 3,
    "learning_starts": 300,
    "train_every": 8,
    "target_every": 25,
    "n_step": 3,
}
PARTS: dict[str, dict[str, Any]] = {
    "as it comes": {},
    "plain": {"double": False, "dueling": False, "rescale": False, "prioritized": False, "memory": "gru"},
    "categorical": {"distribution": "categorical", "v_min": -2, "v_max": 8, "atoms": 41},
    "quantile": {"distribution": "quantile", "atoms": 8},
    "two workers": {"workers": 2, "envs": 4},
}


def trained(env: str, steps: int, args: dict[str, Any], **settings: Any) -> tuple[SequenceQPolicy, list[float]]:
    """The policy, and the episodes' returns in the order of their ends."""
    optimizer: Any = build(algorithms.get("r2d2"), env, args=args, **{**SMALL, "steps": steps, **settings})
    returns = []
    while optimizer.seen < steps:
        returns += [total for total, _ in optimizer.step(optimizer.seen / steps).episodes]
    policy = optimizer.learner()._target.policy
    optimizer.close()
    return policy, returns


@pytest.mark.parametrize("part", PARTS)
def test_a_cut_is_bootstrapped_over(part: str) -> None:
    """Reward 1 at each step, cut after 10: with gamma 0.8 it is worth 5 for ever; were a cut an end, 4.46 at first and 1
    at last."""
    policy, _ = trained("toy:constant", 5000, {"length": 10}, lr=1e-2, **PARTS[part])
    state, one = policy.initial_state(1), {"obs": np.ones((1, 1), np.float32)}
    for _ in range(10):
        assert policy.values(one, state) == pytest.approx([5.0], abs=0.3)
        state = policy.act(one, state, explore=False).state


def test_an_end_is_not_bootstrapped_over() -> None:
    """Arriving at the last of four places pays 1 and ends: going right is worth 0.64, 0.8 and 1."""
    policy, _ = trained("toy:chain", 8000, {"length": 4}, n_step=1)
    state, said = policy.initial_state(1), []
    for place in range(3):
        obs = {"obs": np.eye(4, dtype=np.float32)[place : place + 1]}
        with torch.no_grad():
            said.append(float(policy._look(obs, state)[0][0, 1]))
        state = policy.act(obs, state, explore=False).state
    assert said == pytest.approx([0.64, 0.8, 1.0], abs=0.06)


def cue(**settings: Any) -> float:
    """The mean return, at the end of training, where no sequence that is drawn shows the cue and the question."""
    given = {"epsilon": "1->0.02@0.6", "sequence": 8, "burn_in": 3, "hidden": (64,), "memory_size": 32, "gamma": 0.97}
    _, returns = trained("toy:cue", 8000, {"gap": 8}, **{**given, **settings})
    return float(np.mean(returns[-100:]))


def test_the_stored_state_tells_which_cue_was_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cue() > 0.85
    table = SequenceQPolicy._table

    def forgetful(self: Any, model: Any, loaded: Any, to: Any, burn_in: int) -> Any:
        loaded.first = {name: torch.zeros_like(part) for name, part in loaded.first.items()}
        return table(self, model, loaded, to, burn_in)

    monkeypatch.setattr(SequenceQPolicy, "_table", forgetful)
    assert cue() < 0.7, "from a state of zeros it can only guess"


def test_masked_actions_are_never_taken() -> None:
    """A random legal action is worth 16 of 32, the best one about 23.5; an illegal one ends an episode."""
    _, returns = trained("toy:masked", 8000, {}, epsilon="1->0@0.3", gamma=0.0, train_every=8, n_step=1)
    assert np.mean(returns[-40:]) > 20


def test_the_plan_counts_the_stored_state() -> None:
    """3 numbers seen, an action of 8 bytes, 13 of the row and 17 of priorities, and two vectors of 16 numbers."""
    r2d2, spec = algorithms.get("r2d2"), EnvSpec("toy:cue")
    config = r2d2.configure(None, {**SMALL, "prioritized": False})
    each = 12 + 8 + 13 + 17 + 2 * 4 * 16
    assert replay_bytes(config, spec, spaces_of(spec)) == 4000 * each
    assert replay_bytes(config.replace(memory="gru"), spec, spaces_of(spec)) == 4000 * (each - 64)
    optimizer: Any = build(r2d2, "toy:cue", **{**SMALL, "fragment": 32})
    for _ in range(3):
        optimizer.step(0.0)
    replay = optimizer.learner()._target._replay
    rows = replay.rows.length * replay.rows.width
    assert replay.nbytes == pytest.approx(rows * each, rel=0.1)
