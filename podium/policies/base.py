"""The policy graph's interface: numpy in, numpy out, whatever framework is inside."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np

from podium.core.batch import Batch
from podium.core.sgd import Reduce as Reduce
from podium.core.spaces import Columns


@dataclass(slots=True)
class Acted:
    """The actions for n rows, the recurrent state after them, and columns to keep (logp, value ...)."""

    action: np.ndarray
    state: Columns = field(default_factory=dict)
    extra: Columns = field(default_factory=dict)


@dataclass(frozen=True)
class Sgd:
    """How to go over a batch: passes, rows a minibatch, and the figure above which the rest is left out."""

    progress: float = 0.0
    seed: int = 0
    epochs: int = 1
    minibatch: int | None = None
    stop_above: tuple[str, float] | None = None


@dataclass
class Learned:
    """What learning reports: metrics, and values per row of the batch such as td errors."""

    metrics: dict[str, float]
    rows: Columns = field(default_factory=dict)


@dataclass(frozen=True)
class Weights:
    """What an evaluator needs to act: one flat float32 vector, the number of the learner's update that made it, and how
    far the run is (0 to 1), which decides the settings that follow a schedule."""

    flat: np.ndarray
    version: int
    progress: float = 0.0


class Policy(Protocol):
    """Model, how to act, how to finish a trajectory, what to minimise. `version` counts the updates of the weights.

    `load` keeps a batch where learning is fast, refusing one of more than `limit` bytes; `learn` takes it in a batch's
    place. `gradients` leaves the policy as it is; what its filters would have seen is `observed`, for the policy that
    applies the gradient to `observe`. The first `parameters` numbers of the weights are what gradients are by. `player`
    says which of how many evaluators plays with it, from 1: they may explore differently.
    """

    version: int
    progress: float
    parameters: int
    player: tuple[int, int]

    def initial_state(self, n: int) -> Columns: ...
    def act(self, obs: Columns, state: Columns, mask: np.ndarray | None = None, explore: bool = True) -> Acted: ...
    def values(self, obs: Columns, state: Columns) -> np.ndarray: ...
    def postprocess(self, batch: Batch) -> Batch: ...
    def load(self, batch: Batch, limit: int | None = None) -> Any: ...
    def learn(self, batch: Any, sgd: Sgd, reduce: Reduce | None = None) -> Learned: ...
    def gradients(self, batch: Batch, sgd: Sgd) -> tuple[np.ndarray, dict[str, float]]: ...
    def apply(self, flat: np.ndarray, sgd: Sgd) -> None: ...
    def observed(self, batch: Batch) -> Mapping[str, Any]: ...
    def observe(self, observed: Mapping[str, Any]) -> None: ...
    def get_weights(self) -> Weights: ...
    def set_weights(self, weights: Weights) -> None: ...
    def get_state(self, full: bool = False) -> dict[str, Any]: ...
    def set_state(self, state: dict[str, Any]) -> None: ...


@runtime_checkable
class Prioritizing(Protocol):
    """A policy that says of transitions, as a replay gives them, how wrong it is about each by its own weights alone."""

    def priorities(self, batch: Batch) -> np.ndarray: ...
