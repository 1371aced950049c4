"""A trained policy behind a server: what can be asked of it, what a question holds, and what is refused before it is asked.

Kinds are `best` (the likeliest actions), `act` (drawn ones) and, of a policy that has them, `values`. Columns are the
observation's by path, `mask` where the actions can have one, and a recurrent policy's `state/...`, which comes back with
the actions: the server remembers nobody. A question may leave out the mask, and the state where an episode begins.
"""

from __future__ import annotations

import numpy as np

from podium.core import spaces
from podium.core.spaces import Columns, Leaf, Space
from podium.envs.base import MASK
from podium.envs.check import mask_problem
from podium.envs.convert import choices
from podium.envs.numbers import Numbers
from podium.policies.base import Acting, Valuing
from podium.serving.server import Function, InferenceServer, Layout

STATE = "state/"


class Served:
    """The functions and layouts of an `InferenceServer` over a policy, in the env's own numbers.

    `bounds` is the env's action space where the policy acts from -1 to 1 for it.
    """

    def __init__(
        self, policy: Acting, observation_space: Space, action_space: Leaf, bounds: spaces.Box | None = None
    ) -> None:
        self._policy, self._action_space = policy, action_space
        self._numbers = Numbers(observation_space, action_space, bounds)
        self._leaves = spaces.leaves(observation_space, "obs")
        self._begin = {STATE + name: part[0] for name, part in policy.initial_state(1).items()}
        self.spaces = (observation_space.to_json(), (bounds or action_space).to_json())

    def server(self, max_batch: int | None, max_wait_s: float) -> InferenceServer:
        """A server whose actions are this policy's."""
        return InferenceServer(
            self.functions(),
            max_batch=max_batch,
            max_wait_s=max_wait_s,
            layouts={kind: self.layout(kind) for kind in self.functions()},
            defaults={kind: self.defaults(kind) for kind in self.functions()},
            checks=dict.fromkeys(self.functions(), self.problem),
            version=self.version,
        )

    @property
    def version(self) -> int:
        return self._policy.version

    def functions(self) -> dict[str, Function]:
        acting: dict[str, Function] = {
            "best": lambda rows: self._act(rows, False),
            "act": lambda rows: self._act(rows, True),
        }
        if not isinstance(self._policy, Valuing):
            return acting
        values = self._policy.values
        return {**acting, "values": lambda rows: {"value": values(self._numbers.observed(rows), self._state(rows))}}

    def layout(self, kind: str) -> Layout:
        """What the columns of such a question are."""
        observed = {path: (leaf.shape, leaf.dtype) for path, leaf in self._leaves.items()}
        return {**observed, **{name: (row.shape, row.dtype) for name, row in self.defaults(kind).items()}}

    def defaults(self, kind: str) -> Columns:
        """What stands in the place of columns that are left out."""
        masked = kind != "values" and isinstance(self._action_space, spaces.Discrete | spaces.MultiDiscrete)
        return {**({MASK: np.ones(choices(self._action_space), bool)} if masked else {}), **self._begin}

    def takes_the_same(self, other: Served) -> bool:
        """Whether another policy is asked as this one is."""
        same = self.spaces == other.spaces
        return same and all(self.layout(kind) == other.layout(kind) for kind in self.functions())

    def problem(self, rows: Columns) -> str | None:
        """What is wrong with the numbers of a question, which would spoil the pass for those beside it."""
        observed = self._numbers.observed(rows)
        for path, leaf in self._leaves.items():
            if not isinstance(leaf, spaces.Box) and leaf.outside(observed[path]).any():
                return f"{path} holds values outside its {leaf}"
        wrong = mask_problem(rows[MASK], self._action_space) if MASK in rows else None
        return f"a mask {wrong}" if wrong else None

    def _act(self, rows: Columns, explore: bool) -> Columns:
        mask = rows.get(MASK)
        if mask is not None and mask.all():
            mask = None
        acted = self._policy.act(self._numbers.observed(rows), self._state(rows), mask, explore)
        after = {STATE + name: part for name, part in acted.state.items()}
        return {"action": self._numbers.action(acted.action), **after}

    def _state(self, rows: Columns) -> Columns:
        return {name.removeprefix(STATE): rows[name] for name in self._begin}
