"""One gymnasium env as somebody who steps it by hand sees it: its spaces in Podium's terms, its observations as columns."""

from __future__ import annotations

from typing import Any

import numpy as np

from podium.core.spaces import Columns
from podium.envs import convert
from podium.envs.base import MASK
from podium.envs.sync import mask_method


class Single:
    """Columns are in the env's own numbers, without an axis of rows; `mask` is among them if the env masks actions."""

    def __init__(self, env: Any) -> None:
        self._observed = convert.observations(env.observation_space)
        self._masks = mask_method(env)
        self.observation_space = self._observed.space
        self.action_space = convert.action_space(env.action_space)

    def columns(self, obs: Any) -> Columns:
        found = {
            reader.path: np.asarray(reader.find(obs)).astype(reader.leaf.dtype, casting="same_kind")
            for reader in self._observed.readers
        }
        if self._observed.mask is not None:
            found[MASK] = np.asarray(self._observed.mask.find(obs), bool)
        elif self._masks is not None:
            found[MASK] = convert.mask_row(self._masks())
        return found
