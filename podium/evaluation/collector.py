"""Steps a vector env with an actor and writes what happens straight into columns `[T, N]`."""

from __future__ import annotations

from time import perf_counter
from typing import Any, Protocol, runtime_checkable

import numpy as np

from podium.core.batch import Batch, Finals, empty_aligned
from podium.core.metrics import Metrics, Timers
from podium.core.spaces import Columns
from podium.envs.base import MASK, VectorEnv
from podium.policies.base import Acted


class Actor(Protocol):
    """What the collector asks for actions: a policy, or a client of one that lives elsewhere."""

    def initial_state(self, n: int) -> Columns: ...
    def act(self, obs: Columns, state: Columns, mask: np.ndarray | None = None, explore: bool = True) -> Acted: ...


class Collecting(Protocol):
    """A stream of fragments from whatever an evaluator plays in. `reset` says whether the episodes could begin anew, and
    `get_state` gives None where they can't go on in their midst."""

    def collect(self, steps: int) -> Batch: ...
    def take_finished(self) -> list[tuple[float, int]]: ...
    def figures(self) -> Metrics: ...
    def reset(self, seeds: list[int]) -> bool: ...
    def get_state(self) -> dict[str, Any] | None: ...
    def set_state(self, state: dict[str, Any]) -> None: ...


@runtime_checkable
class Paced(Protocol):
    """What nobody steps, since it keeps a pace of its own: it brings what gathers its experience."""

    n: int

    def collector(self, actor: Any, timers: Timers) -> Collecting: ...
    def processes(self) -> list[int]: ...
    def close(self) -> None: ...


