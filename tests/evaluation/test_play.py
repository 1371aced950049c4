"""Playing whole episodes: exactly as many as asked, shared out beforehand, so that short ones don't count more."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from counting import Counting, length_of, return_of

from podium.core.metrics import Timers
from podium.core.spaces import Box, Columns, Discrete
from podium.envs.base import VectorEnv
from podium.envs.toys import Masked, Toy
from podium.evaluation.collector import Collector
from podium.evaluation.play import play
from podium.policies.base import Acted


class Noting:
    """An actor that notes what it is asked, and remembers how many steps it has acted."""

    def __init__(self) -> None:
        self.asked: list[tuple[Columns, np.ndarray, bool]] = []

    def initial_state(self, n: int) -> Columns:
        return {"state/h": np.zeros((n, 1), np.float32)}

    def act(self, obs: Columns, state: Columns, mask: np.ndarray | None = None, explore: bool = True) -> Acted:
        self.asked.append((obs, state["state/h"][:, 0].copy(), explore))
        action = np.zeros(len(obs["obs"]), np.int64) if mask is None else mask.argmax(1)
        return Acted(action, {"state/h": state["state/h"] + 1})


class Coin(Toy):
    """Half of the episodes are over at once with nothing, half take 20 steps and pay 1."""

    fields = ("t", "long")

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs, "same")
        self.observation_space, self.action_space = Box.of(0, 1, (1,)), Discrete(2)
        self.long = np.zeros(num_envs, bool)

    def begin(self, rows: np.ndarray) -> None:
        self.long[rows] = self._rng.random(len(rows)) < 0.5

    def observe(self) -> Columns:
        return {"obs": np.ones((self.n, 1), np.float32)}

    def advance(self, actions: np.ndarray, playing: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        over = (self.t >= 20) | ~self.long
        return (over & self.long).astype(np.float32), over, np.zeros(self.n, bool)


@pytest.mark.parametrize("autoreset", ["same", "next"])
@pytest.mark.parametrize("episodes", [1, 3, 7, 12])
def test_exactly_the_asked_episodes_evenly_shared(autoreset: Any, episodes: int) -> None:
    played = play(Counting(3, autoreset), Noting(), episodes, [0, 1, 2])
    shares = [episodes // 3 + (n < episodes % 3) for n in range(3)]
    expected = [(n, k) for n in range(3) for k in range(shares[n])]
    assert played.returns.tolist() == pytest.approx([return_of(*place) for place in expected])
    assert played.lengths.tolist() == [length_of(*place) for place in expected]


def test_short_episodes_count_no_more_than_long_ones() -> None:
    """Taken as they end, the first 8 episodes of 8 envs are mostly short; the true mean is a half."""
    means, as_they_end = [], []
    for seed in range(60):
        seeds = list(range(8 * seed, 8 * seed + 8))
        means.append(play(Coin(8), Noting(), 8, seeds).returns.mean())
        collector = Collector(Coin(8), Noting(), Timers(), seeds)
        collector.collect(30)
        as_they_end.append(np.mean([r for r, _ in collector.take_finished()[:8]]))
    assert np.mean(means) == pytest.approx(0.5, abs=0.07)
    assert np.mean(as_they_end) < 0.3


@pytest.mark.parametrize("autoreset", ["same", "next"])
def test_memory_begins_anew_with_every_episode(autoreset: Any) -> None:
    actor = Noting()
    play(Counting(3, autoreset), actor, 9, [0, 1, 2])
    assert all(np.array_equal(obs["obs"][:, 2], remembered) for obs, remembered, _ in actor.asked)


@pytest.mark.parametrize("explore", [False, True])
def test_exploration_is_as_asked_and_every_step_is_seen(explore: bool) -> None:
    actor, seen = Noting(), []

    def on_step(env: VectorEnv) -> None:
        assert isinstance(env, Counting)
        seen.append(env.t.copy())

    play(Counting(3), actor, 6, [0, 1, 2], explore, on_step)
    assert {asked for _, _, asked in actor.asked} == {explore}
    assert np.array_equal(np.array(seen), np.array([obs["obs"][:, 2] for obs, _, _ in actor.asked]))


def test_masks_hold() -> None:
    env = Masked(3)
    played = play(env, Noting(), 5, [0, 1, 2])
    assert env.illegal.sum() == 0 and set(played.lengths.tolist()) == {32}


def test_the_same_seeds_give_the_same_episodes() -> None:
    first, second, other = (play(Masked(2), Noting(), 4, seeds).returns for seeds in ([1, 2], [1, 2], [1, 3]))
    assert np.array_equal(first, second) and not np.array_equal(first, other)
