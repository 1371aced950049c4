"""Central inference: one server holds the policy, and evaluators that hold none ask it what to do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from podium.core.batch import Batch
from podium.core.spaces import Columns, under
from podium.envs.base import MASK
from podium.policies.base import Acted, Policy, Weights
from podium.serving.base import Client
from podium.serving.server import Function, InferenceServer
from podium.serving.transports.near import NearServer

Postprocess = Callable[[Any, Batch, SimpleNamespace], Batch]
NOTHING = np.zeros(0, np.float32)


class CentralServer(NearServer):
    """The policy of all who play. Actions wait for the rows of others; what is asked beside them is answered at once,
    since nobody asks it in step."""

    def __init__(
        self,
        make_policy: Callable[[], Policy],
        workers: int,
        rows: int,
        row_bytes: int,
        max_batch: int | None,
        max_wait_s: float,
    ) -> None:
        self.policy = make_policy()
        functions: dict[str, Function] = {
            "act": self._act,
            "best": partial(self._act, explore=False),
            "values": self._values,
            "initial": self._initial,
        }
        beside = ("values", "initial")
        make = partial(InferenceServer, functions, max_batch=max_batch, max_wait_s=max_wait_s, at_once=beside)
        # One whose place a new one takes may still be there; a request has a recurrent state too.
        super().__init__(make, 2 * workers, rows, 4 * rows * row_bytes)

    def _act(self, columns: Columns, explore: bool = True) -> Columns:
        acted = self.policy.act(under(columns, "obs"), under(columns, "state"), columns.get(MASK), explore)
        return {"action": acted.action, **acted.state, **acted.extra}

    def _values(self, columns: Columns) -> Columns:
        return {"value": self.policy.values(under(columns, "obs"), under(columns, "state"))}

    def _initial(self, columns: Columns) -> Columns:
        return self.policy.initial_state(len(columns["row"]))

    def set_weights(self, weights: Weights) -> Weights:
        """Answer with these weights from the next pass on; what comes back says the same of them, but for the weights."""
        with self.desk.still():
            self.policy.set_weights(weights)
            self.desk.server.version = weights.version
        return replace(weights, flat=NOTHING)

    def get_state(self, restart: bool) -> dict[str, Any]:
        """The policy in full, its random generator with it."""
        with self.desk.still():
            return {"policy": self.policy.get_state(full=True), "exact": True, "env": None}

    def set_state(self, state: dict[str, Any]) -> None:
        with self.desk.still():
            self.policy.set_state(state["policy"])
            self.desk.server.version = self.policy.version

    def processes(self) -> list[dict[str, Any]]:
        """It has none beside its own."""
        return []


class CentralPolicy:
    """What playing needs of a policy, without a network: the server acts, trajectories are finished here. `version` is
    the lowest that was played with since the weights were last told."""

    parameters = 0

    def __init__(self, client: Client, postprocess: Postprocess, config: Any) -> None:
        self._client, self._postprocess, self._config = client, postprocess, config
        self.version, self.progress, self.player = 0, 0.0, (1, 1)
        self._played = False

    def initial_state(self, n: int) -> Columns:
        return self._client.ask({"row": np.arange(n)}, "initial").columns

    def act(self, obs: Columns, state: Columns, mask: np.ndarray | None = None, explore: bool = True) -> Acted:
        asked = {**obs, **state} if mask is None else {**obs, **state, MASK: mask}
        answer = self._client.ask(asked, "act" if explore else "best")
        self.version = min(self.version, answer.version) if self._played else answer.version
        self._played = True
        action, after = answer.columns.pop("action"), under(answer.columns, "state")
        extra = {name: column for name, column in answer.columns.items() if name not in after}
        return Acted(action if action.flags.writeable else action.copy(), after, extra)

    def values(self, obs: Columns, state: Columns) -> np.ndarray:
        return self._client.ask({**obs, **state}, "values").columns["value"]

    def postprocess(self, batch: Batch) -> Batch:
        return self._postprocess(self, batch, self._config.at(self.progress))

    def set_weights(self, weights: Weights) -> None:
        """Take note of which weights the server has from now on."""
        self.version, self.progress = weights.version, weights.progress
        self._played = False

    def get_state(self, full: bool = False) -> dict[str, Any]:
        return {"version": self.version, "progress": self.progress}

    def set_state(self, state: dict[str, Any]) -> None:
        self.version, self.progress = state["version"], state["progress"]
