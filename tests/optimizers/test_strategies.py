"""What every distribution strategy keeps to: counts from the data, states that go on, bounds, and refused combinations."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import podium
from podium import algorithms
from podium.algorithms.common.base import OPTIMIZERS, Setup
from podium.cli import main
from podium.core.errors import ConfigError, PodiumError
from podium.engine.local import LocalEngine
from podium.envs.make import EnvSpec, spaces_of
from podium.optimizers.async_samples import AsyncSamples

TINY: dict[str, Any] = {"seed": 2, "envs": 2, "fragment": 8, "hidden": (8,)}
SYNCHRONOUS: dict[str, dict[str, Any]] = {
    "sync_samples": {"workers": 2},
    "alone": {"workers": 0, "optimizer": "sync_samples"},
    "allreduce": {"workers": 2, "optimizer": "allreduce"},
    "multi_device": {"workers": 2, "optimizer": "multi_device", "learners": 2},
    "parameter_server": {"workers": 2, "optimizer": "parameter_server", "synchronous": True, "shards": 3},
}
REPLAYED: dict[str, dict[str, Any]] = {
    "sync_replay": {"workers": 2, "batch": 8, "learning_starts": 0, "train_every": 4},
    "sync_replay alone": {"batch": 8, "learning_starts": 0, "train_every": 4, "prioritized": True},
}
ASYNCHRONOUS: dict[str, tuple[str, dict[str, Any]]] = {
    "async_gradients": ("a3c", {}),
    "parameter_server": ("a2c", {"workers": 2, "optimizer": "parameter_server", "shards": 2}),
    "async_samples": ("impala", {}),
    "async_replay": ("apex", {"batch": 8, "learning_starts": 0}),
}

EVOLVED = ("evolution",)
"""Tested in test_evolution.py: it has no samples."""


@pytest.fixture
def strict() -> Iterator[LocalEngine]:
    engine = LocalEngine(strict=True)
    yield engine
    engine.close()


def build(engine: LocalEngine, algo: str, env: str = "CartPole-v1", **settings: Any) -> Any:
    algorithm = algorithms.get(algo)
    spec = EnvSpec(env)
    return algorithm.build(algorithm.configure(None, {**TINY, **settings}), Setup(engine, spec, *spaces_of(spec)))


def flat(engine: LocalEngine, optimizer: Any) -> np.ndarray:
    return engine.get(optimizer.learner().call("get_weights", 0.0)).flat


def test_every_strategy_is_tested_here() -> None:
    settings = [*SYNCHRONOUS.values(), *({"optimizer": name} for name in (*ASYNCHRONOUS, "sync_replay", *EVOLVED))]
    assert {given.get("optimizer", "sync_samples") for given in settings} == set(OPTIMIZERS)


@pytest.mark.parametrize("name", SYNCHRONOUS)
@pytest.mark.parametrize("normalize_obs", [False, True], ids=["", "filtered"])
def test_synchronous_ones_count_the_data_and_go_on_from_their_state(
    strict: LocalEngine, name: str, normalize_obs: bool
) -> None:
    settings = {**SYNCHRONOUS[name], "normalize_obs": normalize_obs}
    optimizer = build(strict, "a2c", **settings)
    samplers = max(settings["workers"], 1)
    for step in range(3):
        report = optimizer.step(step / 10)
        assert 0 < report.env_steps <= samplers * 2 * 8 and report.samplers == samplers
    assert optimizer.updates == 3
    saved = optimizer.get_state(restart=False)
    assert all(state["exact"] for state in saved["evaluators"])
    went_on = [optimizer.step(0.5).env_steps for _ in range(3)]

    other = build(strict, "a2c", **{**settings, "seed": 9})
    assert not np.array_equal(flat(strict, other), flat(strict, optimizer))
    other.set_state(saved)
    other.sgd = optimizer.sgd  # the seed of the minibatches is the config's
    assert [other.step(0.5).env_steps for _ in range(3)] == went_on
    np.testing.assert_array_equal(flat(strict, other), flat(strict, optimizer))


@pytest.mark.parametrize("name", REPLAYED)
def test_one_with_a_replay_goes_on_from_its_state_and_that_of_its_replay(strict: LocalEngine, name: str) -> None:
    settings = REPLAYED[name]
    optimizer = build(strict, "dqn", **settings)
    played = 16 * max(settings.get("workers", 0), 1)
    for step in range(5):
        report = optimizer.step(step / 10)
        assert report.env_steps > 0 and report.samplers == played // 16
        assert report.metrics.values()["replay_size"] <= optimizer.seen
    assert optimizer.updates == optimizer.seen // 4 or optimizer.updates == optimizer.seen // 4 - 1
    saved = optimizer.get_state(restart=False)
    replay, pieces = strict.get(optimizer.learner().call("get_replay", ()))
    assert all(state["exact"] for state in saved["evaluators"])
    went_on = [optimizer.step(0.5) for _ in range(4)]

    other = build(strict, "dqn", **{**settings, "seed": 9})
    other.set_state(saved)
    strict.get(other.learner().call("set_replay", replay, pieces))
    other.sgd = optimizer.sgd
    for report in went_on:
        again = other.step(0.5)
        assert (again.env_steps, again.metrics.values()) == (report.env_steps, report.metrics.values())
    np.testing.assert_array_equal(flat(strict, other), flat(strict, optimizer))


def test_updates_are_due_by_env_steps_from_where_learning_starts(strict: LocalEngine) -> None:
    """A sample is 16 steps: the third brings the steps to 48, 8 beyond the start, the others 16 more each."""
    optimizer = build(strict, "dqn", "toy:match", batch=8, learning_starts=40, train_every=4.0, log_every=1)
    assert [optimizer.step(0.0).env_steps and optimizer.updates for _ in range(5)] == [0, 0, 2, 6, 10]
    twice = build(strict, "dqn", "toy:match", batch=8, learning_starts=40, train_every=0.5, log_every=1)
    assert [twice.step(0.0).env_steps and twice.updates for _ in range(4)] == [0, 0, 16, 48]
    waiting = build(strict, "dqn", "toy:match", batch=20, learning_starts=0, train_every=4.0, log_every=1)
    assert [waiting.step(0.0).env_steps and waiting.updates for _ in range(3)] == [0, 4, 8], "16 rows are no minibatch"
    rarely = build(strict, "dqn", "toy:match", batch=8, learning_starts=40, train_every=4.0, log_every=40)
    reports = [rarely.step(0.0) for _ in range(2)]
    assert [report.env_steps for report in reports] == [48, 48] and rarely.updates == 14, "three samples a step"
    assert [report.samplers for report in reports] == [1, 1], "turns of one sampler are no three samplers"


@pytest.mark.parametrize("name", ASYNCHRONOUS)
def test_asynchronous_ones_measure_the_lag_and_keep_the_learners_state(strict: LocalEngine, name: str) -> None:
    algo, settings = ASYNCHRONOUS[name]
    optimizer = build(strict, algo, **settings, normalize_obs=True)
    lags = []
    for step in range(6):
        report = optimizer.step(step / 10)
        figures = report.metrics.values()
        lags.append(figures["weight_lag_max"])
        assert report.env_steps > 0 and report.overlapping and figures["workers_up"] == 2
    assert max(lags) >= 1, "two workers share one learner: one of them is behind"
    saved = optimizer.get_state(restart=True)
    assert saved["evaluators"][0]["exact"] is False and len(saved["evaluators"]) == 1
    other = build(strict, algo, **settings, normalize_obs=True)
    other.set_state(saved)
    np.testing.assert_array_equal(flat(strict, other), flat(strict, optimizer))
    assert other.updates == optimizer.updates
    for _ in range(5):  # a replay has to be filled first
        other.step(0.5)
    assert not np.array_equal(flat(strict, other), flat(strict, optimizer))


@pytest.mark.parametrize(
    ("algo", "settings"), [("a2c", given) for given in SYNCHRONOUS.values()] + list(ASYNCHRONOUS.values())
)
def test_all_begin_where_another_run_ended(strict: LocalEngine, algo: str, settings: dict[str, Any]) -> None:
    """A step of size 0 leaves the weights that were adopted, wherever the strategy keeps them."""
    source = build(strict, algo, **{**settings, "seed": 7})
    source.step(0.0)
    policy = strict.get(source.learner().call("policy_state"))
    optimizer = build(strict, algo, **settings, lr=0.0)
    optimizer.adopt(policy)
    optimizer.step(0.0)
    optimizer.step(0.0)
    np.testing.assert_array_equal(flat(strict, optimizer), flat(strict, source))


def test_the_queue_is_bounded_and_samples_that_are_too_old_are_dropped(strict: LocalEngine) -> None:
    optimizer: AsyncSamples = build(strict, "impala", workers=3, queue=4, max_lag=1)
    depths, lags = [], []
    for _ in range(12):
        figures = optimizer.step(0.0).metrics.values()
        depths.append(figures["queue_depth"])
        lags.append(figures["weight_lag_max"])
    assert max(depths) <= 4 and max(lags) <= 1
    assert optimizer.dropped > 0 and figures["samples_dropped"] == optimizer.dropped
    without = build(strict, "impala", workers=3, queue=4)
    assert max(without.step(0.0).metrics.values()["weight_lag_max"] for _ in range(12)) == 2


def test_a_batch_that_fits_no_device_is_refused_with_its_bytes(strict: LocalEngine) -> None:
    optimizer = build(strict, "ppo", workers=2, optimizer="multi_device", device_memory=1e-7)
    with pytest.raises(PodiumError, match=r"a batch of [\d,]+ bytes does not fit into the 107 bytes that cpu has"):
        optimizer.step(0.0)


def test_reduced_bytes_are_in_the_runs_files(tmp_path: Path) -> None:
    for name in ("allreduce", "multi_device"):
        settings = {**TINY, **SYNCHRONOUS[name]}
        result = podium.train("ppo", "CartPole-v1", steps=100, out=tmp_path / name, progress=False, **settings)
        row = podium.run.folder.RunFolder(result.folder).read_metrics()[-1]
        assert result["optimizer"] == name
        parameters = result.policy.policy.parameters
        common_width = 2 * 8
        assert row["reduced_bytes"] == row["gradient_steps"] * 4 * (parameters + 1) + common_width


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["ppo", "--optimizer", "async_samples"], "does not fit ppo: its samples would be older"),
        (["ppo", "--optimizer", "async_gradients", "--workers", "2"], "does not fit ppo: it makes several passes"),
        (["a2c", "--optimizer", "async_samples", "--workers", "2"], "expected one of sync_samples, allreduce"),
        (["a2c", "--optimizer", "alreduce"], "did you mean 'allreduce'"),
        (["a2c", "--optimizer", "allreduce"], "--workers is 0, expected at least 1"),
        (["a2c", "--shards", "4"], "--shards 4 would not be read: --optimizer is sync_samples"),
        (["impala", "--gae-lambda", "0.9"], "unknown setting --gae-lambda"),
        (["ppo", "--optimizer", "sync_replay"], "does not fit ppo: it learns from what its policy has just done"),
        (["dqn", "--optimizer", "allreduce"], "does not fit dqn: it learns from a replay, which that has none of"),
        (["dqn", "--buffer", "60"], "--buffer is 60, expected at least --batch, which is 64"),
        (
            ["dqn", "--buffer", "300", "--fragment", "40"],
            "--buffer is 300, expected at least 328: what all envs play in",
        ),
        (
            ["dqn", "--buffer-memory", "1e-6"],
            "--buffer-memory 1e-06 holds 29 transitions of 37 bytes, expected at least",
        ),
        (["dqn", "--beta", "0.5"], "--beta 0.5 would not be read: --prioritized is false"),
        (["dqn", "--v-min", "7", "--v-max", "5", "--distribution", "categorical"], "--v-min is 7, expected less than"),
        (["dqn", "--noisy", "--dulling"], "did you mean '--dueling'"),
        (["dqn", "--memory", "lstm"], "unknown setting --memory"),
        (["r2d2", "--burn-in", "60"], "--burn-in is 60, expected less than --sequence, which is 60"),
        (["r2d2", "--sequence", "20", "--n-step", "11"], "--n-step is 11, expected at most 10, the rows of --sequence"),
        (
            ["r2d2", "--buffer", "480"],
            "--buffer is 480, expected at least 792: a --batch of 32 --sequence 60 rows long",
        ),
        (
            ["r2d2", "--buffer", "900", "--batch", "1", "--fragment", "60"],
            "expected at least 960: what all envs play in",
        ),
        (["r2d2", "--buffer-memory", "1e-4"], "transitions of 566 bytes, expected at least 792"),
        (["r2d2", "--memory", "lsmt"], "did you mean 'lstm'"),
        (["r2d2", "--memory", "none"], "--memory is 'none', expected one of lstm, gru"),
        (["r2d2", "--model", "json:loads"], "--model json:loads would not be read: r2d2's network has a memory"),
        (["r2d2", "--eta", "0.5", "--prioritized", "false"], "--eta 0.5 would not be read: --prioritized is false"),
        (["r2d2", "--optimizer", "allreduce"], "does not fit r2d2: it learns from a replay"),
    ],
)
def test_combinations_without_a_meaning_are_refused_with_the_reason(
    words: list[str], part: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    algo, *flags = words
    assert main(["train", algo, "CartPole-v1", *flags, "--out", str(tmp_path / "run")]) == 2
    line = capsys.readouterr().err
    assert part in line and line.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_what_fits_is_what_is_not_refused() -> None:
    for name in algorithms.names():
        algorithm = algorithms.get(name)
        for optimizer in OPTIMIZERS:
            given = {"optimizer": optimizer, "workers": 1}
            if optimizer in algorithm.refused:
                with pytest.raises(ConfigError, match="does not fit"):
                    algorithm.configure(None, given)
            else:
                assert algorithm.configure(None, given).optimizer == optimizer
