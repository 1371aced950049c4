"""The policy graph's interface: numpy in, numpy out, whatever framework is inside."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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


class Acting(Protocol):
    """What everyone asks of a policy: to act, to be sent and to be kept. `version` counts the updates of the weights, of
    which the first `parameters` numbers are what is learned and the others what its filters have seen: `observed` is what
    they would see of a batch, for the policy that learns to `observe`.
    """

    version: int
    progress: float
    parameters: int
    player: tuple[int, int]

    def initial_state(self, n: int) -> Columns: ...
    def act(self, obs: Columns, state: Columns, mask: np.ndarray | None = None, explore: bool = True) -> Acted: ...
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


@runtime_checkable
class Valuing(Protocol):
    """A policy that also says what states are worth; one that is searched for need not."""

    def values(self, obs: Columns, state: Columns) -> np.ndarray: ...


class Policy(Acting, Valuing, Protocol):
    """Model, how to act, how to finish a trajectory, what to minimise.

    `load` keeps a batch where learning is fast, refusing one of more than `limit` bytes; `learn` takes it in a batch's
    place. `gradients` are by the parameters and leave the policy as it is; the policy that applies them observes what the
    filters would have seen. `player` says which of how many evaluators plays with it, from 1: they may explore differently.
    """

    player: tuple[int, int]

    def postprocess(self, batch: Batch) -> Batch: ...
    def load(self, batch: Batch, limit: int | None = None) -> Any: ...
    def learn(self, batch: Any, sgd: Sgd, reduce: Reduce | None = None) -> Learned: ...
    def gradients(self, batch: Batch, sgd: Sgd) -> tuple[np.ndarray, dict[str, float]]: ...
    def apply(self, flat: np.ndarray, sgd: Sgd) -> None: ...


Each = Callable[[Columns, np.ndarray | None], np.ndarray]  # (observations, mask) -> actions, row by row


class Searched(Acting, Protocol):
    """A policy that a search perturbs: `each` acts in every row by that row's own parameters `[rows, parameters]`, with
    random numbers of the generator where actions are drawn. What was observed in parts is `merged`; there is nothing to
    observe for one that is not `filtered`."""

    @property
    def filtered(self) -> bool: ...
    def each(self, vectors: np.ndarray, rng: np.random.Generator) -> Each: ...
    def merged(self, parts: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]: ...
