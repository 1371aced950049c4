"""What Podium asks of a vector env: columns in, columns out, and its state where it can give it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from podium.core.spaces import Columns, Leaf, Space

MASK = "mask"


class Stepped(NamedTuple):
    """One vector step. With same-step autoreset, `final_rows` names the envs whose episode ended and `finals` holds the
    observations that ended them (one row for each), since `obs` already shows the next episode. Where an episode may end
    within a game, as with a lost life, `game_over` names the envs whose game ended: returns are those of whole games."""

    obs: Columns
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    final_rows: np.ndarray | None = None
    finals: Columns | None = None
    game_over: np.ndarray | None = None


class VectorEnv(Protocol):
    """`n` copies of one env stepped together.

    Observations are columns by path (`{"obs": [n, ...]}`, or `{"obs/camera": ..., "obs/speed": ...}`); an env that masks
    actions adds `"mask"`, bool `[n, choices]`, true where an action is legal. With `autoreset = "same"` the step that
    ends an episode returns the next one's first observation; with `"next"` the following step does, ignoring its action
    and giving no reward. Arrays that a step returned may be overwritten by the next step. An env whose step plays
    several frames says how many in an attribute `frames_per_step`.
    """

    n: int
    observation_space: Space
    action_space: Leaf
    masked: bool
    autoreset: Literal["same", "next"]

    def reset(self, seeds: Sequence[int]) -> Columns: ...
    def step(self, actions: np.ndarray) -> Stepped: ...
    def get_state(self) -> dict[str, Any] | None: ...
    def set_state(self, state: dict[str, Any]) -> Columns: ...
    def render(self) -> np.ndarray: ...
    def processes(self) -> list[int]: ...
    def close(self) -> None: ...
