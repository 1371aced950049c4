"""An env's own numbers and a policy's: what those who act without the env put in between, whether they play or serve."""

from __future__ import annotations

import numpy as np

from podium.core import spaces
from podium.core.spaces import Columns, Leaf, Space
from podium.envs.convert import clipper


class Numbers:
    """Whole numbers are counted from 0 by the policy and from their start by the env, actions of a Box are clipped to it.

    `bounds` is the env's action space where the policy acts from -1 to 1 for it.
    """

    def __init__(self, observation_space: Space, action_space: Leaf, bounds: spaces.Box | None = None) -> None:
        self._leaves = spaces.leaves(observation_space, "obs")
        self._offset = spaces.offset(action_space)
        self._clip = clipper(action_space) if isinstance(action_space, spaces.Box) else None
        self._bounds = bounds

    def observed(self, rows: Columns) -> Columns:
        """Rows of the env's observations as the policy takes them."""
        return {name: self._column(leaf, rows[name]) for name, leaf in self._leaves.items()}

    def action(self, rows: np.ndarray) -> np.ndarray:
        """Rows of the policy's actions as the env takes them."""
        rows = rows + self._offset.astype(rows.dtype) if self._clip is None else self._clip(rows)
        if self._bounds is None:
            return rows
        return self._bounds.low + (self._bounds.high - self._bounds.low) * (rows + 1) / 2

    def _column(self, leaf: Leaf, rows: np.ndarray) -> np.ndarray:
        start = spaces.offset(leaf)
        return (rows - start if start.any() else rows).astype(leaf.dtype, copy=False)
