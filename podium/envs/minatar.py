"""MinAtar's games as `minatar:NAME`: small pictures of 10x10 for quick checks, one game at a time behind gymnasium's API."""

from __future__ import annotations

import importlib.util
import logging
from typing import Any

import gymnasium
import numpy as np

from podium.core.errors import MissingExtra, UsageError, did_you_mean
from podium.envs.atari import flag, share

GAMES = {
    "Asterix": "asterix",
    "Breakout": "breakout",
    "Freeway": "freeway",
    "Seaquest": "seaquest",
    "SpaceInvaders": "space_invaders",
}
ENLARGED = 16
NO_STATE = ("channels", "action_map", "random")
"""What a game keeps beside its state: tables, and the random numbers that it shares with what repeats actions."""


def games() -> list[str]:
    """The games, where the package is there."""
    if importlib.util.find_spec("minatar") is None:
        raise MissingExtra("minatar", "minatar")
    return list(GAMES)


def module_of(game: str) -> Any:
    """The game's module; MinAtar's own warning that it could not draw is of no use here."""
    if game not in GAMES:
        near = did_you_mean(game, GAMES) or f"; there are {', '.join(GAMES)}"
        raise UsageError(f"unknown env 'minatar:{game}'{near}")
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        return importlib.import_module(f"minatar.environments.{GAMES[game]}")
    except ImportError:
        raise MissingExtra(f"minatar:{game}", "minatar") from None
    finally:
        logging.disable(before)


class MinAtar(gymnasium.Env):
    """One game. An observation has a plane of 10x10 for each kind of object, 255 where one is. The last action is
    repeated with the probability `sticky`; `ramping` makes a game harder as it goes on."""

    def __init__(
        self,
        game: str,
        sticky: float = 0.1,
        full_actions: bool = False,
        ramping: bool = True,
        render_mode: str | None = None,
    ) -> None:
        self.render_mode = render_mode
        self._game = module_of(game).Env(ramping=flag("ramping", ramping))
        self._sticky = share("sticky", sticky)
        self._actions = list(range(6)) if flag("full_actions", full_actions) else self._game.minimal_action_set()
        self._last = 0
        height, width, planes = self._game.state_shape()
        self.observation_space = gymnasium.spaces.Box(0, 255, (planes, height, width), np.uint8)
        self.action_space = gymnasium.spaces.Discrete(len(self._actions))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        if seed is not None:
            self._game.random = np.random.RandomState(seed % 2**32)
            self._last = 0
        self._game.reset()
        return self._observed(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        if self._game.random.rand() >= self._sticky:
            self._last = self._actions[int(action)]
        reward, over = self._game.act(self._last)
        return self._observed(), float(reward), bool(over), False, {}

    def _observed(self) -> np.ndarray:
        return self._game.state().transpose(2, 0, 1).astype(np.uint8) * np.uint8(255)

    def get_state(self) -> dict[str, Any]:
        game = {name: value for name, value in vars(self._game).items() if name not in NO_STATE}
        return {"game": game, "last": self._last, "random": self._game.random.get_state()}

    def set_state(self, state: dict[str, Any]) -> None:
        vars(self._game).update(state["game"])
        self._last = state["last"]
        self._game.random.set_state(state["random"])

    def render(self) -> np.ndarray:
        """Each kind of object in a grey of its own, the later planes over the earlier ones."""
        planes = self._game.state()
        greys = (planes * np.linspace(90, 255, planes.shape[2]).astype(np.uint8)).max(axis=2)
        large = greys.repeat(ENLARGED, axis=0).repeat(ENLARGED, axis=1)
        return np.repeat(large[:, :, None], 3, axis=2)
