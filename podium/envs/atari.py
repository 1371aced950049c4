"""Atari's games as `atari:NAME`: ale-py's C++ threads step and preprocess them, a step that ends a game begins the next."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from podium.core.errors import MissingExtra, UsageError, did_you_mean
from podium.core.spaces import Box, Columns, Discrete, Leaf, Space
from podium.envs.base import Stepped, VectorEnv
from podium.envs.toys import at_least
from podium.envs.wrappers import FrameStack

SIZE = 84
ENLARGED = 4
STICKY = 0.25
"""The probability of repeating the last action where a name asks for sticky actions."""

OTHER_NAME = re.compile(r"(?:ALE/(?P<five>\w+)-v5|(?P<plain>\w+)NoFrameskip-v(?P<version>[04]))")


def games() -> dict[str, str]:
    """The games that come with ale-py: Podium's name, and the ROM's."""
    try:
        from ale_py import roms
    except ImportError:
        raise MissingExtra("atari", "atari") from None
    return {rom.title().replace("_", ""): rom for rom in sorted(roms.get_all_rom_ids())}


def rom_of(game: str, name: str) -> str:
    """The ROM of a game; `name` is how it was asked for."""
    try:
        known = games()
    except MissingExtra:
        raise MissingExtra(name, "atari") from None
    if game not in known:
        raise UsageError(f"unknown env {name!r}{did_you_mean(game, known) or '; `podium list envs` names the games'}")
    return known[game]


def other_name(name: str) -> tuple[str, dict[str, Any]] | None:
    """The game, and the arguments, that one of Atari's customary names stands for: `ALE/Pong-v5` has sticky actions,
    `PongNoFrameskip-v4` is the name of what was preprocessed as here."""
    found = OTHER_NAME.fullmatch(name)
    if found is None:
        return None
    return found["five"] or found["plain"], {} if found["version"] == "4" else {"sticky": STICKY}


def make_games(
    rom: str,
    time_limit: int | None,
    num_envs: int,
    sticky: float = 0.0,
    full_actions: bool = False,
    episodic_life: bool = False,
    noops: int = 30,
    fire: bool = True,
    skip: int = 4,
    stack: int = 4,
    max_frames: int = 108_000,
    threads: int | None = None,
) -> VectorEnv:
    """`num_envs` games with the customary preprocessing: an action is repeated for `skip` frames, the last two of them
    make one picture (their maximum) of 84x84 greys, and the last `stack` pictures are what is observed; they are put
    together here, so that a replay can tell, and keeps each once.

    A game begins with FIRE where it has that (and `fire`), and goes on without an action for a random number of frames,
    `noops` at most. It is cut after `max_frames`, or after `time_limit` steps where there is such a limit. With
    `episodic_life` a lost life ends an episode, while the game goes on, and its return with it.
    """
    from ale_py import AtariVectorEnv

    longest = max_frames if time_limit is None else time_limit * skip
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    pictures = at_least("stack", stack, 1)
    env = AtariVectorEnv(
        rom,
        num_envs,
        num_threads=min(cores if threads is None else at_least("threads", threads, 1), num_envs),
        max_num_frames_per_episode=min(at_least("max_frames", max_frames, 1), longest),
        repeat_action_probability=share("sticky", sticky),
        full_action_space=flag("full_actions", full_actions),
        img_height=SIZE,
        img_width=SIZE,
        stack_num=1,
        frameskip=at_least("skip", skip, 1),
        noop_max=at_least("noops", noops, 1),
        use_fire_reset=flag("fire", fire),
        reward_clipping=False,
        autoreset_mode="SameStep",
    )
    games = AtariVector(env, num_envs, skip, flag("episodic_life", episodic_life))
    return FrameStack(games, pictures) if pictures > 1 else games


class AtariVector:
    """The vector of games that ale-py steps, one picture an observation."""

    autoreset: Literal["same", "next"] = "same"
    masked = False

    def __init__(self, env: Any, n: int, skip: int, episodic_life: bool) -> None:
        self._env, self.n, self.frames_per_step, self._episodic_life = env, n, skip, episodic_life
        self.observation_space: Space = Box.of(0, 255, (1, SIZE, SIZE), np.uint8)
        self.action_space: Leaf = Discrete(len(env.ale.get_action_set()))
        self._lives = np.zeros(n, np.int32)
        self._obs = np.zeros((n, 1, SIZE, SIZE), np.uint8)

    def reset(self, seeds: Sequence[int]) -> Columns:
        # ale-py takes seeds from 1 to the largest int32; the others mean something else to it.
        self._obs, info = self._env.reset(seed=np.array([int(seed) % (2**31 - 1) + 1 for seed in seeds]))
        self._lives = info["lives"].copy()
        return {"obs": self._obs}

    def step(self, actions: np.ndarray) -> Stepped:
        self._obs, reward, terminated, truncated, info = self._env.step(actions)
        truncated = truncated & ~terminated
        over = terminated | truncated
        game_over = None
        finals = info["final_obs"] if over.any() else self._obs
        if self._episodic_life:
            game_over, lives = over, info["lives"]
            lost = (lives < self._lives) & ~over
            terminated, over = terminated | lost, over | lost
            self._lives = lives.copy()
        obs, rewards = {"obs": self._obs}, reward.astype(np.float32)
        if not over.any():
            return Stepped(obs, rewards, terminated, truncated, game_over=game_over)
        rows = np.flatnonzero(over)
        return Stepped(obs, rewards, terminated, truncated, rows, {"obs": finals[rows]}, game_over)

    def get_state(self) -> dict[str, Any] | None:
        """ale-py's vector of games can't give their state."""
        return None

    def set_state(self, state: dict[str, Any]) -> Columns:
        raise UsageError("a vector of Atari's games can't take a state")

    def render(self) -> np.ndarray:
        """The newest picture that the policy sees of the first game, enlarged."""
        large = self._obs[0, -1].repeat(ENLARGED, axis=0).repeat(ENLARGED, axis=1)
        return np.repeat(large[:, :, None], 3, axis=2)

    def processes(self) -> list[int]:
        return []

    def close(self) -> None:
        self._env.close()


def flag(name: str, value: Any) -> bool:
    """A yes or no that an env argument must be."""
    if not isinstance(value, bool):
        raise UsageError(f"{name} is {value!r}, expected true or false")
    return value


def share(name: str, value: Any) -> float:
    """A probability that an env argument must be."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise UsageError(f"{name} is {value!r}, expected a number from 0 to 1")
    return float(value)
