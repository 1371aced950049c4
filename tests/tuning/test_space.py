"""What may be searched: how ranges are written and refused, drawn, explored and turned into settings."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest

from podium import algorithms
from podium.core.errors import UsageError
from podium.tuning.space import Dimension, Space, parse

PPO = algorithms.get("ppo").config


def one(text: str) -> Dimension:
    (found,) = parse([text], PPO, {}).dimensions
    return found


@pytest.mark.parametrize(
    ("text", "low", "high", "whole", "log"),
    [
        ("lr=log:1e-5:1e-2", 1e-5, 1e-2, False, True),
        ("gamma=0.9:0.999", 0.9, 0.999, False, False),
        ("epochs=int:1:8", 1, 8, True, False),
        ("minibatch=logint:16:512", 16, 512, True, True),
        ("minibatch=16:512", 16, 512, True, False),
        ("gae-lambda=0.8:1", 0.8, 1.0, False, False),
    ],
)
def test_ranges(text: str, low: float, high: float, whole: bool, log: bool) -> None:
    found = one(text)
    assert (found.low, found.high, found.whole, found.log) == (low, high, whole, log)
    assert found.name == text.partition("=")[0].replace("-", "_")
    drawn = [found.draw(np.random.default_rng(i)) for i in range(400)]
    assert all(low <= value <= high and isinstance(value, int if whole else float) for value in drawn)
    middle = math.sqrt(low * high) if log else (low + high) / 2
    assert 0.35 < np.mean([value < middle for value in drawn]) < 0.65


@pytest.mark.parametrize(
    ("text", "choices"),
    [
        ("clip=0.1,0.2,0.3", (0.1, 0.2, 0.3)),
        ("hidden=64,64|128,128", ("64,64", "128,128")),
        ("memory=none,lstm", ("none", "lstm")),
        ("target_kl=none,0.02", (None, 0.02)),
        ("lr=1e-3->0,3e-4", ("0.001->0", 3e-4)),
        ("normalize_obs=true,false", (True, False)),
        ("minibatch=64,128", (64, 128)),
    ],
)
def test_choices(text: str, choices: tuple[Any, ...]) -> None:
    assert one(text).choices == choices
    space = Space((one(text),))
    for value in choices:
        algorithms.get("ppo").configure(None, space.settings({one(text).name: value}))


def test_a_number_may_begin_a_schedule() -> None:
    found = one("lr=log:1e-4:1e-2->0")
    assert (found.low, found.high) == (1e-4, 1e-2) and found.setting(0.003) == "0.003->0"
    assert (
        found.setting(0.0012345678912) == "0.00123457->0" and one("gamma=0.9:0.99999").setting(0.99998765) == 0.999988
    )
    assert str(algorithms.get("ppo").configure(None, {"lr": found.setting(0.003)}).lr) == "0.003->0"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("lrr=0.1:0.2", "unknown setting --lrr; did you mean '--lr'?"),
        ("lr", "expected NAME=..."),
        ("lr=0.1:0.1", "the range from 0.1 to 0.1 is empty"),
        ("lr=1e-2:1e-5", "the range from 0.01 to 1e-05 is backwards"),
        ("lr=log:0:1e-2", "a log range lies above 0"),
        ("lr=log:-1:1", "a log range lies above 0"),
        ("lr=0.1:20", "--lr is '20.0', expected a number from 0 to 10"),
        ("gamma=0.5:1.5", "--gamma is '1.5', expected a number from 0 to 1"),
        ("clip=0.1,-0.2", "--clip is '-0.2', expected a number from 0"),
        ("lr=a:b", "'a:b' is no range"),
        ("lr=0.1:inf", "from one finite number to another"),
        ("minibatch=16.5:32", "expected whole numbers"),
        ("clip=0.1,,0.2", "has an empty choice"),
        ("clip=0.1,0.1", "has a choice twice"),
        ("clip=0.1", "one choice alone"),
        ("memory=none,lsmt", "did you mean 'lstm'?"),
        ("steps=100:1000", "all trials have the same --steps"),
        ("env_args=1:2", "unknown setting --env-args"),
    ],
)
def test_a_wrong_range_is_named(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)) as refused:
        one(text)
    assert text in str(refused.value)


def test_what_is_searched_is_not_given_too() -> None:
    with pytest.raises(UsageError, match="--lr is given and searched"):
        parse(["lr=0.1:0.2"], PPO, {"lr": 0.1})
    with pytest.raises(UsageError, match="--search lr is given twice"):
        parse(["lr=0.1:0.2", "lr=0.1:0.3"], PPO, {})
    with pytest.raises(UsageError, match="nothing to search"):
        parse([], PPO, {})


def test_exploring_goes_a_step_and_stays_inside() -> None:
    rng = np.random.default_rng(0)

    def seen(text: str, value: Any) -> set[Any]:
        return {one(text).explore(value, rng) for _ in range(50)}

    assert seen("lr=log:1e-5:1e-2", 1e-3) == {8e-4, 1.25e-3}
    assert seen("lr=log:1e-5:1e-2", 1e-2) == {8e-3, 1e-2}
    assert seen("epochs=int:1:8", 2) == {1, 2, 3} - {2}, "2 * 1.25 and 2 * 0.8 are 2 again, and a step is one"
    assert seen("epochs=int:1:100", 10) == {8, 12}
    assert seen("clip=0.1,0.2,0.3", 0.2) == {0.1, 0.3} and seen("clip=0.1,0.2,0.3", 0.3) == {0.2, 0.3}
    assert len(seen("entropy=0:0.1", 0.0)) > 10, "0 times anything is 0: drawn anew"


def test_a_grid_has_every_combination() -> None:
    space = parse(["clip=0.1,0.2", "epochs=int:2:4"], PPO, {})
    assert space.grid()[:4] == [
        {"clip": 0.1, "epochs": 2},
        {"clip": 0.1, "epochs": 3},
        {"clip": 0.1, "epochs": 4},
        {"clip": 0.2, "epochs": 2},
    ]
    assert len(space.grid()) == 6
    with pytest.raises(UsageError, match="tries every value"):
        parse(["lr=0.1:0.2"], PPO, {}).grid()
