"""What a search looks for: which way is better, what a run on its way is worth, and figures that nobody reports."""

from __future__ import annotations

import pytest

from podium import algorithms
from podium.core.errors import PodiumError, UsageError
from podium.tuning.goal import Goal, UnknownMetric
from podium.tuning.trial import mean_figures

PLAIN = algorithms.get("ppo").configure(None, {})
STOPPING = PLAIN.replace(stop_return=475)
FIGURES = {"env_steps": 800, "updates": 2, "return_mean": 30.0, "policy_loss": 0.5, "limited_by": "env"}


def test_less_of_what_is_spent_and_of_losses_is_better() -> None:
    assert Goal.of("return_mean", None, PLAIN).direction == "maximize"
    assert Goal.of("value_loss", None, PLAIN).direction == "minimize"
    assert Goal.of("env_steps", None, STOPPING).direction == "minimize"
    assert Goal.of("kl", "minimize", PLAIN).better(1.0, 2.0) and not Goal.of("return_mean", None, PLAIN).better(
        1.0, 2.0
    )


@pytest.mark.parametrize(
    ("metric", "direction", "config", "said"),
    [
        ("env_steps", None, PLAIN, "add --stop-return R"),
        ("env_steps", "maximize", STOPPING, "--direction maximize does not fit --metric env_steps"),
        ("eval_return_mean", None, PLAIN, "add --eval-every N"),
        ("return_mean", "up", PLAIN, "--direction is 'up', expected maximize or minimize"),
    ],
)
def test_what_can_be_known_before_is_refused(metric: str, direction: str | None, config: object, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Goal.of(metric, direction, config)  # type: ignore[arg-type]


def test_on_the_way_to_a_return_less_of_it_is_worse() -> None:
    soon = Goal.of("env_steps", None, STOPPING)
    assert soon.on_the_way(FIGURES) == -30.0 and soon.on_the_way({**FIGURES, "eval_return_mean": 40.0}) == -40.0
    assert soon.on_the_way({"env_steps": 5}) is None and soon.value(FIGURES) == 800
    assert Goal.of("return_mean", None, PLAIN).on_the_way(FIGURES) == 30.0


def test_a_figure_that_nobody_reports_is_named_with_those_that_are() -> None:
    goal = Goal.of("retrun_mean", None, PLAIN)
    goal.check({**FIGURES, "updates": 0})  # before it learns there may be more to come
    with pytest.raises(UnknownMetric, match="'retrun_mean'; did you mean 'return_mean'. known: env_steps, policy_loss"):
        goal.check(FIGURES)
    with pytest.raises(UnknownMetric):
        Goal.of("limited_by", None, PLAIN).value(FIGURES)


def test_a_run_without_an_episode_or_a_number_has_no_value() -> None:
    goal = Goal.of("return_mean", None, PLAIN)
    with pytest.raises(PodiumError, match="there is no return_mean yet: too short were 800 env steps"):
        goal.value({"env_steps": 800, "return_mean": None})
    with pytest.raises(PodiumError, match="return_mean is not a number"):
        goal.value({"return_mean": float("nan")})


def test_several_seeds_count_by_their_mean() -> None:
    found = mean_figures(
        [
            {"a": 1.0, "b": 2, "w": "x", "d": 1},
            {"a": 3.0, "b": 4, "w": "y", "c": 1, "d": 1},
            {"a": 5.0, "b": 0, "w": "z", "d": None},
        ]
    )
    assert found == {"a": 3.0, "b": 2.0, "w": "x", "d": None}
