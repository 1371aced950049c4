"""What a search looks for: a figure of the runs, or how soon they reach a return."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from podium.algorithms.common.base import RunConfig
from podium.core.errors import PodiumError, UsageError, known_names

Direction = Literal["maximize", "minimize"]
SPENT = ("env_steps", "frames", "episodes", "updates", "wall_s")
"""What a run spends: to be compared only between runs that have reached the same return."""


@dataclass(frozen=True)
class Goal:
    """The figure, which way it is better, and the return that ends a run where it is what the run has spent until then."""

    metric: str
    direction: Direction
    stop_return: float | None

    @classmethod
    def of(cls, metric: str, direction: str | None, config: RunConfig) -> Goal:
        """From what was asked for; figures of losses and of what is spent are better when they are less."""
        if direction not in (None, "maximize", "minimize"):
            raise UsageError(f"--direction is {direction!r}, expected maximize or minimize")
        if metric in SPENT and config.stop_return is None:
            raise UsageError(
                f"--metric {metric} is what a run spends until it reaches a return: add --stop-return R, such as 475"
            )
        if metric in SPENT and direction == "maximize":
            raise UsageError(f"--direction maximize does not fit --metric {metric}: that is what a run spends")
        if metric.startswith("eval_") and config.eval_every is None:
            raise UsageError(f"--metric {metric} is reported by evaluations alone: add --eval-every N")
        less = metric in SPENT or "loss" in metric
        return cls(metric, direction or ("minimize" if less else "maximize"), config.stop_return)  # type: ignore[arg-type]

    @property
    def spends(self) -> bool:
        return self.metric in SPENT

    def better(self, one: float, other: float) -> bool:
        return one > other if self.direction == "maximize" else one < other

    def value(self, figures: Mapping[str, Any]) -> float:
        """What a run came to; one that never had the figure is an error that says which there are."""
        found = figures.get(self.metric)
        if found is None and self.metric in figures:
            raise PodiumError(f"there is no {self.metric} yet: too short were {figures['env_steps']:,.0f} env steps")
        if not isinstance(found, int | float) or isinstance(found, bool):
            raise UnknownMetric(self.metric, figures)
        if math.isnan(found):
            raise PodiumError(f"{self.metric} is not a number")
        return float(found)

    def on_the_way(self, figures: Mapping[str, Any]) -> float | None:
        """What runs are compared by before they end; where less is spent the better, that is the return, less being worse."""
        if not self.spends:
            found = figures.get(self.metric)
            return None if found is None else float(found)
        evaluated = figures.get("eval_return_mean")
        found = figures.get("return_mean") if evaluated is None else evaluated
        return None if found is None else -float(found)

    def check(self, figures: Mapping[str, Any]) -> None:
        """Refuse a figure that is still missing once a run learns: none will report it."""
        missing = self.metric not in figures and not self.metric.startswith("eval_")
        if missing and figures.get("updates"):
            raise UnknownMetric(self.metric, figures)


class UnknownMetric(PodiumError):
    """A figure that no run reports: there is nothing to search by."""

    def __init__(self, metric: str, figures: Mapping[str, Any]) -> None:
        known = [name for name, value in figures.items() if value is None or isinstance(value, int | float)]
        super().__init__(f"no run reports --metric {metric!r}{known_names(metric, known)}")
