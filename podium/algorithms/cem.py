"""The cross-entropy method: the next perturbations are drawn around the best of these, as far apart as those were."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from podium.algorithms.common.evolution import EvolutionConfig, search
from podium.core.config import Schedule, setting
from podium.core.errors import ConfigError
from podium.core.noise import Noises


@dataclass(frozen=True)
class CEMConfig(EvolutionConfig):
    """CEM's own settings; it is for policies of few parameters."""

    hidden: tuple[int, ...] | None = setting(None, "sizes of the hidden layers; none is a linear policy", low=1)
    population: int = setting(64, "perturbations in an update", low=2)
    elites: int = setting(8, "of them, the best, which the next ones are drawn around", low=2)
    sigma: float = setting(1.0, "standard deviation of the first perturbations", above=0)
    extra_noise: float | Schedule = setting(
        Schedule.parse("0.5->0@0.3"), "standard deviation that is added to the elites', so that it lasts", low=0
    )

    def check(self) -> None:
        if self.elites > self.population:
            raise ConfigError(f"--elites is {self.elites}, expected at most --population, which is {self.population}")
        super().check()

    @property
    def directions_played(self) -> int:
        return self.population

    @property
    def kept(self) -> int:
        return 1


class CEM:
    """The rule. What it remembers is how far the elites were apart, in every parameter."""

    signs = (1.0,)

    def __init__(self, config: CEMConfig, parameters: int) -> None:
        self._config = config
        self._elites = np.full(parameters, config.sigma, np.float32)
        self._begun = False

    def spread(self, progress: float) -> np.ndarray:
        """The first perturbations are as far apart as the settings say; the extra noise is for those that follow."""
        extra = np.float32(self._config.at(progress).extra_noise if self._begun else 0.0)
        return np.sqrt(np.square(self._elites) + extra * extra)

    def step(self, mean: np.ndarray, returns: np.ndarray, noises: Noises, progress: float) -> dict[str, float]:
        spread = self.spread(progress)
        best = np.argsort(-returns[:, 0], kind="stable")[: self._config.elites]
        centre, deviation = moments([noises[int(number)] for number in best])
        mean += spread * centre
        self._elites = spread * deviation
        self._begun = True
        return {"sigma": float(spread.mean()), "elite_return": float(returns[best].mean())}

    def get_state(self) -> dict[str, Any]:
        return {"elites": self._elites.copy(), "begun": self._begun}

    def set_state(self, state: dict[str, Any]) -> None:
        self._elites, self._begun = state["elites"].copy(), state["begun"]


def moments(noises: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of the elites, added up in their order."""
    mean = sum(noises[1:], noises[0].copy()) / np.float32(len(noises))
    squares = sum((np.square(noise - mean) for noise in noises), np.zeros_like(mean))
    return mean, np.sqrt(squares / np.float32(len(noises)))


ALGORITHM = search("cem", CEMConfig, CEM)