class Collector:
    """One vector env's stream of fragments; an episode goes on over the fragments' borders."""

    def __init__(self, env: VectorEnv, actor: Actor, timers: Timers, seeds: list[int]) -> None:
        self.env, self.actor, self.timers = env, actor, timers
        self.finished: list[tuple[float, int]] = []
        self.reset(seeds)

    def reset(self, seeds: list[int]) -> bool:
        """Begin every episode anew; whether that could be done."""
        n = self.env.n
        self._obs = self.env.reset(seeds)
        self._state = self.actor.initial_state(n)
        self._starting, self._resetting = np.ones(n, bool), np.zeros(n, bool)
        self._returns, self._lengths = np.zeros(n), np.zeros(n, np.int64)
        return True

    def collect(self, steps: int) -> Batch:
        """The next `steps` rows of every env."""
        env, act, n = self.env, self.actor.act, self.env.n
        obs, state = self._obs, self._state
        starting, resetting = self._starting, self._resetting
        resets_late = env.autoreset == "next"
        cols = {name: empty_aligned((steps, n, *part.shape[1:]), part.dtype) for name, part in obs.items()}
        observed = list(cols.items())
        inputs = [(name, column) for name, column in observed if name != MASK]
        masks = cols.get(MASK)
        cols["reward"] = reward = empty_aligned((steps, n), np.float32)
        terminated, truncated, valid, start = flags = empty_aligned((4, steps, n), bool)
        games = np.empty((steps, n), bool)
        cols.update(zip(("terminated", "truncated", "valid", "start"), flags, strict=True))
        first = {name: part.copy() for name, part in state.items()}
        finals: list[tuple[int, np.ndarray, Columns]] = []
        kept: list[np.ndarray] = []
        env_seconds = policy_seconds = 0.0
        for t in range(steps):
            for name, column in observed:
                column[t] = obs[name]
            start[t] = starting
            if state:
                state = zero_where(state, starting)
            began = perf_counter()
            acted = act({name: column[t] for name, column in inputs}, state, None if masks is None else masks[t])
            decided = perf_counter()
            if t == 0:
                news = {"action": acted.action, **acted.extra}
                kept = [empty_aligned((steps, n, *part.shape[1:]), part.dtype) for part in news.values()]
                cols.update(zip(news, kept, strict=True))
            kept[0][t] = acted.action
            for column, part in zip(kept[1:], acted.extra.values(), strict=True):
                column[t] = part
            stepping = perf_counter()
            obs, reward[t], ends, cuts, final_rows, final_obs, over = env.step(acted.action)
            env_seconds += perf_counter() - stepping
            policy_seconds += decided - began
            terminated[t], truncated[t] = ends, cuts
            games[t] = ends | cuts if over is None else over
            state = acted.state
            if final_rows is not None and final_obs is not None and len(final_rows):
                finals.append((t, final_rows.copy(), {k: c.copy() for k, c in final_obs.items() if k != MASK}))
                finals[-1][2].update({name: part[final_rows] for name, part in state.items()})
            np.logical_not(resetting, out=valid[t])
            if resets_late:
                starting, resetting = resetting, ends | cuts
            else:
                starting = ends | cuts
        self._obs, self._state, self._starting, self._resetting = obs, state, starting, resetting
        self._count(reward, games, valid)
        self.timers.add("env", env_seconds)
        self.timers.add("inference", policy_seconds)
        last = {name: part.copy() for name, part in {**obs, **zero_where(state, starting)}.items() if name != MASK}
        return Batch(cols, first, last, None if resets_late else _join_finals(finals, last))

    def _count(self, reward: np.ndarray, done: np.ndarray, valid: np.ndarray) -> None:
        """Note the return and length of each game that was `done` in the fragment, in the order of their ends."""
        returns = np.cumsum(reward, axis=0, dtype=np.float64)
        lengths = np.cumsum(valid, axis=0)
        for t in np.flatnonzero(done.any(axis=1)):
            envs = np.flatnonzero(done[t])
            ended = self._returns[envs] + returns[t, envs], self._lengths[envs] + lengths[t, envs]
            self.finished += zip(ended[0].tolist(), ended[1].tolist(), strict=True)
            self._returns[envs], self._lengths[envs] = -returns[t, envs], -lengths[t, envs]
        self._returns += returns[-1]
        self._lengths += lengths[-1]

    def take_finished(self) -> list[tuple[float, int]]:
        """The (return, length) of each episode that ended since the last call."""
        finished, self.finished = self.finished, []
        return finished

    def figures(self) -> Metrics:
        """What else there is to say of the envs."""
        return Metrics()

    def get_state(self) -> dict[str, Any] | None:
        """Everything that the next fragment depends on but the policy, or None if the env can't give its state."""
        env = self.env.get_state()
        if env is None:
            return None
        return {
            "env": env,
            "policy_state": {name: part.copy() for name, part in self._state.items()},
            "starting": self._starting.copy(),
            "resetting": self._resetting.copy(),
            "returns": self._returns.copy(),
            "lengths": self._lengths.copy(),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        self._obs = self.env.set_state(state["env"])
        self._state = dict(state["policy_state"])
        self._starting, self._resetting = state["starting"].copy(), state["resetting"].copy()
        self._returns, self._lengths = state["returns"].copy(), state["lengths"].copy()


def zero_where(state: Columns, rows: np.ndarray) -> Columns:
    if not state or not rows.any():
        return state
    return {name: np.where(rows.reshape(-1, *[1] * (part.ndim - 1)), 0, part) for name, part in state.items()}


def _join_finals(parts: list[tuple[int, np.ndarray, Columns]], like: Columns) -> Finals:
    """The final observations of a fragment; with none at all still columns, so that fragments can stand side by side."""
    if not parts:
        nowhere = np.zeros(0, np.int64)
        return Finals(nowhere, nowhere, {name: part[:0] for name, part in like.items()})
    times = np.concatenate([np.full(len(rows), t) for t, rows, _ in parts])
    cols = {name: np.concatenate([cols[name] for _, _, cols in parts]) for name in parts[0][2]}
    return Finals(times, np.concatenate([rows for _, rows, _ in parts]), cols)
