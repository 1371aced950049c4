"""Population-based training: who takes over from whom, that it follows a best learning rate that drifts, and faults."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from podium.engine.base import Engine
from podium.engine.local import LocalEngine
from podium.optimizers.population import Descent, Population
from podium.tuning.space import Dimension
from tests.optimizers.drifting import FALLEN, INTERVAL, INTERVALS, STEPS, Drifting, Failing

RATE = Dimension("lr", "lr=log:1e-3:1", 1e-3, 1.0, log=True)
MEMBERS = 8
Explore = Callable[[Mapping[str, Any], np.random.Generator], dict[str, Any]]


def near(params: Mapping[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {"lr": RATE.explore(params["lr"], rng)}


def population(engine: Engine, seed: int, explore: Explore = near, score: Any = float, **how: Any) -> Population:
    drawn = [{"lr": 10.0 ** (-3 + 3 * i / (MEMBERS - 1))} for i in range(MEMBERS)]
    how = {"at_once": MEMBERS, "seed": seed, **how}
    return Population(engine, lambda _, params: engine.spawn(Drifting, params, seed), drawn, explore, score, **how)


def total(seed: int, **how: Any) -> float:
    """The summed loss of the line of descent that is best at the end."""
    engine = LocalEngine()
    trained = population(engine, seed, **how)
    for interval in range(1, INTERVALS + 1):
        trained.advance(interval * INTERVAL)
        if interval < INTERVALS:
            trained.evolve()
    found = engine.get(trained.member(trained.best()).call("get_total"))
    trained.close()
    return float(found)


def best_fixed(seed: int) -> float:
    """The least that any rate that stays comes to, of 121 over all that members may have."""
    rates = 10.0 ** np.linspace(-3, 0, 121)
    totals = []
    for lr in rates:
        one = Drifting({"lr": float(lr)}, seed)
        one.advance(STEPS)
        totals.append(one.total)
    return min(totals)


@pytest.fixture(scope="module")
def fixed() -> dict[int, float]:
    return {seed: best_fixed(seed) for seed in (1, 2, 3)}


BOUND = 0.4
"""Of the best fixed rate's loss; what follows the drift comes to less, and nothing else does."""


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_it_beats_every_rate_that_stays_where_the_best_one_drifts(seed: int, fixed: dict[int, float]) -> None:
    assert total(seed) < BOUND * fixed[seed]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_without_exploring_or_with_a_blind_choice_it_does_not(seed: int, fixed: dict[int, float]) -> None:
    assert total(seed, explore=lambda params, rng: dict(params)) > BOUND * fixed[seed]
    assert total(seed, score=lambda _: 0.0) > BOUND * fixed[seed]


class Scored:
    """A member that is as good as it is told to be."""

    def __init__(self, params: dict[str, Any], index: int) -> None:
        self.params, self.weights = params, np.full(3, index, np.float32)

    def advance(self, steps: int) -> float:
        return float(self.params["score"])

    def get_state(self) -> np.ndarray:
        return self.weights.copy()

    def set_state(self, state: np.ndarray, params: dict[str, Any]) -> None:
        self.weights, self.params = state, params

    def close(self) -> None:
        """There is nothing to release."""


class Watching(LocalEngine):
    """Refuses to bring a state to the controller."""

    def get(self, refs: Any, timeout: float | None = None) -> Any:
        found = super().get(refs, timeout)
        assert not isinstance(found, np.ndarray), "a state was fetched"
        return found


@pytest.mark.parametrize(
    ("members", "worst", "best"), [(8, {0, 1}, {6, 7}), (4, {0}, {3}), (2, {0}, {1}), (3, {0}, {2})]
)
def test_the_worst_quarter_goes_on_from_the_best_one_by_reference(
    members: int, worst: set[int], best: set[int]
) -> None:
    engine = Watching()
    spawned: list[Any] = []

    def spawn(index: int, params: dict[str, Any]) -> Any:
        spawned.append(engine.spawn(Scored, params, index))
        return spawned[-1]

    params = [{"score": 10 * index} for index in range(members)]
    trained = Population(
        engine, spawn, params, lambda one, rng: {"score": one["score"] + 1}, float, seed=0, at_once=members
    )
    trained.advance(1)
    assert trained.scores == [10.0 * index for index in range(members)] and trained.best() == members - 1
    descents = trained.evolve()
    assert {one.member for one in descents} == worst and {one.parent for one in descents} <= best
    for one in descents:
        assert (one.score, one.parent_score) == (10.0 * one.member, 10.0 * one.parent)
        assert one.before == {"score": 10 * one.member} and one.after == {"score": 10 * one.parent + 1}
        member = spawned[one.member]._target
        assert (member.weights == one.parent).all() and member.params == one.after, (
            "the new settings win over the state's"
        )
    assert trained.params[members - 1] == {"score": 10 * (members - 1)}, "whoever is good stays as it is"
    trained.advance(2)
    assert {trained.scores[one.member] for one in descents} == {one.after["score"] for one in descents}


def descents(engine: Engine, seed: int, intervals: int, at_once: int = MEMBERS) -> list[Descent]:
    trained, found = population(engine, seed, at_once=at_once), []
    for interval in range(1, intervals + 1):
        trained.advance(interval * INTERVAL)
        found += trained.evolve()
    trained.close()
    return found


def test_the_same_seed_descends_the_same_way() -> None:
    once = descents(LocalEngine(), 5, 10)
    assert len(once) >= 10 and once == descents(LocalEngine(strict=True), 5, 10, at_once=3)
    assert once != descents(LocalEngine(), 6, 10)


def test_it_goes_on_from_a_state_as_if_it_had_not_ended() -> None:
    whole = population(LocalEngine(strict=True), 4)
    for interval in range(1, 5):
        whole.advance(interval * INTERVAL)
        whole.evolve()
    state = whole.get_state()
    again = population(LocalEngine(strict=True), 4)
    again.set_state(state)
    for trained in (whole, again):
        trained.advance(5 * INTERVAL)
    assert whole.scores == again.scores and whole.params == again.params and whole.evolve() == again.evolve()


def failing(engine: Engine, fall: set[int], **how: Any) -> Population:
    FALLEN.clear()
    drawn = [{"lr": 0.5}] * 4

    def spawn(index: int, params: dict[str, Any]) -> Any:
        return engine.spawn(Failing, params, 1, index, 2 if index in fall else INTERVALS + 1)

    return Population(engine, spawn, drawn, near, float, seed=1, at_once=2, **how)


def test_a_member_that_fails_goes_on_from_a_better_one() -> None:
    trained = failing(LocalEngine(), {1}, max_failures=1)
    trained.advance(INTERVAL)
    trained.evolve()
    assert trained.advance(2 * INTERVAL)[1] is None
    assert [(index, str(error)) for index, error in trained.failures] == [(1, "member 1 fell")]
    assert 1 in {one.member for one in trained.evolve()}
    assert None not in trained.advance(3 * INTERVAL)


@pytest.mark.parametrize(("fall", "allowed"), [({1, 2}, 1), ({0, 1, 2, 3}, 9)])
def test_more_failures_than_allowed_or_of_everyone_end_it(fall: set[int], allowed: int) -> None:
    trained = failing(LocalEngine(), fall, max_failures=allowed)
    trained.advance(INTERVAL)
    with pytest.raises(ZeroDivisionError, match="fell"):
        trained.advance(2 * INTERVAL)
