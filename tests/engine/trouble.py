"""An env of fixed episodes in which something goes wrong once a file says so."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

LENGTH = 10  # of every episode, and its return


class Troubled(gymnasium.Env):
    """While the file `flag` is there: `slow` takes 5 ms for a step, `hang` takes for ever in one process, `raise` raises
    and `nan` returns NaN."""

    observation_space = gymnasium.spaces.Box(0, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, flag: str, kind: str) -> None:
        self.flag, self.kind = Path(flag), kind

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.t += 1
        seen = self.t / LENGTH
        if self.flag.exists():
            seen = self._trouble(seen)
        return np.full(1, seen, np.float32), 1.0, self.t == LENGTH, False, {}

    def _trouble(self, seen: float) -> float:
        if self.kind == "raise":
            raise LookupError("the dice are gone")
        if self.kind == "nan":
            return float("nan")
        if self.kind == "hang" and self._first_to_come():
            time.sleep(600)
        if self.kind == "slow":
            time.sleep(0.005)
        return seen

    def _first_to_come(self) -> bool:
        try:
            os.close(os.open(f"{self.flag}.taken", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True
