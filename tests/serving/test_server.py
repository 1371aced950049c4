"""The inference server, on a clock that the tests set: who shares a pass, when it begins, what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from podium.core.errors import UsageError
from podium.core.spaces import Columns
from podium.serving.server import BadRequest, InferenceServer, Pass, Reply, Request
from podium.serving.stats import Histogram

LAYOUT = {"obs": ((2,), np.dtype(np.float32))}


def twice(columns: Columns) -> Columns:
    return {"action": columns["obs"] * 2}


class Counting:
    """Doubles rows and remembers how many came at once."""

    def __init__(self) -> None:
        self.passes: list[int] = []

    def __call__(self, columns: Columns) -> Columns:
        self.passes.append(len(columns["obs"]))
        return twice(columns)


def asks(tag: str, *values: float, kind: str = "act", at: float = 0.0) -> Request:
    rows = np.array([[value, -value] for value in values], np.float32)
    return Request({"obs": rows}, len(rows), kind, tag, at)


def tags(replies: list[Reply]) -> list[Any]:
    return [reply.tag for reply in replies]


def test_a_pass_begins_with_the_last_of_its_rows() -> None:
    act = Counting()
    server = InferenceServer({"act": act}, max_batch=3, max_wait_s=None)
    server.submit(asks("a", 1))
    server.submit(asks("b", 2))
    assert server.poll(1e9) == [] and server.missing() == 1 and server.deadline() is None
    server.submit(asks("c", 3))
    assert server.missing() == 0
    replies = server.poll(1e9)
    assert act.passes == [3] and tags(replies) == ["a", "b", "c"] and server.waiting == 0
    assert [reply.columns["action"].tolist() for reply in replies] == [[[2, -2]], [[4, -4]], [[6, -6]]]


def test_a_pass_begins_when_the_first_has_waited_long_enough() -> None:
    act = Counting()
    server = InferenceServer({"act": act}, max_wait_s=0.5)
    server.submit(asks("a", 1, at=10.0))
    server.submit(asks("b", 2, at=10.4))
    assert server.deadline() == 10.5 and server.poll(10.49) == []
    assert tags(server.poll(10.5)) == ["a", "b"] and act.passes == [2]
    assert server.deadline() is None


def test_count_or_deadline_whichever_comes_first() -> None:
    act = Counting()
    server = InferenceServer({"act": act}, max_batch=2, max_wait_s=0.5)
    for i, tag in enumerate("abcde"):
        server.submit(asks(tag, i, at=10.0 + i / 10))
    assert tags(server.poll(10.41)) == ["a", "b", "c", "d"] and act.passes == [2, 2]
    assert server.deadline() == 10.9 and server.poll(10.89) == []
    assert tags(server.poll(10.9)) == ["e"] and act.passes == [2, 2, 1]


def test_without_waiting_a_pass_takes_what_is_there_up_to_its_size() -> None:
    act = Counting()
    server = InferenceServer({"act": act}, max_batch=4)
    for tag in "abcdef":
        server.submit(asks(tag, 1))
    assert len(server.poll(0.0)) == 6 and act.passes == [4, 2]


def test_requests_of_several_rows_stay_whole_and_one_alone_may_be_larger() -> None:
    act = Counting()
    server = InferenceServer({"act": act}, max_batch=4)
    for tag, rows in (("a", 3), ("b", 2), ("c", 9), ("d", 1)):
        server.submit(asks(tag, *range(rows)))
    replies = server.poll(0.0)
    assert act.passes == [3, 2, 9, 1] and tags(replies) == ["a", "b", "c", "d"]
    assert replies[2].columns["action"][:, 0].tolist() == [0, 2, 4, 6, 8, 10, 12, 14, 16]


def test_kinds_do_not_mix() -> None:
    act, values = Counting(), Counting()
    server = InferenceServer({"act": act, "values": values}, max_batch=2, max_wait_s=None)
    for tag, kind in (("a", "act"), ("b", "values"), ("c", "values"), ("d", "act")):
        server.submit(asks(tag, 1, kind=kind))
        assert server.waiting == {"a": 1, "b": 2, "c": 3, "d": 4}[tag]
    assert sorted(tags(server.poll(0.0))) == ["a", "b", "c", "d"] and (act.passes, values.passes) == ([2], [2])


BAD: list[tuple[Request, str]] = [
    (asks("x", 1, kind="atc"), "nothing answers 'atc'; did you mean 'act'? known: act"),
    (Request({"obs": np.zeros((0, 2), np.float32)}, 0, "act", "x"), "0 rows, expected at least 1"),
    (Request({"obs": np.zeros((1, 3), np.float32)}, 1, "act", "x"), "obs has shape [1, 3], expected [1, 2]"),
    (Request({"obs": np.zeros((1, 2), np.float32)}, 2, "act", "x"), "obs has shape [1, 2], expected [2, 2]"),
    (Request({"obs": np.zeros((1, 2))}, 1, "act", "x"), "obs is float64, expected float32"),
    (asks("x", float("nan")), "obs holds NaN or infinity"),
    (asks("x", float("inf")), "obs holds NaN or infinity"),
    (Request({"seen": np.zeros((1, 2), np.float32)}, 1, "act", "x"), "no column 'obs'; there are seen"),
    (Request({**asks("x", 1).columns, "y": np.zeros(1)}, 1, "act", "x"), "unknown columns: y"),
]


@pytest.mark.parametrize(("bad", "line"), BAD, ids=[line for _, line in BAD])
def test_what_is_wrong_is_refused_alone(bad: Request, line: str) -> None:
    act = Counting()
    server = InferenceServer({"act": act}, max_batch=2, max_wait_s=None, layouts={"act": LAYOUT})
    server.submit(asks("a", 1))
    server.submit(bad)
    (refused,) = server.poll(0.0)
    assert refused.tag == "x" and isinstance(refused.error, BadRequest) and str(refused.error) == line
    server.submit(asks("b", 2))
    assert tags(server.poll(0.0)) == ["a", "b"] and act.passes == [2]
    assert server.stats.refused == 1 and server.stats.requests == 2


def test_what_a_check_finds_is_refused_and_what_may_be_left_out_is_filled_in() -> None:
    seen: list[Columns] = []

    def act(columns: Columns) -> Columns:
        seen.append(columns)
        return twice(columns)

    server = InferenceServer(
        {"act": act},
        layouts={"act": {**LAYOUT, "mask": ((3,), np.dtype(bool))}},
        defaults={"act": {"mask": np.ones(3, bool)}},
        checks={"act": lambda columns: None if columns["mask"].any(axis=1).all() else "nothing is legal"},
    )
    given = asks("given", 1)
    given.columns["mask"] = np.array([[False, True, False]])
    none = asks("none", 1)
    none.columns["mask"] = np.zeros((1, 3), bool)
    for request in (asks("without", 1, 2), given, none):
        server.submit(request)
    replies = server.poll(0.0)
    assert {reply.tag: str(reply.error) for reply in replies if reply.error} == {"none": "nothing is legal"}
    assert [columns["mask"].tolist() for columns in seen] == [[[True] * 3, [True] * 3, [False, True, False]]]


def test_other_weights_answer_from_the_next_pass_on() -> None:
    server = InferenceServer({"act": twice}, max_batch=2, max_wait_s=None, version=4)
    for tag in "abc":
        server.submit(asks(tag, 1))
    first = server.poll(0.0)
    server.swap({"act": lambda columns: {"action": columns["obs"] * 3}}, version=5)
    server.submit(asks("d", 1))
    second = server.poll(0.0)
    assert [(reply.tag, reply.version, reply.columns["action"][0, 0]) for reply in first + second] == [
        ("a", 4, 2.0),
        ("b", 4, 2.0),
        ("c", 5, 3.0),
        ("d", 5, 3.0),
    ], "what waited when they came is answered by them"
    with pytest.raises(UsageError, match="the functions are \\['other'\\], expected \\['act'\\]"):
        server.swap({"other": twice}, version=6)


def test_a_caller_that_is_gone_is_forgotten() -> None:
    act = Counting()
    server = InferenceServer({"act": act}, max_batch=3, max_wait_s=0.5)
    server.submit(asks("a", 1, 2, at=1.0))
    server.submit(asks("b", 3, at=2.0))
    server.forget("a")
    assert server.missing() == 2 and server.waiting == 1 and server.deadline() == 2.5
    assert tags(server.poll(2.5)) == ["b"] and act.passes == [1]
    server.forget("b")


def test_what_a_function_raises_reaches_each_caller_and_the_next_pass_goes_on() -> None:
    def moody(columns: Columns) -> Columns:
        if (columns["obs"] > 8).any():
            raise ZeroDivisionError("too much")
        return twice(columns)

    server = InferenceServer({"act": moody}, max_batch=2)
    for tag, value in (("a", 1), ("b", 9), ("c", 2)):
        server.submit(asks(tag, value))
    errors = {reply.tag: reply.error for reply in server.poll(0.0)}
    assert isinstance(errors["a"], ZeroDivisionError) and errors["b"] is errors["a"] and errors["c"] is None
    assert (server.stats.failed, server.stats.requests) == (2, 1)


def test_stats_count_what_was_done() -> None:
    watched: list[Pass] = []
    times = iter([10.25, 20.5])
    server = InferenceServer({"act": twice}, max_batch=4, max_wait_s=0.5, observe=watched.append)
    server.submit(asks("a", 1, 2, at=9.75))
    server.submit(asks("b", 3, 4, at=10.0))
    server.submit(asks("c", 5, at=19.5))
    assert len(server.poll(20.0, lambda: next(times))) == 3
    assert watched == [Pass(2, 4, 9.75, 10.25), Pass(1, 1, 19.5, 20.5)]
    stats = server.stats.to_json()
    assert {name: stats[name] for name in ("requests", "rows", "passes", "refused", "failed", "deepest_queue")} == {
        "requests": 3,
        "rows": 5,
        "passes": 2,
        "refused": 0,
        "failed": 0,
        "deepest_queue": 3,
    }
    assert stats["latency_s"]["p50"] == pytest.approx(0.5, rel=0.09) and stats["latency_s"]["p99"] == pytest.approx(1.0)
    assert stats["batch_rows"]["p50"] == 1 and stats["batch_rows"]["p99"] == 4


def test_quantiles_are_right_to_within_a_bucket() -> None:
    histogram = Histogram()
    values = np.random.default_rng(0).lognormal(-7, 1.5, 20_000)
    for value in values:
        histogram.add(float(value))
    for share in (0.01, 0.5, 0.9, 0.999):
        exact, found = float(np.quantile(values, share)), histogram.quantile(share)
        assert found is not None and exact * 0.99 <= found <= exact * 1.1
    assert len(histogram.counts) < 200 and Histogram().quantile(0.5) is None


def test_settings_that_would_never_answer_are_refused() -> None:
    for wrong in ({"max_batch": 0}, {"max_wait_s": -1.0}, {"max_wait_s": float("nan")}, {"max_wait_s": None}):
        with pytest.raises(UsageError):
            InferenceServer({"act": twice}, **wrong)
