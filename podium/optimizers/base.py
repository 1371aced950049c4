"""The control plane's interface: a distribution strategy over evaluators, one `step` at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from podium.core.metrics import Metrics
from podium.engine.base import Handle
from podium.policies.base import Sgd

SgdPlan = Callable[[float, int], Sgd]  # (progress of the run, number of the update) -> how to go over the next batch


@dataclass
class Step:
    """What one step of an optimizer did."""

    env_steps: int
    episodes: list[tuple[float, int]]
    metrics: Metrics
    timers: dict[str, float] = field(default_factory=dict)


class Optimizer(Protocol):
    """`step` gathers, learns and reports. State is everything that the next step depends on; the learner stands first
    among the `evaluators`, and so does its state."""

    learner: Handle
    evaluators: Sequence[Handle]

    def step(self, progress: float) -> Step: ...
    def get_state(self, restart: bool) -> dict[str, Any]: ...
    def set_state(self, state: dict[str, Any]) -> None: ...
    def close(self) -> None: ...
