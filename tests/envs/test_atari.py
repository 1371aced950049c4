"""Atari's vector against one game stepped by hand: pictures, rewards, ends, lives; its names, settings and counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ale_py import Action, ALEInterface, LoggerMode, roms

import podium
from podium.core.errors import UsageError
from podium.core.metrics import Timers
from podium.core.spaces import Columns, Discrete, Frames
from podium.envs.atari import AtariVector, games
from podium.envs.base import Stepped
from podium.envs.check import check
from podium.envs.make import EnvSpec, frames_of, make, traits_of
from podium.envs.names import known, note
from podium.envs.wrappers import FrameStack
from podium.evaluation.collector import Collector
from podium.evaluation.play import play
from podium.policies.base import Acted

SEEDS = [11, 12]
STEPS = 330


def area_weights(size: int, of: int) -> np.ndarray:
    """Rows that average `of` pixels into `size`, each by the area that it covers."""
    edges = np.arange(size + 1) * of / size
    low, high = edges[:-1, None], edges[1:, None]
    pixel = np.arange(of)
    return np.clip(np.minimum(high, pixel + 1) - np.maximum(low, pixel), 0, 1) * size / of


DOWN, ACROSS = area_weights(84, 210), area_weights(84, 160)


class OneGame:
    """A game played by ALE's own interface, one frame at a time."""

    def __init__(self, rom: str, seed: int) -> None:
        ALEInterface.setLoggerMode(LoggerMode.Error)
        self.ale = ALEInterface()
        self.ale.setFloat("repeat_action_probability", 0.0)
        self.ale.setInt("random_seed", seed)
        self.ale.loadROM(roms.get_rom_path(rom))
        self.actions = self.ale.getMinimalActionSet()
        self.frames = np.zeros((2, 210, 160), np.uint8)
        self.stack = np.zeros((4, 84, 84))

    def begin(self, frames: int) -> np.ndarray:
        """A new game: so many frames pass before the first action, the first one of them with FIRE."""
        self.ale.reset_game()
        self.ale.act(Action.FIRE)
        for _ in range(frames - 1):
            self.ale.act(Action.NOOP)
        self.frames[0], self.frames[1] = 0, self.ale.getScreenGrayscale()
        self.stack = np.stack([self.picture()] * 4)
        return self.stack

    def picture(self) -> np.ndarray:
        return DOWN @ self.frames.max(axis=0) @ ACROSS.T

    def step(self, action: int) -> tuple[np.ndarray, float, bool]:
        """Four frames with one action; a game that ends before the fourth shows its last picture once more."""
        reward, shown = 0.0, []
        while len(shown) < 4 and not self.ale.game_over():
            reward += self.ale.act(self.actions[action])
            shown.append(self.ale.getScreenGrayscale())
        if len(shown) == 4:
            self.frames[:] = shown[2:]
        self.stack = np.concatenate([self.stack[1:], self.picture()[None]])
        return self.stack, reward, self.ale.game_over()


def close(ours: np.ndarray, theirs: np.ndarray) -> bool:
    """Equal but for the rounding of an average."""
    return bool((np.abs(ours.astype(float) - theirs) <= 1).all())


def actions_for(env: Any, steps: int) -> np.ndarray:
    return np.random.default_rng(5).integers(env.action_space.n, size=(steps, env.n))


def played(spec: EnvSpec, steps: int = STEPS) -> tuple[Columns, list[Stepped]]:
    """The first observation and each step's outcome, their arrays copied."""
    env = make(spec, len(SEEDS))
    first = {"obs": env.reset(SEEDS)["obs"].copy()}
    outcomes = []
    for row in actions_for(env, steps):
        step = env.step(row)
        outcomes.append(step._replace(obs={"obs": step.obs["obs"].copy()}))
    env.close()
    return first, outcomes


@pytest.mark.parametrize(("game", "rewards", "ends"), [("Breakout", 1, 2), ("SpaceInvaders", 10, 0)])
def test_against_one_game_stepped_by_hand(game: str, rewards: int, ends: int) -> None:
    env = make(EnvSpec(f"atari:{game}"), 2)
    assert isinstance(env, FrameStack) and isinstance(env.env, AtariVector) and env.autoreset == "same"
    begun: list[np.ndarray] = []
    inner = env.env._env
    step = inner.step

    def noting(actions: np.ndarray) -> Any:
        result = step(actions)
        begun.append(result[-1]["episode_frame_number"].copy())
        return result

    inner.step = noting
    obs = env.reset(SEEDS)["obs"]
    singles = [OneGame(games()[game], seed + 1) for seed in SEEDS]
    frames = inner.reset(seed=np.array(SEEDS) + 1)[1]["episode_frame_number"]
    for i, single in enumerate(singles):
        assert 1 <= frames[i] <= 30 and close(obs[i], single.begin(int(frames[i])))
    rewarded = ended = 0
    for row in actions_for(env, STEPS):
        stepped = env.step(row)
        rows = [] if stepped.final_rows is None else stepped.final_rows.tolist()
        for i, single in enumerate(singles):
            pictures, reward, over = single.step(int(row[i]))
            assert stepped.reward[i] == reward and stepped.terminated[i] == over and not stepped.truncated[i]
            assert (i in rows) == over
            if over:
                assert stepped.finals is not None
                assert close(stepped.finals["obs"][rows.index(i)], pictures)
                pictures = single.begin(int(begun[-1][i]))
            assert close(stepped.obs["obs"][i], pictures)
            rewarded, ended = rewarded + (reward != 0), ended + over
    assert rewarded >= rewards and ended >= ends
    env.close()


