"""An env in which every number tells its place: env, episode and step; episodes end on schedule, whatever is done."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from podium.core.spaces import Box, Columns, Discrete
from podium.envs.toys import Autoreset, Toy


def length_of(env: int, episode: int) -> int:
    return 2 + (env + episode) % 3


def truncated_at_its_end(env: int, episode: int) -> bool:
    return (env + episode) % 2 == 1


def reward_of(env: int, episode: int, t: int) -> float:
    return 1.0 + t + 0.25 * env - 0.5 * (episode % 3)


def return_of(env: int, episode: int) -> float:
    return sum(reward_of(env, episode, t) for t in range(length_of(env, episode)))


class Counting(Toy):
    """Observes (env, episode, step), all from 0."""

    fields = ("t", "episode")

    def __init__(self, num_envs: int, autoreset: Autoreset = "same") -> None:
        super().__init__(num_envs, autoreset)
        self.observation_space = Box.of(0, np.inf, (3,))
        self.action_space = Discrete(2)
        self.episode = np.full(num_envs, -1)

    def reset(self, seeds: Sequence[int]) -> Columns:
        self.episode[:] = -1
        return super().reset(seeds)

    def begin(self, rows: np.ndarray) -> None:
        self.episode[rows] += 1

    def observe(self) -> Columns:
        return {"obs": np.stack([np.arange(self.n), self.episode, self.t], 1).astype(np.float32)}

    def advance(self, actions: np.ndarray, playing: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        places = list(zip(range(self.n), self.episode.tolist(), self.t.tolist(), strict=True))
        reward = np.array([reward_of(env, episode, t - 1) for env, episode, t in places])
        ended = np.array([t >= length_of(env, episode) for env, episode, t in places])
        cut = np.array([truncated_at_its_end(env, episode) for env, episode, _ in places])
        return reward, ended & ~cut, ended & cut


class Forgetful(Counting):
    """The same, but it can't give its state; it notes with which seeds it was reset."""

    def __init__(self, num_envs: int, autoreset: Autoreset = "same") -> None:
        super().__init__(num_envs, autoreset)
        self.resets: list[list[int]] = []

    def reset(self, seeds: Sequence[int]) -> Columns:
        self.resets.append(list(seeds))
        return super().reset(seeds)

    def get_state(self) -> None:  # type: ignore[override]
        return None
