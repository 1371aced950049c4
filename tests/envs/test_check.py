"""The check before training names what a faulty env does wrong, within its time."""

from __future__ import annotations

import time

import pytest

from podium.core.errors import EnvCheckError
from podium.envs.check import check
from podium.envs.make import EnvSpec

NAME = "sample_envs:Faulty"


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("no info", "reset() returned a dict with the keys camera, gear, expected a tuple (observation, info)"),
        ("four", "step() returned a tuple of 4 values as the old gym did, expected (observation, reward, "),
        ("nan", "step() gave obs/camera with NaN in it at step 5"),
        ("infinite", "step() gave obs/camera with an infinite value in it at step 5"),
        ("outside", "step() gave obs/camera with 7 in it, outside its declared Box[2, 2] float32 (-1 to 1) at step 5"),
        ("gear outside", "step() gave obs/gear with 3 in it, outside its declared Discrete(3) at step 5"),
        ("shape", "step() gave obs/camera with shape (2,), expected (2, 2) at step 5"),
        ("dtype", "step() gave obs/gear as float64, expected int64 at step 5"),
        ("missing", "step() gave no obs/gear; the observation is a dict with the keys camera at step 5"),
        ("extra", "step() gave obs/sound, which the observation space doesn't have at step 5"),
        ("reward nan", "step() gave the reward nan, expected a finite number at step 5"),
        ("reward none", "step() gave the reward None, expected a finite number at step 5"),
        ("flag", "step() gave terminated as 'no', expected True or False at step 5"),
    ],
)
def test_each_fault_is_named_in_one_line(fault: str, message: str) -> None:
    with pytest.raises(EnvCheckError) as caught:
        check(EnvSpec(NAME, {"fault": fault, "at": 5}))
    assert str(caught.value).startswith(f"{NAME}: {message}")
    assert "\n" not in str(caught.value)


def test_a_mask_without_a_legal_action_is_named() -> None:
    check(EnvSpec("sample_envs:MaskInObservation"))
    with pytest.raises(EnvCheckError, match=r"reset\(\) gave an action mask with no legal action"):
        check(EnvSpec("sample_envs:MaskInObservation", {"legal": False}))


def test_an_envs_own_error_stays_itself() -> None:
    with pytest.raises(ZeroDivisionError, match="the motor broke") as caught:
        check(EnvSpec(NAME, {"fault": "raise", "at": 5}))
    assert caught.value.__notes__ == ["env 0, step 5, in the check before training"]


@pytest.mark.parametrize(("fault", "method"), [("hang", "step"), ("hang in reset", "reset")])
def test_an_env_that_hangs_is_named_in_time(fault: str, method: str) -> None:
    began = time.perf_counter()
    with pytest.raises(EnvCheckError, match=rf"{NAME}: {method}\(\) did not return within 0.9 s"):
        check(EnvSpec(NAME, {"fault": fault, "at": 5}), seconds=1.0)
    assert time.perf_counter() - began < 1.0


@pytest.mark.parametrize(
    "name",
    [
        "CartPole-v1", "Pendulum-v1", "Blackjack-v1", "LunarLander-v3", "HalfCheetah-v5", "toy:chain", "toy:masked",
        "toy:cartpole-hidden", "envpool:CartPole-v1", "sample_envs:Counting", "sample_envs:counting_same",
        "sample_envs:Odd", "sample_envs:MaskByMethod", "sample_envs:Pushed",
    ],
)  # fmt: skip
def test_good_envs_pass_quickly(name: str) -> None:
    began = time.perf_counter()
    check(EnvSpec(name))
    assert time.perf_counter() - began < 5


def test_a_fault_in_one_of_several_wrapped_envs_is_found_without_its_processes() -> None:
    with pytest.raises(EnvCheckError, match="obs/camera with NaN"):
        check(EnvSpec(NAME, {"fault": "nan", "at": 5}, frame_stack=2, processes=2))