def test_a_lost_life_ends_an_episode_but_not_the_game() -> None:
    first, whole = played(EnvSpec("atari:Breakout"))
    again, lives = played(EnvSpec("atari:Breakout", {"episodic_life": True}))
    np.testing.assert_array_equal(first["obs"], again["obs"])
    lost = 0
    for game, life in zip(whole, lives, strict=True):
        np.testing.assert_array_equal(game.obs["obs"][:, -1], life.obs["obs"][:, -1])
        np.testing.assert_array_equal(game.reward, life.reward)
        assert life.game_over is not None and game.game_over is None
        np.testing.assert_array_equal(life.game_over, game.terminated)
        assert (life.terminated | ~game.terminated).all()
        rows = np.flatnonzero(life.terminated)
        assert (life.final_rows is None) == (not len(rows))
        for i, final in zip(rows, [] if life.finals is None else life.finals["obs"], strict=True):
            if life.game_over[i]:
                assert game.finals is not None and game.final_rows is not None
                np.testing.assert_array_equal(final, game.finals["obs"][game.final_rows.tolist().index(i)])
            else:
                begun = life.obs["obs"][i]
                np.testing.assert_array_equal(begun, np.stack([begun[-1]] * 4))
                np.testing.assert_array_equal(final[-1], begun[-1])
                assert not np.array_equal(final[0], begun[0])
        lost += int((life.terminated & ~life.game_over).sum())
    assert lost >= 4 * sum(int(step.terminated.sum()) for step in whole) > 0


class Repeating:
    """An actor that goes through given actions."""

    def __init__(self, actions: np.ndarray) -> None:
        self._rows = iter(actions)

    def initial_state(self, n: int) -> Columns:
        return {}

    def act(self, obs: Columns, state: Columns, mask: np.ndarray | None = None, explore: bool = True) -> Acted:
        return Acted(next(self._rows), {}, {})


