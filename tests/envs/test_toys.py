"""The toys' known answers, played by hand-written policies."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from podium.core.spaces import Box, Columns
from podium.envs.base import VectorEnv
from podium.envs.make import EnvSpec, make
from podium.envs.toys import Masked


def rewards(env: VectorEnv, act: Callable[[Columns], np.ndarray], steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Rewards and ends `[T, n]` of a policy that sees the present observation."""
    obs = env.reset(range(env.n))
    rows, ends = [], []
    for _ in range(steps):
        stepped = env.step(act(obs))
        obs = stepped.obs
        rows.append(stepped.reward.copy())
        ends.append(stepped.terminated | stepped.truncated)
    return np.array(rows), np.array(ends)


def test_chain_pays_at_its_right_end() -> None:
    got, ends = rewards(make(EnvSpec("toy:chain", {"length": 5}), 2), lambda obs: np.ones(2, np.int64), 8)
    assert got[:, 0].tolist() == [0, 0, 0, 1] * 2
    assert ends[:, 0].tolist() == [False, False, False, True] * 2
    assert sum(0.9**t * reward for t, reward in enumerate(got[:4, 0])) == pytest.approx(0.9 ** (5 - 2))
    stuck, ends = rewards(make(EnvSpec("toy:chain", {"length": 2}), 1), lambda obs: np.zeros(1, np.int64), 20)
    assert stuck.sum() == 0 and ends[:, 0].nonzero()[0].tolist() == [19]


def test_constant_is_cut_and_never_over() -> None:
    env = make(EnvSpec("toy:constant", {"length": 3}), 1)
    env.reset([0])
    steps = [env.step(np.zeros(1, np.int64)) for _ in range(6)]
    assert [step.truncated[0] for step in steps] == [False, False, True] * 2
    assert not any(step.terminated[0] for step in steps) and all(step.reward[0] == 1 for step in steps)
    assert all(step.obs["obs"].tolist() == [[1]] for step in steps)


def test_cue_needs_memory() -> None:
    n, gap = 64, 3
    env = make(EnvSpec("toy:cue", {"gap": gap}), n)
    remembered = np.zeros(n, np.int64)

    def with_memory(obs: Columns) -> np.ndarray:
        shown = obs["obs"][:, :2].any(axis=1)
        remembered[shown] = obs["obs"][shown, :2].argmax(axis=1)
        return remembered

    got, ends = rewards(env, with_memory, 2 * (gap + 2))
    assert ends.all(axis=1).tolist() == ([False] * (gap + 1) + [True]) * 2
    assert (got[ends] == 1).all() and got[~ends].sum() == 0
    without, ends = rewards(env, lambda obs: obs["obs"][:, :2].argmax(axis=1), 50 * (gap + 2))
    assert without[ends].mean() == pytest.approx(0.5, abs=0.05)


def test_cue_shows_nothing_in_the_gap() -> None:
    env = make(EnvSpec("toy:cue", {"gap": 2, "cues": 3}), 1)
    obs = [env.reset([0])["obs"][0], *(env.step(np.zeros(1, np.int64)).obs["obs"][0] for _ in range(3))]
    assert obs[0][:3].sum() == 1 and obs[0][3] == 0
    assert [row.tolist() for row in obs[1:]] == [[0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 1]]


def test_match_pays_the_shown_symbol() -> None:
    env = make(EnvSpec("toy:match", {"symbols": 3, "length": 4}), 8)
    right, ends = rewards(env, lambda obs: obs["obs"].argmax(axis=1), 8)
    assert (right == 1).all() and ends[:, 0].tolist() == [False, False, False, True] * 2
    wrong, _ = rewards(env, lambda obs: (obs["obs"].argmax(axis=1) + 1) % 3, 8)
    assert (wrong == 0).all()


@pytest.mark.parametrize("autoreset", ["same", "next"])
def test_masked_counts_illegal_actions(autoreset: str) -> None:
    env = make(EnvSpec("toy:masked", {"autoreset": autoreset}), 4)
    assert isinstance(env, Masked)
    got, ends = rewards(env, lambda obs: obs["mask"].argmax(axis=1), 40)
    assert env.illegal.sum() == 0 and (got >= 0).all()
    assert ends.any(axis=1).nonzero()[0].tolist() == [31]
    got, ends = rewards(env, lambda obs: (~obs["mask"]).argmax(axis=1), 1)
    full = (got[:, :] >= 0).sum()
    assert env.illegal.sum() == (got == -1).sum() == ends.sum() == 4 - full and env.illegal.sum() > 0


def test_continuous_costs_the_squared_distance() -> None:
    env = make(EnvSpec("toy:continuous"), 3)
    exact, _ = rewards(env, lambda obs: obs["obs"], 5)
    assert np.abs(exact).max() == 0
    obs = env.reset([1, 2, 3])["obs"].copy()
    np.testing.assert_allclose(env.step(np.zeros((3, 1), np.float32)).reward, -(obs[:, 0] ** 2), rtol=1e-6)


def test_hidden_cartpole_shows_position_and_angle_only() -> None:
    env, whole = make(EnvSpec("toy:cartpole-hidden"), 3), make(EnvSpec("CartPole-v1"), 3)
    assert isinstance(env.observation_space, Box) and env.observation_space.shape == (2,)
    np.testing.assert_array_equal(env.reset([1, 2, 3])["obs"], whole.reset([1, 2, 3])["obs"][:, [0, 2]])
    for _ in range(30):
        a, b = env.step(np.ones(3, np.int64)), whole.step(np.ones(3, np.int64))
        np.testing.assert_array_equal(a.obs["obs"], b.obs["obs"][:, [0, 2]])
        np.testing.assert_array_equal(a.terminated, b.terminated)
        assert a.obs["obs"].flags.c_contiguous


def test_a_seed_gives_the_same_toy_twice() -> None:
    for name in ("match", "masked", "cue", "continuous"):
        env = make(EnvSpec(f"toy:{name}"), 4)
        first = env.reset([1, 2, 3, 4])["obs"].copy()
        np.testing.assert_array_equal(env.reset([1, 2, 3, 4])["obs"], first)
        assert name == "cue" or not np.array_equal(env.reset([1, 2, 3, 5])["obs"], first)
