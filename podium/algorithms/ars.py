"""Augmented random search (Mania et al., 2018): the best directions' differences, measured by their returns' deviation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from podium.algorithms.common.evolution import EvolutionConfig, search
from podium.algorithms.common.tuned import tuned
from podium.core.config import Schedule, setting
from podium.core.errors import ConfigError
from podium.core.noise import Noises


@dataclass(frozen=True)
class ARSConfig(EvolutionConfig):
    """ARS's own settings: v2, whose linear policy sees normalised observations. Without them it is v1."""

    envs: int = setting(16, "rows of an evaluator's vector env, each with a perturbation of its own", low=1)
    hidden: tuple[int, ...] | None = setting(None, "sizes of the hidden layers; none is a linear policy", low=1)
    normalize_obs: bool = setting(True, "normalise observations by their running mean and variance")
    directions: int = setting(16, "perturbations in an update, each played both ways", low=1)
    top: int = setting(8, "of them, those with the best returns make the step", low=1)
    sigma: float | Schedule = setting(0.1, "standard deviation of the perturbations", above=0)
    lr: float | Schedule = setting(0.05, "step size", low=0, high=10)

    def check(self) -> None:
        if self.top > self.directions:
            raise ConfigError(f"--top is {self.top}, expected at most --directions, which is {self.directions}")
        super().check()

    @property
    def signs(self) -> int:
        return 2

    @property
    def directions_played(self) -> int:
        return self.directions


class ARS:
    """The rule. It remembers nothing."""

    signs = (1.0, -1.0)

    def __init__(self, config: ARSConfig, parameters: int) -> None:
        self._config = config

    def spread(self, progress: float) -> float:
        return float(self._config.at(progress).sigma)

    def step(self, mean: np.ndarray, returns: np.ndarray, noises: Noises, progress: float) -> dict[str, float]:
        now = self._config.at(progress)
        weights, deviation = shares(returns, now.top)
        mean += np.float32(now.lr) * noises.sum(weights)
        return {"lr": now.lr, "sigma": now.sigma, "return_deviation": deviation}

    def get_state(self) -> dict[str, Any]:
        return {}

    def set_state(self, state: dict[str, Any]) -> None:
        """There is nothing to take over."""


def shares(returns: np.ndarray, top: int) -> tuple[np.ndarray, float]:
    """How much of each direction the step takes, from returns `[directions, 2]` both ways, and sigma_R, the deviation of
    the returns of the directions used. Without a deviation there is no step."""
    used = np.argsort(-returns.max(1), kind="stable")[:top]
    deviation = float(returns[used].std())
    weights = np.zeros(len(returns))
    if deviation > 0:
        weights[used] = (returns[used, 0] - returns[used, 1]) / (len(used) * deviation)
    return weights, deviation


ALGORITHM = search("ars", ARSConfig, ARS, tuned("ars"))
