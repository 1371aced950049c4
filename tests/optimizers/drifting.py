"""A toy whose best learning rate drifts: gradient descent after a target that jumps, on a curvature that grows."""

from __future__ import annotations

from typing import Any

import numpy as np

from podium.core import seeding

INTERVAL, INTERVALS = 20, 100
STEPS = INTERVAL * INTERVALS
STEEPER = 100.0
"""How much greater the curvature is at the end: the rate that undoes a jump in one step is 1 / curvature."""


class Drifting:
    """`error` is the distance from the target, which jumps by one to either side before each step; a rate above twice the
    best one makes it grow without end. All members see the same jumps."""

    def __init__(self, params: dict[str, Any], seed: int) -> None:
        self.lr = params["lr"]
        self.error, self.total, self.t = 0.0, 0.0, 0
        self._jumps = seeding.generator(seed, "jumps").choice([-1.0, 1.0], STEPS)

    def advance(self, steps: int) -> float:
        """Minus the mean squared error of the interval."""
        began, before = self.t, self.total
        while self.t < steps:
            curvature = STEEPER ** (self.t / STEPS)
            self.error += self._jumps[self.t]
            self.total += min(self.error**2, 1e6)
            self.error *= 1 - self.lr * curvature
            self.error = float(np.clip(self.error, -1e3, 1e3))
            self.t += 1
        return -(self.total - before) / (self.t - began)

    def get_state(self) -> dict[str, Any]:
        return {"error": self.error, "total": self.total, "t": self.t}

    def set_state(self, state: dict[str, Any], params: dict[str, Any]) -> None:
        vars(self).update(state)
        self.lr = params["lr"]

    def get_total(self) -> float:
        return self.total

    def close(self) -> None:
        """There is nothing to release."""


FALLEN: list[int] = []


class Failing(Drifting):
    """One that fails in its `at`th interval, and a member that was spawned in its place does not."""

    def __init__(self, params: dict[str, Any], seed: int, index: int, at: int) -> None:
        super().__init__(params, seed)
        self._index, self._at = index, at

    def advance(self, steps: int) -> float:
        if self._index not in FALLEN and steps >= self._at * INTERVAL:
            FALLEN.append(self._index)
            raise ZeroDivisionError(f"member {self._index} fell")
        return super().advance(steps)
