"""Evolution strategies (Salimans et al., 2017): a gradient from the ranks of mirrored perturbations' returns, and Adam."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from podium.algorithms.common.evolution import EvolutionConfig, search
from podium.core.config import Schedule, setting
from podium.core.errors import ConfigError
from podium.core.noise import Noises
from podium.core.sgd import Adam


@dataclass(frozen=True)
class ESConfig(EvolutionConfig):
    """ES's own settings; the defaults are for small classic control tasks."""

    population: int = setting(64, "perturbations in an update, half of them the others' mirror images", low=2)
    sigma: float | Schedule = setting(0.1, "standard deviation of the perturbations", above=0)
    lr: float | Schedule = setting(0.05, "Adam's step size", low=0, high=10)
    weight_decay: float = setting(0.005, "how far each update's gradient points back to 0", low=0)
    adam_eps: float = setting(1e-8, "Adam's epsilon", above=0)

    def check(self) -> None:
        if self.population % 2:
            raise ConfigError(
                f"--population is {self.population}, expected an even number: perturbations come in pairs"
            )
        super().check()

    @property
    def signs(self) -> int:
        return 2

    @property
    def directions_played(self) -> int:
        return self.population // 2

    @property
    def kept(self) -> int:
        return 2


class ES:
    """The rule."""

    signs = (1.0, -1.0)

    def __init__(self, config: ESConfig, parameters: int) -> None:
        self._config = config
        self._adam = Adam(parameters, config.adam_eps)

    def spread(self, progress: float) -> float:
        return float(self._config.at(progress).sigma)

    def step(self, mean: np.ndarray, returns: np.ndarray, noises: Noises, progress: float) -> dict[str, float]:
        now = self._config.at(progress)
        gradient = slope(centered_ranks(returns), noises, now.sigma)
        length = float(np.linalg.norm(gradient))
        self._adam.step(mean, np.float32(now.weight_decay) * mean - gradient, now.lr)
        return {"lr": now.lr, "sigma": now.sigma, "gradient_norm": length}

    def get_state(self) -> dict[str, Any]:
        return {"adam": self._adam.get_state()}

    def set_state(self, state: dict[str, Any]) -> None:
        self._adam.set_state(state["adam"])


def slope(scores: np.ndarray, noises: Noises, sigma: float) -> np.ndarray:
    """The gradient of the mean score by the parameters, from scores `[pairs, 2]` of mirrored perturbations."""
    return noises.sum((scores[:, 0] - scores[:, 1]) / (scores.size * sigma))


def centered_ranks(returns: np.ndarray) -> np.ndarray:
    """Ranks from -0.5 to 0.5; equal returns have the mean of their ranks, so that luck in the order tells nothing."""
    values, places = np.unique(returns.ravel(), return_inverse=True)
    counts = np.bincount(places, minlength=len(values))
    ends = np.cumsum(counts)
    ranks = (ends - (counts + 1) / 2)[places]
    return (ranks / max(returns.size - 1, 1) - 0.5).reshape(returns.shape)


ALGORITHM = search("es", ESConfig, ES)
