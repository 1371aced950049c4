"""Metrics merge by their declared rules, timers add up by stage, the window keeps the last episodes."""

from __future__ import annotations

import json
import math
import pickle
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from podium.core.metrics import EpisodeWindow, Metrics, Timers


def recorded(loss: float, weight: float) -> Metrics:
    m = Metrics()
    m.mean("loss", loss, weight)
    m.sum("steps", 10)
    m.max("longest", loss)
    m.min("shortest", loss)
    m.last("lr", loss)
    return m


def test_each_rule_by_hand() -> None:
    merged = Metrics.merge([recorded(1.0, 1), recorded(4.0, 2)])
    # mean: (1 * 1 + 2 * 4) / 3, where a mean of the two means would be 2.5
    assert merged.values() == {"loss": 3.0, "steps": 20.0, "longest": 4.0, "shortest": 1.0, "lr": 4.0}


def test_recording_again_merges_as_two_parts_would() -> None:
    m = recorded(1.0, 1)
    m.update(recorded(4.0, 2))
    one = Metrics()
    for loss, weight in ((1.0, 1), (4.0, 2)):
        one.update(recorded(loss, weight))
    assert m.values() == one.values() == Metrics.merge([recorded(1.0, 1), recorded(4.0, 2)]).values()


@given(st.lists(st.tuples(st.integers(-100, 100), st.integers(0, 8)), min_size=1), st.integers(0, 10))
def test_means_do_not_depend_on_who_recorded_what(rows: list[tuple[int, int]], cut: int) -> None:
    parts = [Metrics(), Metrics()]
    for i, (value, weight) in enumerate(rows):
        parts[i >= cut].mean("x", value, weight)
    total = sum(weight for _, weight in rows)
    expected = {"x": sum(value * weight for value, weight in rows) / total} if total else {}
    assert Metrics.merge(parts).values() == expected


def test_two_rules_under_one_name_are_an_error() -> None:
    m = recorded(1.0, 1)
    with pytest.raises(ValueError, match="'loss' is recorded as sum, but its rule is mean"):
        m.sum("loss", 1.0)
    other = Metrics()
    other.last("steps", 1)
    with pytest.raises(ValueError, match="'steps' is recorded as last, but its rule is sum"):
        m.update(other)
    with pytest.raises(ValueError, match="'loss' has weight -1"):
        m.mean("loss", 1.0, weight=-1)


def test_merging_leaves_the_parts_alone() -> None:
    one, two = recorded(1.0, 1), recorded(4.0, 2)
    Metrics.merge([one, two])
    assert one.values() == recorded(1.0, 1).values() and two.values() == recorded(4.0, 2).values()


def test_nothing_yet_and_not_a_number() -> None:
    m = Metrics()
    m.mean("over nothing", float("nan"), weight=0)
    m.mean("none", None)
    m.last("no return yet", None)
    assert m.values() == {}
    m.max("gradient", float("nan"))
    m.max("gradient", 3.0)
    m.mean("loss", float("nan"))
    m.last("lr", float("nan"))
    m.last("lr", 0.1)
    m.last("lr", None)
    values = m.values()
    assert math.isnan(values["gradient"]) and math.isnan(values["loss"]) and values["lr"] == 0.1


def test_values_are_plain_and_metrics_travel() -> None:
    m = recorded(1.5, 1)
    m.mean("loss", np.float32(2.5))  # type: ignore[arg-type]
    assert all(type(value) is float for value in m.values().values())
    assert json.loads(json.dumps(m.values())) == m.values()
    assert pickle.loads(pickle.dumps(m)).values() == m.values()


def test_timers_add_up_by_stage_and_begin_anew() -> None:
    timers = Timers()
    timers.add("env", 1.0)
    timers.add("env", 0.5)
    with timers.stage("learn"):
        time.sleep(0.02)
    with pytest.raises(KeyError), timers.stage("learn"):
        time.sleep(0.02)
        raise KeyError
    taken = timers.take()
    assert taken["env"] == 1.5 and 0.04 <= taken["learn"] < 2
    assert timers.take() == {}
    timers.add("env", 2.0)
    assert timers.take() == {"env": 2.0} and taken["env"] == 1.5


def test_the_window_holds_the_last_episodes() -> None:
    window = EpisodeWindow(size=3)
    assert (window.mean, window.length_mean, window.full, window.episodes) == (None, None, False, 0)
    window.add(np.array([1.0, 2.0]), np.array([10, 20]))
    assert (window.mean, window.length_mean, window.full, window.episodes) == (1.5, 15.0, False, 2)
    window.add([6.0, 10.0], [30, 40])
    # the last three: (2 + 6 + 10) / 3 and (20 + 30 + 40) / 3
    assert (window.mean, window.length_mean, window.full, window.episodes) == (6.0, 30.0, True, 4)
    with pytest.raises(ValueError, match="zip"):
        window.add([1.0], [1, 2])


def test_the_window_goes_on_from_its_state() -> None:
    window, other = EpisodeWindow(size=3), EpisodeWindow(size=3)
    window.add([0.1, 0.2, 0.3, 0.4], [1, 2, 3, 4])
    other.set_state(json.loads(json.dumps(window.get_state())))
    for each in (window, other):
        each.add([0.7], [9])
    assert (other.mean, other.length_mean, other.episodes) == (window.mean, window.length_mean, 5)
    smaller = EpisodeWindow(size=2)
    smaller.set_state(window.get_state())
    assert smaller.length_mean == 6.5 and smaller.episodes == 5
