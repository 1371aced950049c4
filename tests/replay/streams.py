"""Made-up experience, as a collector would give it, beside plain lists of every transition that is in it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from podium.core.batch import Batch, Finals


@dataclass
class Row:
    """One step of a stream, with all that may be asked about it; stacks as lists of frames."""

    obs: list[int]
    next_obs: list[int]
    reward: float
    terminated: bool
    ended: bool
    valid: bool
    start: bool
    state: float


@dataclass
class World:
    """`width` envs that count: every frame has a number of its own. `rows` grows with each fragment."""

    width: int
    rng: np.random.Generator
    stack: int = 1
    autoreset: str = "same"
    end_chance: float = 0.25
    rows: list[list[Row]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rows = [[] for _ in range(self.width)]
        self._frame = 0
        self._stacks: list[list[int]] = []
        self.restart(first=True)

    def restart(self, first: bool = False) -> None:
        """Every episode is given up in its midst, as when a worker is replaced."""
        if not first:
            for stream in self.rows:
                if stream and stream[-1].valid and not stream[-1].ended:
                    stream[-1].ended = True
        self._stacks = [[self._new()] * self.stack for _ in range(self.width)]
        self._starting, self._resetting = [True] * self.width, [False] * self.width

    def _new(self) -> int:
        self._frame += 1
        return self._frame

    def fragment(self, steps: int) -> Batch:
        n = self.width
        obs = np.zeros((steps, n, self.stack), np.int32)
        flags = {name: np.zeros((steps, n), bool) for name in ("terminated", "truncated", "valid", "start")}
        reward, action = np.zeros((steps, n), np.float32), np.zeros((steps, n), np.int64)
        state = np.zeros((steps, n, 1), np.float32)
        finals: list[tuple[int, int, list[int], float]] = []
        for t in range(steps):
            for i in range(n):
                stack = self._stacks[i]
                obs[t, i], flags["start"][t, i] = stack, self._starting[i]
                valid = not self._resetting[i]
                flags["valid"][t, i] = valid
                state[t, i] = 0.0 if self._starting[i] else self._frame
                gain = float(self.rng.integers(1, 100)) if valid else 0.0
                reward[t, i], action[t, i] = gain, stack[-1]
                kind = self.rng.random()
                ends = valid and kind < self.end_chance
                terminated = ends and kind < self.end_chance / 2
                truncated = ends and not terminated
                flags["terminated"][t, i], flags["truncated"][t, i] = terminated, truncated
                after = [*stack[1:], self._new()]
                if self._resetting[i]:
                    after = [self._new()] * self.stack
                row = Row(list(stack), after, gain, terminated, ends, valid, self._starting[i], float(state[t, i, 0]))
                self.rows[i].append(row)
                if self.autoreset == "next":
                    self._starting[i], self._resetting[i] = self._resetting[i], ends
                    self._stacks[i] = after
                else:
                    self._starting[i] = ends
                    self._stacks[i] = after
                    if ends:
                        finals.append((t, i, after, float(self._frame)))
                        self._stacks[i] = [self._new()] * self.stack
        last = {"obs": np.array(self._stacks, np.int32), "state/h": np.full((n, 1), self._frame, np.float32)}
        sparse = None
        if self.autoreset == "same":
            sparse = Finals(
                np.array([t for t, *_ in finals], np.int64),
                np.array([i for _, i, *_ in finals], np.int64),
                {
                    "obs": np.array([s for *_, s, _ in finals], np.int32).reshape(-1, self.stack),
                    "state/h": np.array([[h] for *_, h in finals], np.float32).reshape(-1, 1),
                },
            )
        cols = {"obs": obs, "reward": reward, "action": action, "state/h": state, **flags}
        return Batch(cols, {"state/h": state[0].copy()}, last, sparse)

    def transitions(self, n_step: int, gamma: float) -> Iterator[tuple[int, int, list[int], float, float, list[int]]]:
        """Of every valid row whose steps are all there: stream, number, observation, return, discount, next one."""
        for i, stream in enumerate(self.rows):
            for at, row in enumerate(stream):
                if not row.valid:
                    continue
                total, steps = 0.0, 0
                for one in stream[at : at + n_step]:
                    total += gamma**steps * one.reward
                    steps += 1
                    if one.ended:
                        break
                if at + n_step > len(stream):
                    continue
                discount = 0.0 if one.terminated else gamma**steps
                yield i, at, row.obs, total, discount, one.next_obs
