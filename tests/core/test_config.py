"""Settings: what is given is checked, what nothing would read is refused, and every error says what would be right."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podium.core.config import Config, Schedule, flag, setting
from podium.core.errors import ConfigError, UsageError


@dataclass(frozen=True)
class Settings(Config):
    lr: float | Schedule = setting(1e-3, "step size", above=0)
    clip: float | Schedule = setting(0.2, "how far a ratio may move", low=0, high=1)
    epochs: int = setting(4, "passes over a sample", unit="passes", low=1)
    gamma: float = setting(0.99, "discount", low=0, high=1)
    hidden: tuple[int, ...] = setting((64, 64), "layer widths", low=1)
    tags: tuple[str, ...] = setting((), "words")
    activation: Literal["tanh", "relu", "silu"] = setting("tanh", "between layers")
    target_kl: float | None = setting(None, "stop when passed", above=0)
    normalize: bool = setting(True, "normalize advantages")
    device: str = setting("cpu", "where to learn")
    network: Literal["mlp", "lstm"] = setting("mlp", "kind of network")
    stay: bool = setting(False, "keep going")
    after: float = setting(0.5, "how long", only=("stay", [True]))
    sequence: int = setting(16, "steps of a sequence", low=1, only=("network", ["lstm"]))

    def check(self) -> None:
        if self.epochs > 1 and self.device == "tpu":
            raise ConfigError("--device tpu goes with --epochs 1")


def build(**given: Any) -> Settings:
    return Settings.build(given)


def refusal(**given: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        build(**given)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_nothing_given_is_the_defaults() -> None:
    assert build() == Settings()


def test_text_and_values_mean_the_same() -> None:
    typed = build(
        lr="1e-4", epochs="10", hidden="32,16", target_kl="0.01", normalize="false", activation="relu", tags="a,b"
    )
    given = build(
        lr=1e-4, epochs=10, hidden=[32, 16], target_kl=0.01, normalize=False, activation="relu", tags=("a", "b")
    )
    assert typed == given
    assert (typed.epochs, typed.hidden, typed.tags, typed.normalize) == (10, (32, 16), ("a", "b"), False)


@pytest.mark.parametrize(
    ("text", "number"),
    [("7", 7), ("1e5", 100_000), ("100_000", 100_000), ("12345678901234567891", 12345678901234567891), ("2.0", 2)],
)
def test_whole_numbers(text: str, number: int) -> None:
    assert build(epochs=text).epochs == number and isinstance(build(epochs=text).epochs, int)


def test_lists() -> None:
    assert build(hidden="64").hidden == (64,) and build(hidden=64).hidden == (64,) and build(hidden="").hidden == ()
    assert refusal(hidden="64,x") == "--hidden is '64,x', expected a list such as 64,64 from 1"
    assert "expected a list" in refusal(hidden="64,0")
    assert "expected a list such as a,b" in refusal(tags=[1])


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    assert refusal(gama=0.9) == "unknown setting --gama; did you mean '--gamma'?"
    assert refusal(xyzzy=1) == "unknown setting --xyzzy"
    assert issubclass(ConfigError, UsageError) and UsageError.exit_code == 2
    assert flag("target_kl") == "--target-kl"


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("gamma", 1.01, "--gamma is '1.01', expected a number from 0 to 1"),
        ("gamma", "much", "--gamma is 'much', expected a number from 0 to 1"),
        ("gamma", "nan", "--gamma is 'nan', expected a number from 0 to 1"),
        ("epochs", 0, "--epochs is '0', expected a whole number from 1 (passes)"),
        ("epochs", "2.5", "--epochs is '2.5', expected a whole number from 1 (passes)"),
        ("epochs", "inf", "--epochs is 'inf', expected a whole number from 1 (passes)"),
        ("epochs", float("inf"), "--epochs is 'inf', expected a whole number from 1 (passes)"),
        ("epochs", True, "--epochs is 'true', expected a whole number from 1 (passes)"),
        ("lr", 0, "--lr is '0', expected a number above 0, or a schedule such as 0.1->0"),
        ("lr", [1], "--lr is '1', expected a number above 0, or a schedule such as 0.1->0"),
        ("target_kl", -1, "--target-kl is '-1', expected a number above 0, or none"),
        ("normalize", "maybe", "--normalize is 'maybe', expected true or false"),
        ("normalize", 2, "--normalize is '2', expected true or false"),
        ("device", 3, "--device is '3', expected text"),
        ("activation", "rely", "--activation is 'rely', expected one of tanh, relu, silu; did you mean 'relu'?"),
        ("activation", None, "--activation is 'None', expected one of tanh, relu, silu"),
    ],
)
def test_a_wrong_value_is_told_with_what_is_right(name: str, value: Any, says: str) -> None:
    assert refusal(**{name: value}) == says


def test_bounds_belong_to_the_range_and_above_does_not() -> None:
    assert build(gamma=1).gamma == 1 and build(gamma=0).gamma == 0 and build(epochs=1).epochs == 1
    assert build(target_kl="none").target_kl is None and build(target_kl=1e-9).target_kl == 1e-9


def test_a_setting_that_nothing_would_read_is_refused() -> None:
    assert build(network="lstm", sequence=8).sequence == 8
    assert build(sequence=16).sequence == 16  # what it is anyway
    assert refusal(after=1) == "--after 1.0 would not be read: --stay is false, and it goes with --stay true"
    assert refusal(sequence=8) == "--sequence 8 would not be read: --network is mlp, and it goes with --network lstm"


def test_what_goes_together_is_checked_too() -> None:
    assert refusal(device="tpu") == "--device tpu goes with --epochs 1"
    assert build(device="tpu", epochs=1).device == "tpu"


def test_a_schedule_goes_straight_between_its_points() -> None:
    # From 0.2 to 0.1 in the first half, then down to 0: a quarter of the way 0.15, at 0.6 a fifth of 0.1 lower
    schedule = build(clip="0.2->0.1@0.5->0").clip
    assert isinstance(schedule, Schedule)
    seen = [schedule.at(progress) for progress in (0, 0.25, 0.5, 0.6, 1, 1.5)]
    assert seen == pytest.approx([0.2, 0.15, 0.1, 0.08, 0, 0])
    # a late start and an early end stay level outside
    level = Schedule.parse("0.3@0.2->0.1@0.4")
    assert [level.at(0), level.at(0.2), level.at(0.4), level.at(1)] == [0.3, 0.3, 0.1, 0.1]


def test_every_setting_at_some_progress() -> None:
    now = build(lr="1e-3->0", gamma=0.9).at(0.75)
    assert (now.lr, now.gamma, now.clip, now.hidden) == (pytest.approx(2.5e-4), 0.9, 0.2, (64, 64))


@pytest.mark.parametrize(
    "text", ["0.1->2", "0.1->x", "0.2->0.1@0.5@0.6", "0.2@0.5->0.1@0.5", "0.1->0@2", "->", "nan->0"]
)
def test_a_schedule_that_can_not_be(text: str) -> None:
    assert refusal(clip=text) == f"--clip is '{text}', expected a number from 0 to 1, or a schedule such as 0.1->0"


def test_a_schedule_may_touch_an_exclusive_bound_and_not_pass_it() -> None:
    assert build(lr="0->1e-3@0.1->0").lr == Schedule(((0.0, 0.0), (0.1, 1e-3), (1.0, 0.0)))
    assert refusal(lr="1e-3->-1e-9") == (
        "--lr is '1e-3->-1e-9', expected a number above 0, or a schedule such as 0.1->0"
    )


def test_a_number_takes_no_schedule_where_none_is_read() -> None:
    assert refusal(gamma="1->0") == "--gamma is '1->0', expected a number from 0 to 1"


progresses = st.floats(0, 1, allow_subnormal=False)


@given(
    st.lists(progresses, min_size=1, max_size=5, unique=True).map(sorted),
    st.floats(allow_nan=False, allow_infinity=False),
)
def test_a_schedule_comes_back_from_its_text_exactly(progress: list[float], value: float) -> None:
    schedule = Schedule(tuple((p, value / (i + 1)) for i, p in enumerate(progress)))
    assert Schedule.parse(str(schedule)) == schedule
    assert schedule.at(progress[-1]) == schedule.points[-1][1]


def test_json_and_back() -> None:
    config = build(
        lr="1.23456789012e-4->1e-5@0.333333333333->0", hidden="32", target_kl=0.1, network="lstm", sequence=9, tags="x"
    )
    assert Settings.build(json.loads(json.dumps(config.to_json()))) == config
    assert config.to_json().keys() == {field.name for field in fields(Settings)}


def test_replace_checks_as_build_does() -> None:
    config = build(lr="1e-3->0", network="lstm", sequence=9)
    other = config.replace(epochs="2", hidden=(8,))
    assert (other.epochs, other.hidden, other.lr, other.sequence) == (2, (8,), config.lr, 9)
    assert config.epochs == 4
    with pytest.raises(ConfigError, match="would not be read"):
        config.replace(network="mlp")
    with pytest.raises(ConfigError, match="unknown setting --epoch; did you mean '--epochs'"):
        config.replace(epoch=3)