def test_returns_are_those_of_whole_games() -> None:
    finished, evaluated = [], []
    for args in ({}, {"episodic_life": True}):
        env = make(EnvSpec("atari:Breakout", args), 2)
        collector = Collector(env, Repeating(actions_for(env, STEPS)), Timers(), SEEDS)
        batches = [collector.collect(STEPS // 3) for _ in range(3)]
        finished.append(collector.take_finished())
        ends = sum(int(batch.cols["terminated"].sum()) for batch in batches)
        assert ends == len(finished[-1]) if not args else ends > 4 * len(finished[-1])
        result = play(env, Repeating(actions_for(env, STEPS)), 2, SEEDS)
        evaluated.append((result.returns.tolist(), result.lengths.tolist()))
        env.close()
    assert finished[0] == finished[1] and len(finished[0]) >= 2 and sum(r for r, _ in finished[0]) > 0
    assert evaluated[0] == evaluated[1] and sum(evaluated[0][1]) > 100


def test_rewards_are_raw() -> None:
    env = make(EnvSpec("atari:SpaceInvaders"), 2)
    env.reset(SEEDS)
    rewards = np.array([env.step(row).reward for row in actions_for(env, 120)])
    env.close()
    assert rewards.max() >= 5 and rewards.dtype == np.float32


def test_seeds_are_each_envs_own_and_repeatable() -> None:
    env = make(EnvSpec("atari:Pong", {"sticky": 0.25}), 3)
    rows = actions_for(env, 30)

    def episode(seeds: list[int]) -> np.ndarray:
        env.reset(seeds)
        return np.array([env.step(row[:1].repeat(3)).obs["obs"] for row in rows])

    one = episode([7, 8, 7])
    np.testing.assert_array_equal(one[:, 0], one[:, 2])
    assert not np.array_equal(one[:, 0], one[:, 1])
    np.testing.assert_array_equal(episode([7, 8, 7]), one)
    env.close()


def test_the_customary_names_are_the_same_games() -> None:
    steps = 40
    plain, sticky = played(EnvSpec("atari:Pong"), steps)[1], played(EnvSpec("atari:Pong", {"sticky": 0.25}), steps)[1]
    old, new = played(EnvSpec("PongNoFrameskip-v4"), steps)[1], played(EnvSpec("ALE/Pong-v5"), steps)[1]
    tamed = played(EnvSpec("ALE/Pong-v5", {"sticky": 0.0}), steps)[1]
    pictures = [np.array([step.obs["obs"] for step in steps]) for steps in (plain, old, tamed, sticky, new)]
    np.testing.assert_array_equal(pictures[0], pictures[1])
    np.testing.assert_array_equal(pictures[0], pictures[2])
    np.testing.assert_array_equal(pictures[3], pictures[4])
    assert not np.array_equal(pictures[0], pictures[3])
    assert note("PongNoFrameskip-v4") == "PongNoFrameskip-v4 is made as atari:Pong without sticky actions"
    assert note("ALE/Pong-v5") == "ALE/Pong-v5 is made as atari:Pong with sticky=0.25"
    assert note("atari:Pong") is None and note("CartPole-v1") is None


def test_settings_do_what_they_say() -> None:
    env = make(EnvSpec("atari:Pong", {"full_actions": True, "stack": 2, "skip": 2, "threads": 1}, time_limit=3), 2)
    assert env.action_space == Discrete(18) and env.observation_space.shape == (2, 84, 84)
    assert env.frames_per_step == 2
    env.reset(SEEDS)
    steps = [env.step(np.zeros(2, np.int64)) for _ in range(6)]
    assert [step.truncated.tolist() for step in steps] == 2 * ([[False] * 2] * 2 + [[True] * 2])
    assert not any(step.terminated.any() for step in steps)
    assert steps[2].final_rows is not None and steps[2].final_rows.tolist() == [0, 1]
    picture = env.render()
    assert picture.shape == (336, 336, 3) and picture.dtype == np.uint8
    assert env.get_state() is None
    env.close()


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (EnvSpec("atari:Pogn"), "unknown env 'atari:Pogn'; did you mean 'Pong'?"),
        (EnvSpec("ALE/Pnog-v5"), "unknown env 'ALE/Pnog-v5'; did you mean 'Pong'?"),
        (EnvSpec("atari:Pong", {"stiky": 0.25}), "atari:Pong has no argument 'stiky'; did you mean 'sticky'?"),
        (EnvSpec("atari:Pong", {"rom": "breakout"}), "atari:Pong has no argument 'rom'"),
        (EnvSpec("atari:Pong", {"sticky": 2}), "sticky is 2, expected a number from 0 to 1"),
        (EnvSpec("atari:Pong", {"full_actions": 1}), "full_actions is 1, expected true or false"),
        (EnvSpec("atari:Pong", {"noops": 0}), "noops is 0, expected a whole number of at least 1"),
        (EnvSpec("atari:Pong", processes=2), "atari:Pong steps its envs as one vector already"),
    ],
)
def test_what_is_wrong_is_named(spec: EnvSpec, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        make(spec, 1)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_a_replay_is_told_of_the_stacks() -> None:
    assert frames_of(EnvSpec("atari:Pong")) == {"obs": Frames(4, 0)}
    assert frames_of(EnvSpec("PongNoFrameskip-v4", {"stack": 1})) == {}
    assert frames_of(EnvSpec("atari:Pong", {"stack": 1}, frame_stack=3)) == {"obs": Frames(3, 0)}
    assert frames_of(EnvSpec("CartPole-v1")) == {}


def test_every_game_that_is_listed_has_its_rom() -> None:
    assert {"Pong", "MsPacman", "SpaceInvaders"} <= set(games()) and len(games()) > 100
    assert "atari:Pong" in known()["atari"]
    for rom in games().values():
        assert roms.get_rom_path(rom) is not None


def test_frames_per_step_come_through_wrappers_and_pools() -> None:
    assert traits_of(EnvSpec("atari:Pong", frame_stack=2)).frames_per_step == 4
    assert traits_of(EnvSpec("envpool:Pong-v5", {"frame_skip": 3})).frames_per_step == 3
    assert traits_of(EnvSpec("envpool:HalfCheetah-v5")).frames_per_step == 1, "substeps of physics are no frames"
    assert traits_of(EnvSpec("CartPole-v1")).frames_per_step == 1


def test_a_run_counts_frames_and_can_be_filmed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check(EnvSpec("ALE/Pong-v5"))
    settings = {"envs": 2, "fragment": 8, "steps": 48, "time_limit": 6, "hidden": "16"}
    result = podium.train("a2c", "ALE/Pong-v5", seed=1, out=tmp_path / "run", progress=False, **settings)
    assert "ALE/Pong-v5 is made as atari:Pong with sticky=0.25" in capsys.readouterr().err
    assert result["env_steps"] == 48 and result["frames"] == 192 and result["episodes"] == 8
    rows = podium.run.folder.RunFolder(tmp_path / "run").read_metrics()
    assert [row["frames"] for row in rows] == [4 * row["env_steps"] for row in rows]
    film = tmp_path / "film.gif"
    assert podium.evaluate(tmp_path / "run", episodes=1, video=film)["length_mean"] == 6
    assert film.stat().st_size > 0
