"""Plays whole episodes with other parameters in every row of a vector env, nothing kept but returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np

from podium.core.batch import Batch
from podium.core.errors import EnvDataError
from podium.core.metrics import Timers
from podium.core.spaces import Columns
from podium.envs.base import MASK, VectorEnv
from podium.policies.base import Searched

WATCHED = 128
"""Steps whose observations are kept until the filter's figures of them are made."""


@dataclass
class PlayedEach:
    """The sum of each row's returns, every episode's (return, length) by rows, the env steps in them, what the filters
    saw, and the share of `rows` that were stepped while they had nothing left to play."""

    returns: np.ndarray
    episodes: list[tuple[float, int]]
    env_steps: int
    observed: Mapping[str, Any]
    idle: float
    rows: int


def play_each(
    env: VectorEnv,
    policy: Searched,
    vectors: np.ndarray,
    quota: np.ndarray,
    seeds: Sequence[int],
    rng: np.random.Generator,
    longest: int,
    timers: Timers,
) -> PlayedEach:
    """`quota[i]` episodes in row i by `vectors[i]`, until the last of them has ended; one that lasts longer than `longest`
    steps is an error. Rows that are done are stepped with the others, and count nothing."""
    begun = perf_counter()
    act, n = policy.each(vectors, rng), env.n
    watch = Watch(policy)
    quota = quota.copy()
    obs = env.reset(seeds)
    returns, totals, lengths = np.zeros(n), np.zeros(n), np.zeros(n, np.int64)
    resetting = np.zeros(n, bool)
    finished: list[list[tuple[float, int]]] = [[] for _ in range(n)]
    stepped_rows = played = 0
    env_seconds = policy_seconds = 0.0
    playing = quota > 0
    while playing.any():
        valid = playing & ~resetting
        watch.see(obs, valid)
        began = perf_counter()
        action = act(obs, obs.get(MASK))
        decided = perf_counter()
        stepped = env.step(action)
        env_seconds += perf_counter() - decided
        policy_seconds += decided - began
        obs = stepped.obs
        returns += stepped.reward
        lengths += ~resetting
        stepped_rows += n
        played += int(np.count_nonzero(valid))
        done = stepped.terminated | stepped.truncated
        over = done if stepped.game_over is None else stepped.game_over
        if over.any():
            for i in np.flatnonzero(over & playing):
                finished[i].append((float(returns[i]), int(lengths[i])))
            totals += np.where(over & playing, returns, 0.0)
            quota -= over
            returns[over], lengths[over] = 0.0, 0
            playing = quota > 0
        if stepped_rows % (n * WATCHED) == 0 and playing.any() and lengths[playing].max() > longest:
            raise EnvDataError(
                f"an episode has not ended after {lengths[playing].max():,} steps, and a search compares whole episodes: "
                "give --time-limit, or a greater --longest"
            )
        if env.autoreset == "next":
            resetting = done
    observed = watch.take()
    episodes = [episode for row in finished for episode in row]
    timers.add("env", env_seconds)
    timers.add("inference", policy_seconds)
    timers.add("postprocess", perf_counter() - begun - env_seconds - policy_seconds)
    return PlayedEach(totals, episodes, played, observed, 1 - played / max(stepped_rows, 1), stepped_rows)


class Watch:
    """What a policy's filters see on the way, a few steps at a time."""

    def __init__(self, policy: Searched) -> None:
        self._policy = policy
        self._rows: list[Columns] = []
        self._valid: list[np.ndarray] = []
        self._parts: list[Mapping[str, Any]] = []

    def see(self, obs: Columns, valid: np.ndarray) -> None:
        if not self._policy.filtered:
            return
        self._rows.append({name: column.copy() for name, column in obs.items() if name != MASK})
        self._valid.append(valid)
        if len(self._rows) == WATCHED:
            self._note()

    def _note(self) -> None:
        columns = {name: np.stack([row[name] for row in self._rows]) for name in self._rows[0]}
        self._parts.append(self._policy.observed(Batch({**columns, "valid": np.stack(self._valid)})))
        self._rows, self._valid = [], []

    def take(self) -> Mapping[str, Any]:
        if self._rows:
            self._note()
        return self._policy.merged(self._parts)
