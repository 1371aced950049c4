"""What whoever holds a policy can do with it: send it and take it, evaluate it, and say what processes it has."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

from podium.core import seeding
from podium.core.errors import UsageError
from podium.core.metrics import Timers
from podium.envs.base import VectorEnv
from podium.envs.make import EnvSpec, make
from podium.evaluation.collector import Paced
from podium.evaluation.play import Played, play
from podium.policies.base import Acting, Weights

EVAL_ENVS = 16


class Holder:
    """A policy, and the envs that it plays in where it plays."""

    def __init__(
        self, make_policy: Callable[[], Acting], make_env: Callable[[], VectorEnv | Paced] | None, seed: int
    ) -> None:
        self.policy = make_policy()
        self.seed = seed
        self._timers = Timers()
        self._env = make_env() if make_env is not None else None
        self._eval_env: VectorEnv | None = None

    def get_weights(self, progress: float) -> Weights:
        return replace(self.policy.get_weights(), progress=progress)

    def set_weights(self, weights: Weights) -> None:
        self.policy.set_weights(weights)

    def policy_state(self, full: bool = False) -> dict[str, Any]:
        """What acting needs; with `full` also what learning on needs."""
        return self.policy.get_state(full)

    def start_from(self, policy: dict[str, Any]) -> None:
        """Take over another run's policy as far as acting goes; its optimizer and counts stay behind."""
        own = self.policy.get_state()
        if missing := [name for name in own if name not in policy]:
            raise UsageError(
                f"the other run's policy has no {missing[0]!r}: it is of another kind of "
                "algorithm, whose weights can't be taken over"
            )
        self.policy.set_state({**{name: policy[name] for name in own}, "version": 0, "progress": 0.0})

    def evaluate(self, env: EnvSpec, episodes: int, seed: int) -> Played:
        """Whole episodes without exploration, in envs of their own that no training step touches."""
        if self._eval_env is None:
            self._eval_env = make(env, min(episodes, EVAL_ENVS))
        n = self._eval_env.n
        return play(self._eval_env, self.policy, episodes, [seeding.integer(seed, i) for i in range(n)])

    def get_replay(self, known: Collection[str]) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """The replay's state and its pieces but for those that are known; this one has none."""
        return None

    def processes(self) -> list[dict[str, Any]]:
        """The processes that its envs run in, where they have any of their own."""
        pids = self._env.processes() if self._env is not None else []
        return [{"role": "env", "index": index, "pid": pid} for index, pid in enumerate(pids)]

    def close(self) -> None:
        for env in (self._env, self._eval_env):
            if env is not None:
                env.close()
