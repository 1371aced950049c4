"""The bottleneck meter: what an iteration's time went to, with every share worked out by hand."""

from __future__ import annotations

import pytest

from podium.evaluation.sample import Report
from podium.optimizers.meter import STAGES, limit, shares


def test_stages_in_turn_add_up_to_the_iteration() -> None:
    """Two samplers, of 8 s: envs 4 / 2, acting (1 + 1) / 2, learning 2 + 0.5. The controller waited 4 s for samplers of
    which the slowest worked 3.5, and 3 s for 2.5 of learning: 1 s of transport. What is left is 1.5 s."""
    timers = {"env": 4.0, "inference": 1.0, "postprocess": 1.0, "learn": 2.0, "concat": 0.5}
    report = Report(timers={**timers, "sampling": 4.0, "learning": 3.0}, samplers=2, learners=1, slowest_s=3.5)
    found = shares(report, 8.0)
    assert found == pytest.approx(
        {"env": 0.25, "inference": 0.125, "learning": 0.3125, "transport": 0.125, "waiting": 0.1875}
    )
    assert tuple(found) == STAGES and sum(found.values()) == pytest.approx(1.0)
    assert limit(found) == "learning"


def test_stages_side_by_side_may_add_up_to_more() -> None:
    """Samplers that play 5 of 6 s beside a learner that learns 3 of them: 1 s nobody but the controller did anything."""
    timers = {"env": 8.0, "inference": 1.0, "postprocess": 1.0, "learn": 3.0, "sampling": 2.0, "learning": 4.0}
    report = Report(timers=timers, samplers=2, learners=1, slowest_s=5.5, overlapping=True)
    found = shares(report, 6.0)
    assert found == pytest.approx(
        {"env": 4 / 6, "inference": 1 / 6, "learning": 0.5, "transport": 0.0, "waiting": 1 / 6}
    )
    assert limit(found) == "env"


def test_gradients_that_workers_compute_are_learning() -> None:
    """Two workers with 6 s of gradients between them, and 0.5 s of applying them. The workers have 1 + 1 + 3 s each to do:
    they are never idle."""
    timers = {"env": 2.0, "inference": 2.0, "gradients": 6.0, "learn": 0.5}
    found = shares(Report(timers=timers, samplers=2, learners=1, slowest_s=5.0, overlapping=True), 5.0)
    assert found == pytest.approx({"env": 0.2, "inference": 0.2, "learning": 0.7, "transport": 0.0, "waiting": 0.0})
    assert limit(found) == "learning"


def test_members_that_play_and_learn_in_one_call() -> None:
    """Two of them in 8 s: envs 4 / 2, learning 6 / 2. The controller waited 7 s for 3 of the slowest's playing and 3 of
    learning: 1 s of transport. 2 s are left, with the second that the quicker one waited for the other."""
    timers = {"env": 4.0, "learn": 6.0, "learning": 7.0}
    found = shares(Report(timers=timers, samplers=2, learners=2, slowest_s=3.0), 8.0)
    assert found == pytest.approx(
        {"env": 0.25, "inference": 0.0, "learning": 0.375, "transport": 0.125, "waiting": 0.25}
    )


def test_keeping_and_drawing_from_a_replay_is_learning() -> None:
    """1 + 1.5 + 2 of 10 s; the controller waited 5 s for it."""
    timers = {"env": 2.0, "sampling": 2.0, "insert": 1.0, "draw": 1.5, "learn": 2.0, "learning": 5.0}
    found = shares(Report(timers=timers, samplers=1, learners=1, slowest_s=2.0), 10.0)
    assert found["learning"] == pytest.approx(0.45) and found["transport"] == pytest.approx(0.05)


def test_transport_is_named_where_it_takes_the_most() -> None:
    timers = {"env": 1.0, "learn": 1.0, "sampling": 5.0, "learning": 3.0}
    found = shares(Report(timers=timers, samplers=1, learners=1, slowest_s=1.0), 8.0)
    assert found["transport"] == pytest.approx(6 / 8) and limit(found) == "transport"


def test_shares_stay_between_nothing_and_everything() -> None:
    """Clocks of several machines and processes need not agree to the last digit."""
    assert shares(Report(), 2.0) == {"env": 0, "inference": 0, "learning": 0, "transport": 0, "waiting": 1}
    timers = {"env": 3.0, "learn": 2.0, "sampling": 1.0, "learning": 1.0}
    found = shares(Report(timers=timers, samplers=1, learners=1, slowest_s=3.0), 2.0)
    assert found == {"env": 1, "inference": 0, "learning": 1, "transport": 0, "waiting": 0}
