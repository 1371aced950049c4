"""Population-based training (Jaderberg et al., 2017): members train side by side; now and then the worst go on from the best
ones' states with settings near theirs. An optimizer of optimizers, which knows a member by five calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from podium.core import seeding
from podium.engine.base import Engine, Handle, Ref

SHARE = 0.25
"""The part of the members that gives up, and the part that they go on from."""

Params = dict[str, Any]
Spawn = Callable[[int, Params], Handle]
Explore = Callable[[Mapping[str, Any], np.random.Generator], Params]
Score = Callable[[Any], float]
"""From what a member's `advance` returned to how good that is, more being better; -inf is worse than any."""


@dataclass(frozen=True)
class Descent:
    """A member that went on from another's state: with which parameters it was left, and with which it went on. Where a
    member began, there is nothing before and no parent."""

    generation: int
    member: int
    parent: int | None
    score: float | None
    parent_score: float | None
    before: Params | None
    after: Params


class Population:
    """A member answers `advance(env_steps)`, `get_state()`, `set_state(state, params)` and `close()`. Its state goes from
    one to another by reference; the controller sees scores.

    All members reach the same env steps before any is compared, so that the same seed descends the same way wherever they
    run. A member that fails is spawned anew and goes on from a better one; more than `max_failures` of that are the first
    one's error. At most `at_once` train at a time.
    """

    def __init__(
        self,
        engine: Engine,
        spawn: Spawn,
        params: Sequence[Params],
        explore: Explore,
        score: Score,
        *,
        seed: int,
        at_once: int,
        max_failures: int = 0,
    ) -> None:
        self.engine, self.at_once, self.max_failures, self.seed = engine, at_once, max_failures, seed
        self.params = [dict(one) for one in params]
        self.generation = 0
        self.scores = [float("-inf")] * len(params)
        self.failures: list[tuple[int, Exception]] = []
        self._spawn, self._explore, self._score = spawn, explore, score
        self._members: list[Handle] = []
        try:
            for index, one in enumerate(self.params):
                self._members.append(spawn(index, one))
        except BaseException:
            self.close()
            raise

    def advance(self, env_steps: int) -> list[Any | None]:
        """Let every member reach so many env steps; what each came to, or None where it failed."""
        found: list[Any | None] = [None] * len(self._members)
        waiting, running = list(range(len(self._members))), dict[Ref, int]()
        while waiting or running:
            while waiting and len(running) < self.at_once:
                index = waiting.pop(0)
                running[self._members[index].call("advance", env_steps)] = index
            (ref, *_), _ = self.engine.wait(list(running), 1)
            index = running.pop(ref)
            try:
                found[index] = self.engine.get(ref)
                self.scores[index] = self._score(found[index])
            except Exception as error:
                self._failed(index, error)
        if all(score == float("-inf") for score in self.scores):
            raise self.failures[-1][1] if self.failures else ValueError("no member has a score")
        self.generation += 1
        return found

    def _failed(self, index: int, error: Exception) -> None:
        self.failures.append((index, error))
        self.scores[index] = float("-inf")
        if len(self.failures) > self.max_failures:
            raise self.failures[0][1]
        self.engine.kill(self._members[index])
        self._members[index] = self._spawn(index, self.params[index])

    def evolve(self) -> list[Descent]:
        """The worst quarter, and whoever has failed, takes over the states of members of the best quarter, and explores."""
        order = sorted(range(len(self.scores)), key=lambda index: (-self.scores[index], index))
        count = max(1, int(SHARE * len(order))) if len(order) > 1 else 0
        best = [index for index in order[:count] if self.scores[index] > float("-inf")]
        failed = [index for index in order if self.scores[index] == float("-inf")]
        worst = [index for index in order if index in failed or index in order[len(order) - count :]]
        rng = seeding.generator(self.seed, "population", self.generation)
        descents, calls = [], []
        for member in sorted(set(worst) - set(best)) if best else []:
            parent = best[int(rng.integers(len(best)))]
            before, after = self.params[member], self._explore(self.params[parent], rng)
            scores = self.scores[member], self.scores[parent]
            descents.append(Descent(self.generation, member, parent, *scores, before, after))
            calls.append(self._members[member].call("set_state", self._members[parent].call("get_state"), after))
            self.params[member], self.scores[member] = after, self.scores[parent]
        self.engine.get(calls)
        return descents

    def member(self, index: int) -> Handle:
        return self._members[index]

    def best(self) -> int:
        """The member with the best score, the first of equals."""
        return max(range(len(self.scores)), key=lambda index: (self.scores[index], -index))

    def get_state(self) -> dict[str, Any]:
        """Everything that going on depends on, fetched from the members."""
        members = self.engine.get([member.call("get_state") for member in self._members])
        return {
            "generation": self.generation,
            "params": [dict(one) for one in self.params],
            "scores": list(self.scores),
            "members": members,
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        self.generation, self.scores = state["generation"], list(state["scores"])
        self.params = [dict(one) for one in state["params"]]
        calls = zip(self._members, state["members"], self.params, strict=True)
        self.engine.get([member.call("set_state", saved, params) for member, saved, params in calls])

    def close(self) -> None:
        members, self._members = self._members, []
        for member in members:
            self.engine.kill(member)
