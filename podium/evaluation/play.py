"""Plays whole episodes and reports their returns, with nothing recorded or learned."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from podium.envs.base import MASK, VectorEnv
from podium.evaluation.collector import Actor, zero_where


@dataclass(frozen=True)
class Played:
    """The raw return and length of each episode, in the order of the envs."""

    returns: np.ndarray
    lengths: np.ndarray


def play(
    env: VectorEnv,
    actor: Actor,
    episodes: int,
    seeds: list[int],
    explore: bool = False,
    on_step: Callable[[VectorEnv], None] | None = None,
) -> Played:
    """Exactly `episodes` episodes, shared out evenly before the first step: were they taken as they end, short ones
    would be counted more often than long ones."""
    n = env.n
    quota = np.full(n, episodes // n) + (np.arange(n) < episodes % n)
    obs = env.reset(seeds)
    state = actor.initial_state(n)
    starting, resetting = np.ones(n, bool), np.zeros(n, bool)
    returns, lengths = np.zeros(n), np.zeros(n, np.int64)
    finished: list[list[tuple[float, int]]] = [[] for _ in range(n)]
    while (quota > 0).any():
        if on_step is not None:
            on_step(env)
        inputs = {name: np.array(part) for name, part in obs.items() if name != MASK}
        mask = np.array(obs[MASK]) if MASK in obs else None
        acted = actor.act(inputs, zero_where(state, starting), mask, explore)
        state = acted.state
        stepped = env.step(acted.action)
        obs = stepped.obs
        returns += stepped.reward
        lengths += ~resetting
        done = stepped.terminated | stepped.truncated
        over = done if stepped.game_over is None else stepped.game_over
        for i in np.flatnonzero(over & (quota > 0)):
            finished[i].append((float(returns[i]), int(lengths[i])))
        quota -= over
        returns[over], lengths[over] = 0.0, 0
        starting, resetting = (resetting, done) if env.autoreset == "next" else (done, resetting)
    flat = [episode for env_episodes in finished for episode in env_episodes]
    return Played(np.array([r for r, _ in flat]), np.array([length for _, length in flat]))
