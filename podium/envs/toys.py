"""Small envs whose best return is known, stepped in numpy; each shows one kind of mistake."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

import numpy as np

from podium.core import seeding
from podium.core.errors import UsageError, did_you_mean
from podium.core.spaces import Box, Columns, Discrete, Leaf, Space
from podium.envs.base import MASK, Stepped, VectorEnv

Autoreset = Literal["same", "next"]


class Toy:
    """The shared part: episode ends in both manners, and state. A subclass keeps one array row per env in `fields`."""

    masked = False
    observation_space: Space
    action_space: Leaf
    fields: tuple[str, ...] = ("t",)

    def __init__(self, num_envs: int, autoreset: Autoreset) -> None:
        if autoreset not in get_args(Autoreset):
            near = did_you_mean(str(autoreset), get_args(Autoreset))
            raise UsageError(f"autoreset is {autoreset!r}, expected 'same' or 'next'{near}")
        self.n = num_envs
        self.autoreset: Autoreset = autoreset
        self.t = np.zeros(num_envs, np.int64)
        self._over = np.zeros(num_envs, bool)
        self._rng = seeding.generator(0, "toy")

    def begin(self, rows: np.ndarray) -> None:
        """Begin an episode in these rows (`t` is already 0 there)."""

    def observe(self) -> Columns:
        """New arrays of what every env shows."""
        raise NotImplementedError

    def advance(self, actions: np.ndarray, playing: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Reward, terminated, truncated; rows that are not `playing` are about to begin anew, and don't count."""
        raise NotImplementedError

    def reset(self, seeds: Sequence[int]) -> Columns:
        self._rng = seeding.generator(int(seeds[0]), "toy", *map(int, seeds))
        self._over[:] = False
        self._restart(np.arange(self.n))
        return self.observe()

    def step(self, actions: np.ndarray) -> Stepped:
        playing = ~self._over
        self.t += 1
        reward, terminated, truncated = self.advance(actions, playing)
        terminated, truncated = terminated & playing, truncated & playing & ~terminated
        reward = np.where(playing, reward, 0.0).astype(np.float32)
        ended = terminated | truncated
        if self.autoreset == "next":
            if not playing.all():
                self._restart(np.flatnonzero(~playing))
            self._over = ended
            return Stepped(self.observe(), reward, terminated, truncated)
        if not ended.any():
            return Stepped(self.observe(), reward, terminated, truncated)
        rows = np.flatnonzero(ended)
        finals = {path: column[rows] for path, column in self.observe().items() if path != MASK}
        self._restart(rows)
        return Stepped(self.observe(), reward, terminated, truncated, rows, finals)

    def _restart(self, rows: np.ndarray) -> None:
        self.t[rows] = 0
        self.begin(rows)

    def get_state(self) -> dict[str, Any]:
        arrays = {name: getattr(self, name).copy() for name in self.fields}
        return {"arrays": arrays, "over": self._over.copy(), "rng": seeding.get_state(self._rng)}

    def set_state(self, state: dict[str, Any]) -> Columns:
        for name in self.fields:
            getattr(self, name)[:] = state["arrays"][name]
        self._over = state["over"].copy()
        seeding.set_state(self._rng, state["rng"])
        return self.observe()

    def render(self) -> np.ndarray:
        raise UsageError(f"{type(self).__name__} is a toy and draws no picture")

    def processes(self) -> list[int]:
        return []

    def close(self) -> None:
        """There is nothing to release."""


