"""Returns against answers worked out by hand, against their definitions walked step by step, and against wrong versions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from podium.core import returns

# One env, four steps, gamma 0.5. Step 1 terminates: the 100 it seems to lead to must count for nothing. Step 2 is an
# episode of its own, truncated where the value is 6. Step 3 begins a third, and the fragment ends where the value is 10.
REWARDS = [1.0, 4.0, 4.0, 8.0]
VALUES = [1.0, 2.0, 3.0, 4.0]
NEXT_VALUES = [2.0, 100.0, 6.0, 10.0]
TERMINATED = [0.0, 1.0, 0.0, 0.0]
DONE = [0.0, 1.0, 1.0, 0.0]
GAMMA = 0.5
RATIO = [2.0, 0.5, 4.0, 0.5]


def column(values: list[float]) -> np.ndarray:
    return np.array(values)[:, None]


R, V, NEXT, TERM, ENDS = map(column, (REWARDS, VALUES, NEXT_VALUES, TERMINATED, DONE))
LOG_RATIO = np.log(column(RATIO))
NEVER = np.zeros_like(ENDS)


def test_discounted_by_hand() -> None:
    # 3: 8 + 0.5 * 10 = 13;  2: 4 + 0.5 * 6 = 7;  1: 4, nothing after it;  0: 1 + 0.5 * 4 = 3
    right = column([3.0, 4.0, 7.0, 13.0])
    np.testing.assert_allclose(returns.discounted(R, NEXT, TERM, ENDS, GAMMA), right)
    # a truncation taken for an end loses the 6: 2 becomes 4; without ends, 1 grows by 0.5 * (4 + 0.5 * 13)
    np.testing.assert_allclose(returns.discounted(R, NEXT, ENDS, ENDS, GAMMA), column([3.0, 4.0, 4.0, 13.0]))
    assert not np.allclose(returns.discounted(R, NEXT, TERM, NEVER, GAMMA), right)


def test_n_step_by_hand() -> None:
    # Truncated after step 2 alone, so that two steps fit. 0: 1 + 0.5 * 4 + 0.25 * 3 = 3.75;
    # 1: 4 + 0.5 * 4 + 0.25 * 6 = 7.5;  2: 4 + 0.5 * 6 = 7;  3: 8 + 0.5 * 10 = 13
    next_values, truncated = column([2.0, 3.0, 6.0, 10.0]), column([0.0, 0.0, 1.0, 0.0])
    right = column([3.75, 7.5, 7.0, 13.0])
    np.testing.assert_allclose(returns.n_step(R, next_values, NEVER, truncated, GAMMA, 2), right)
    # with three steps only step 0 changes: 1 + 0.5 * 4 + 0.25 * 4 + 0.125 * 6 = 4.75; step 1 stops at the truncation
    longer = column([4.75, 7.5, 7.0, 13.0])
    np.testing.assert_allclose(returns.n_step(R, next_values, NEVER, truncated, GAMMA, 3), longer)
    assert not np.allclose(returns.n_step(R, next_values, truncated, truncated, GAMMA, 2), right)
    assert not np.allclose(returns.n_step(R, next_values, NEVER, NEVER, GAMMA, 3), longer)


def test_n_step_stops_at_a_termination_by_hand() -> None:
    # 0: 1 + 0.5 * 4 = 3, the 100 counts for nothing;  1: 4;  2: 4 + 0.5 * 6 = 7;  3: 8 + 0.5 * 10 = 13
    np.testing.assert_allclose(returns.n_step(R, NEXT, TERM, ENDS, GAMMA, 2), column([3.0, 4.0, 7.0, 13.0]))


def test_n_step_parts_by_hand() -> None:
    # 0: 1 + 0.5 * 4, and the termination at 1;  1: 4;  2: 4, cut;  3: 8, where the fragment ends. Without ends, and with
    # up to three: 1 + 0.5 * 4 + 0.25 * 4 = 4, 4 + 0.5 * 4 + 0.25 * 8 = 8, 4 + 0.5 * 8 = 8, 8
    gain, summed = returns.n_step_parts(R, ENDS != 0, GAMMA, 3)
    np.testing.assert_allclose(gain, column([3.0, 4.0, 4.0, 8.0]))
    assert summed[:, 0].tolist() == [2, 1, 1, 1]
    gain, summed = returns.n_step_parts(R, ENDS != ENDS, GAMMA, 3)
    np.testing.assert_allclose(gain, column([4.0, 8.0, 8.0, 8.0]))
    assert summed[:, 0].tolist() == [3, 3, 2, 1]


def test_gae_by_hand() -> None:
    # Errors: 1 + 0.5 * 2 - 1 = 1;  4 - 2 = 2;  4 + 0.5 * 6 - 3 = 4;  8 + 0.5 * 10 - 4 = 9. With lambda 0.5 the only one
    # that another follows within its episode is the first: 1 + 0.25 * 2 = 1.5
    right = column([1.5, 2.0, 4.0, 9.0])
    np.testing.assert_allclose(returns.gae(R, V, NEXT, TERM, ENDS, GAMMA, 0.5), right)
    # truncation as an end: 4 - 3 = 1 at step 2; leaking over ends: 4 + 0.25 * 9 = 6.25 there, 2 + 0.25 * 6.25 before
    np.testing.assert_allclose(returns.gae(R, V, NEXT, ENDS, ENDS, GAMMA, 0.5), column([1.5, 2.0, 1.0, 9.0]))
    leaking = returns.gae(R, V, NEXT, TERM, NEVER, GAMMA, 0.5)
    np.testing.assert_allclose(leaking[1:3], column([3.5625, 6.25]))


def test_vtrace_by_hand() -> None:
    # The errors of the GAE case, weighed by rho = min(ratio, 1) = 1, 0.5, 1, 0.5: corrections 1, 1, 4, 4.5, and the first
    # gets 0.5 * c * 1 with c = 1: 1.5. Targets are those plus the values. Advantages: 1 * (1 + 0.5 * 3 - 1) = 1.5;
    # 0.5 * (4 - 2) = 1;  1 * (4 + 0.5 * 6 - 3) = 4;  0.5 * (8 + 0.5 * 10 - 4) = 4.5
    targets, advantages = returns.vtrace(R, V, NEXT, TERM, ENDS, LOG_RATIO, GAMMA)
    np.testing.assert_allclose(targets, column([2.5, 3.0, 7.0, 8.5]))
    np.testing.assert_allclose(advantages, column([1.5, 1.0, 4.0, 4.5]))
    # rho up to 2: 2, 0.5, 2, 0.5 and corrections 2, 1, 8, 4.5; c up to 0.5: the first gets 0.5 * 0.5 * 1. Advantage of
    # step 0: 2 * (1 + 0.5 * 3 - 1) = 3; of step 2: 2 * 4 = 8
    targets, advantages = returns.vtrace(R, V, NEXT, TERM, ENDS, LOG_RATIO, GAMMA, rho_clip=2.0, c_clip=0.5)
    np.testing.assert_allclose(targets, column([3.25, 3.0, 11.0, 8.5]))
    np.testing.assert_allclose(advantages, column([3.0, 1.0, 8.0, 4.5]))


def test_vtrace_differs_from_its_wrong_versions() -> None:
    right, advantages = returns.vtrace(R, V, NEXT, TERM, ENDS, LOG_RATIO, GAMMA)
    truncation_as_end, its_advantages = returns.vtrace(R, V, NEXT, ENDS, ENDS, LOG_RATIO, GAMMA)
    leaking, leaking_advantages = returns.vtrace(R, V, NEXT, TERM, NEVER, LOG_RATIO, GAMMA)
    unclipped, _ = returns.vtrace(R, V, NEXT, TERM, ENDS, LOG_RATIO, GAMMA, rho_clip=9.0, c_clip=9.0)
    assert not any(np.allclose(right, wrong) for wrong in (truncation_as_end, leaking, unclipped))
    assert not any(np.allclose(advantages, wrong) for wrong in (its_advantages, leaking_advantages))
    # leaking into step 2: 4 + 0.5 * 1 * 4.5 more than its value of 3
    np.testing.assert_allclose(leaking[2], 9.25)


Case = dict[str, Any]
NUMBERS = st.floats(-10, 10, width=32)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """A fragment in which what a step leads to is the next row, but for ends, where it is a value of its own."""
    shape = (draw(st.integers(1, 7)), draw(st.integers(1, 3)))
    numbers = hnp.arrays(np.float64, shape, elements=NUMBERS)
    terminated, truncated = draw(hnp.arrays(bool, shape)), draw(hnp.arrays(bool, shape))
    rewards, values, next_values = draw(numbers), draw(numbers), draw(numbers)
    done = terminated | truncated
    next_values[:-1] = np.where(done[:-1], next_values[:-1], values[1:])
    return {
        "rewards": rewards,
        "values": values,
        "next_values": next_values,
        "terminated": terminated,
        "done": done,
        "log_ratio": draw(hnp.arrays(np.float64, shape, elements=st.floats(-2, 2, width=32))),
        "gamma": draw(st.floats(0, 1)),
        "lam": draw(st.floats(0, 1)),
        "n": draw(st.integers(1, 9)),
    }


def per_step(case: Case, answer: Callable[[Case, int, int], float]) -> np.ndarray:
    length, width = case["rewards"].shape
    return np.array([[answer(case, t, n) for n in range(width)] for t in range(length)])


def left(case: Case, t: int, n: int) -> list[int]:
    """The steps from t to the end of its episode, or of the fragment."""
    steps = []
    for k in range(t, len(case["rewards"])):
        steps.append(k)
        if case["done"][k, n]:
            break
    return steps


def future_value(case: Case, t: int, n: int) -> float:
    return 0.0 if case["terminated"][t, n] else float(case["next_values"][t, n])


def sum_of(case: Case, t: int, n: int, steps: list[int]) -> float:
    rewards = sum(case["gamma"] ** i * case["rewards"][k, n] for i, k in enumerate(steps))
    return float(rewards + case["gamma"] ** len(steps) * future_value(case, steps[-1], n))


def error(case: Case, t: int, n: int) -> float:
    return float(case["rewards"][t, n] + case["gamma"] * future_value(case, t, n) - case["values"][t, n])


def slow_gae(case: Case, t: int, n: int) -> float:
    decay = case["gamma"] * case["lam"]
    return sum(decay**i * error(case, k, n) for i, k in enumerate(left(case, t, n)))


def slow_target(case: Case, t: int, n: int) -> float:
    ratio = np.minimum(np.exp(case["log_ratio"]), 1.0)
    steps = left(case, t, n)
    passed = [np.prod(ratio[t:k, n]) for k in steps]
    terms = [case["gamma"] ** i * p * ratio[k, n] for i, (k, p) in enumerate(zip(steps, passed, strict=True))]
    corrections = sum(term * error(case, k, n) for term, k in zip(terms, steps, strict=True))
    return float(case["values"][t, n] + corrections)


def slow_advantage(case: Case, t: int, n: int) -> float:
    last = case["done"][t, n] or t == len(case["rewards"]) - 1
    ahead = future_value(case, t, n) if last else slow_target(case, t + 1, n)
    ratio = min(float(np.exp(case["log_ratio"][t, n])), 1.0)
    return float(ratio * (case["rewards"][t, n] + case["gamma"] * ahead - case["values"][t, n]))


def run(name: str, case: Case, convert: Callable[[Any], Any] = lambda array: array, **others: Any) -> Any:
    """Call a formula with its arguments from the case."""
    function = getattr(returns, name)
    wanted = function.__code__.co_varnames[: function.__code__.co_argcount]
    given = {key: convert(value) if isinstance(value, np.ndarray) else value for key, value in case.items()}
    return function(**{key: value for key, value in {**given, **others}.items() if key in wanted})


@settings(max_examples=60, deadline=None)
@given(cases())
def test_all_agree_with_their_definitions(case: Case) -> None:
    close: Any = {"rtol": 1e-9, "atol": 1e-9}
    whole = per_step(case, lambda c, t, n: sum_of(c, t, n, left(c, t, n)))
    np.testing.assert_allclose(run("discounted", case), whole, **close)
    some = per_step(case, lambda c, t, n: sum_of(c, t, n, left(c, t, n)[: c["n"]]))
    np.testing.assert_allclose(run("n_step", case), some, **close)
    gain, summed = run("n_step_parts", case)
    last, envs = np.arange(len(summed))[:, None] + summed - 1, np.arange(summed.shape[1])
    follows = np.where(case["terminated"], 0.0, case["next_values"])[last, envs]
    np.testing.assert_allclose(gain + case["gamma"] ** summed * follows, some, **close)
    np.testing.assert_allclose(run("gae", case), per_step(case, slow_gae), **close)
    targets, advantages = run("vtrace", case)
    np.testing.assert_allclose(targets, per_step(case, slow_target), **close)
    np.testing.assert_allclose(advantages, per_step(case, slow_advantage), **close)


@settings(max_examples=60, deadline=None)
@given(cases())
def test_limits_meet(case: Case) -> None:
    discounted = run("discounted", case)
    td_target = case["rewards"] + case["gamma"] * np.where(case["terminated"], 0.0, case["next_values"])
    close: Any = {"rtol": 1e-9, "atol": 1e-9}
    np.testing.assert_allclose(run("gae", case, lam=1.0), discounted - case["values"], **close)
    np.testing.assert_allclose(run("gae", case, lam=0.0), td_target - case["values"], **close)
    np.testing.assert_allclose(run("n_step", case, n=1), td_target, **close)
    np.testing.assert_allclose(run("n_step", case, n=len(case["rewards"])), discounted, **close)
    targets, advantages = run("vtrace", case, log_ratio=np.zeros_like(case["rewards"]))
    np.testing.assert_allclose(targets, discounted, **close)
    np.testing.assert_allclose(advantages, discounted - case["values"], **close)


@settings(max_examples=40, deadline=None)
@given(cases(), st.sampled_from(["discounted", "n_step", "gae", "vtrace"]))
def test_numpy_and_torch_agree(case: Case, name: str) -> None:
    in_torch = run(name, case, torch.tensor)
    as_numpy = [part.numpy() for part in in_torch] if isinstance(in_torch, tuple) else in_torch.numpy()
    np.testing.assert_allclose(run(name, case), as_numpy, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["discounted", "n_step", "gae", "vtrace"])
@pytest.mark.parametrize("flags", [np.bool_, np.float32])
def test_single_precision_stays_and_inputs_are_left_alone(name: str, flags: type) -> None:
    arrays = {"rewards": R, "values": V, "next_values": NEXT, "log_ratio": LOG_RATIO}
    case: Case = {key: array.astype(np.float32) for key, array in arrays.items()}
    case |= {"terminated": TERM.astype(flags), "done": ENDS.astype(flags), "gamma": GAMMA, "lam": 0.5, "n": 2}
    before = {key: value.copy() for key, value in case.items() if isinstance(value, np.ndarray)}
    result = run(name, case)
    assert all(part.dtype == np.float32 for part in (result if isinstance(result, tuple) else [result]))
    for key, array in before.items():
        np.testing.assert_array_equal(case[key], array)