class Chain(Toy):
    """`length` places in a row: action 1 goes right, 0 left. The right end pays 1 and ends the episode, so the best
    return from the start is `gamma ** (length - 2)`. Cut after ten times the length."""

    fields = ("t", "place")

    def __init__(self, num_envs: int, length: int = 8, autoreset: Autoreset = "same") -> None:
        super().__init__(num_envs, autoreset)
        self.length = at_least("length", length, 2)
        self.observation_space = Box.of(0, 1, (length,))
        self.action_space = Discrete(2)
        self.place = np.zeros(num_envs, np.int64)

    def begin(self, rows: np.ndarray) -> None:
        self.place[rows] = 0

    def observe(self) -> Columns:
        return {"obs": one_hot(self.place, self.length)}

    def advance(self, actions: np.ndarray, playing: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        self.place = np.clip(self.place + np.where(actions == 1, 1, -1), 0, self.length - 1)
        arrived = self.place == self.length - 1
        return arrived.astype(np.float32), arrived, self.t >= 10 * self.length


class Constant(Toy):
    """Reward 1 at each step, cut after `length`, and nothing to see. With bootstrapping over the cut the value is
    `1 / (1 - gamma)` everywhere; taking the cut for an end gives less."""

    def __init__(self, num_envs: int, length: int = 10, autoreset: Autoreset = "same") -> None:
        super().__init__(num_envs, autoreset)
        self.length = at_least("length", length, 1)
        self.observation_space = Box.of(0, 1, (1,))
        self.action_space = Discrete(2)

    def observe(self) -> Columns:
        return {"obs": np.ones((self.n, 1), np.float32)}

    def advance(self, actions: np.ndarray, playing: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return np.ones(self.n), np.zeros(self.n, bool), self.t >= self.length


class Cue(Toy):
    """One of `cues` is shown at the first step only; after `gap` blank steps a sign asks for it, and naming it pays 1
    and ends the episode. The best return is 1 with memory and `1 / cues` without."""

    fields = ("t", "cue")

    def __init__(self, num_envs: int, gap: int = 4, cues: int = 2, autoreset: Autoreset = "same") -> None:
        super().__init__(num_envs, autoreset)
        self.gap = at_least("gap", gap, 0)
        self.cues = at_least("cues", cues, 2)
        self.observation_space = Box.of(0, 1, (cues + 1,))
        self.action_space = Discrete(cues)
        self.cue = np.zeros(num_envs, np.int64)

    def begin(self, rows: np.ndarray) -> None:
        self.cue[rows] = self._rng.integers(self.cues, size=len(rows))

    def observe(self) -> Columns:
        shown = one_hot(self.cue, self.cues + 1) * (self.t == 0)[:, None]
        shown[:, -1] = self.t == self.gap + 1
        return {"obs": shown}

    def advance(self, actions: np.ndarray, playing: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        asked = self.t == self.gap + 2
        return (asked & (actions == self.cue)).astype(np.float32), asked, np.zeros(self.n, bool)


class Match(Toy):
    """A random symbol at each step; the action of the same number pays 1. Cut after `length`: the best return."""

    fields = ("t", "symbol")

    def __init__(self, num_envs: int, symbols: int = 4, length: int = 32, autoreset: Autoreset = "same") -> None:
        super().__init__(num_envs, autoreset)
        self.symbols = at_least("symbols", symbols, 2)
        self.length = at_least("length", length, 1)
        self.observation_space = Box.of(0, 1, (symbols,))
        self.action_space = Discrete(symbols)
        self.symbol = np.zeros(num_envs, np.int64)

    def begin(self, rows: np.ndarray) -> None:
        self.symbol[rows] = self._rng.integers(self.symbols, size=len(rows))

    def observe(self) -> Columns:
        return {"obs": one_hot(self.symbol, self.symbols)}

    def advance(self, actions: np.ndarray, playing: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        right = actions == self.symbol
        self.begin(np.arange(self.n))
        return right.astype(np.float32), np.zeros(self.n, bool), self.t >= self.length


class Masked(Toy):
    """Each action shows its prize, from 0 to 1, and a random half of them is legal at each step. A legal action pays
    its prize; an illegal one pays -1, ends the episode and is counted in `illegal`. Cut after `length`."""

    masked = True
    fields = ("t", "prizes", "legal", "illegal")

    def __init__(self, num_envs: int, actions: int = 6, length: int = 32, autoreset: Autoreset = "same") -> None:
        super().__init__(num_envs, autoreset)
        self.actions = at_least("actions", actions, 2)
        self.length = at_least("length", length, 1)
        self.observation_space = Box.of(0, 1, (actions,))
        self.action_space = Discrete(actions)
        self.prizes = np.zeros((num_envs, actions), np.float32)
        self.legal = np.ones((num_envs, actions), bool)
        self.illegal = np.zeros(num_envs, np.int64)

    def begin(self, rows: np.ndarray) -> None:
        self.prizes[rows] = self._rng.random((len(rows), self.actions), np.float32)
        legal = self._rng.random((len(rows), self.actions)) < 0.5
        legal[np.arange(len(rows)), self._rng.integers(self.actions, size=len(rows))] = True
        self.legal[rows] = legal

    def observe(self) -> Columns:
        return {"obs": self.prizes.copy(), MASK: self.legal.copy()}

    def advance(self, actions: np.ndarray, playing: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        rows = np.arange(self.n)
        broke = ~self.legal[rows, actions]
        reward = np.where(broke, -1.0, self.prizes[rows, actions])
        self.illegal += broke & playing
        self.begin(rows)
        return reward, broke, self.t >= self.length


class Continuous(Toy):
    """A random target from -1 to 1 at each step; an action costs its squared distance from it. The best return is 0."""

    fields = ("t", "target")

    def __init__(self, num_envs: int, length: int = 32, autoreset: Autoreset = "same") -> None:
        super().__init__(num_envs, autoreset)
        self.length = at_least("length", length, 1)
        self.observation_space = Box.of(-1, 1, (1,))
        self.action_space = Box.of(-1, 1, (1,))
        self.target = np.zeros((num_envs, 1), np.float32)

    def begin(self, rows: np.ndarray) -> None:
        self.target[rows] = self._rng.uniform(-1, 1, (len(rows), 1))

    def observe(self) -> Columns:
        return {"obs": self.target.copy()}

    def advance(self, actions: np.ndarray, playing: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        cost = ((np.clip(actions, -1, 1) - self.target) ** 2).sum(axis=1)
        self.begin(np.arange(self.n))
        return -cost, np.zeros(self.n, bool), self.t >= self.length


class Frames(Constant):
    """`Constant` seen in pictures of noise, `size` pixels wide and high: what it costs to look at a screen, with hardly
    anything to simulate."""

    def __init__(self, num_envs: int, size: int = 84, length: int = 10, autoreset: Autoreset = "same") -> None:
        super().__init__(num_envs, length, autoreset)
        shape = (at_least("size", size, 8), size, 4)
        self.observation_space = Box.of(0, 255, shape, np.uint8)
        self._noise = seeding.generator(0, "frames").integers(0, 256, (num_envs + length, *shape), dtype=np.uint8)

    def observe(self) -> Columns:
        return {"obs": self._noise[np.arange(self.n) + self.t % self.length]}


class Sleep(Constant):
    """`Constant` whose step of all envs together takes `ms` milliseconds and no work: a slow simulator, or one that runs
    elsewhere."""

    def __init__(self, num_envs: int, ms: float = 20.0, length: int = 10, autoreset: Autoreset = "same") -> None:
        super().__init__(num_envs, length, autoreset)
        if not isinstance(ms, int | float) or isinstance(ms, bool) or not 0 <= ms < math.inf:
            raise UsageError(f"ms is {ms!r}, expected a number of milliseconds from 0")
        self.seconds = ms / 1000

    def step(self, actions: np.ndarray) -> Stepped:
        time.sleep(self.seconds)
        return super().step(actions)


def cartpole_hidden(num_envs: int, render_mode: str | None = None, length: int = 500) -> VectorEnv:
    """CartPole-v1 without the velocities: the cart's position and the pole's angle alone."""
    from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv

    from podium.envs.gym import GymVector
    from podium.envs.wrappers import Elements

    env = CartPoleVectorEnv(num_envs, max_episode_steps=at_least("length", length, 1), render_mode=render_mode)
    return Elements(GymVector(env, "toy:cartpole-hidden"), [0, 2])


def one_hot(values: np.ndarray, n: int) -> np.ndarray:
    rows = np.zeros((len(values), n), np.float32)
    rows[np.arange(len(values)), values] = 1
    return rows


def at_least(name: str, value: Any, low: int) -> int:
    """A whole number that an env argument must be."""
    if not isinstance(value, int) or isinstance(value, bool) or value < low:
        raise UsageError(f"{name} is {value!r}, expected a whole number of at least {low}")
    return value


TOYS: dict[str, Callable[..., VectorEnv]] = {
    "chain": Chain,
    "constant": Constant,
    "cue": Cue,
    "match": Match,
    "masked": Masked,
    "continuous": Continuous,
    "frames": Frames,
    "sleep": Sleep,
    "cartpole-hidden": cartpole_hidden,
}
