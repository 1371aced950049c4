"""Central inference: the same weights as with a policy of one's own, true versions, what is refused, and who may die."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import podium
from podium import algorithms
from podium.algorithms.common.base import Setup
from podium.algorithms.common.central import CentralPolicy, CentralServer
from podium.algorithms.common.on_policy import advantages
from podium.core.errors import ConfigError, WorkerDied
from podium.engine.base import Engine, Handle
from podium.engine.local import LocalEngine
from podium.envs.make import EnvSpec, spaces_of
from podium.optimizers.base import newest
from podium.run.folder import RunFolder
from podium.serving.transports.engine import EngineClient
from tests.conformance.conftest import ray_engine

STEPS = 4
TINY: dict[str, Any] = {"seed": 3, "workers": 1, "envs": 4, "fragment": 16, "hidden": (16,), "lr": 1e-2}
PPO: dict[str, Any] = {"minibatch": 32, "epochs": 2}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "filtered": ("CartPole-v1", {"normalize_obs": True, "gamma": "0.9->0.99"}),
    "cut": ("CartPole-v1", {"time_limit": 7}),
    "recurrent": ("toy:cartpole-hidden", {"memory": "lstm", "memory_size": 8}),
    "masked": ("toy:masked", {}),
    "continuous": ("Pendulum-v1", {"time_limit": 9}),
    "devices": ("CartPole-v1", {"optimizer": "multi_device"}),
}


@pytest.fixture(scope="module")
def ray() -> Iterator[Engine]:
    yield from ray_engine()


def build(engine: Engine, algo: str, env: str, **settings: Any) -> Any:
    algorithm = algorithms.get(algo)
    config = algorithm.configure(None, {**TINY, **settings})
    spec = EnvSpec(env, {}, time_limit=config.time_limit)
    return algorithm.build(config, Setup(engine, spec, *spaces_of(spec)))


def flat(engine: Engine, optimizer: Any) -> np.ndarray:
    return engine.get(optimizer.learner().call("get_weights", 0.0)).flat.copy()


def outcome(engine: Engine, case: str, **settings: Any) -> tuple[list[bytes], list[Any]]:
    """The weights after each step, and what was counted on the way."""
    env, own = CASES[case]
    optimizer = build(engine, "ppo", env, **PPO, **own, **settings)
    weights, counted = [], []
    for step in range(STEPS):
        report = optimizer.step(step / STEPS)
        counted.append((report.env_steps, report.episodes))
        weights.append(flat(engine, optimizer).tobytes())
    optimizer.close()
    return weights, counted


# --- the same as with a policy of one's own ---


@pytest.mark.parametrize("case", CASES)
def test_one_worker_comes_to_the_same_weights_bit_for_bit(ray: Engine, case: str) -> None:
    own = outcome(LocalEngine(), case)
    assert len(set(own[0])) == STEPS
    for engine in (LocalEngine(), LocalEngine(strict=True), ray):
        assert outcome(engine, case, inference="central") == own
    assert outcome(LocalEngine(), case, inference="central", seed=4)[0] != own[0]


def test_several_workers_play_with_one_policy_and_learn(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"workers": 2, "envs": 4, "fragment": 64, "progress": False, "seed": 1}
    result = podium.train("ppo", "CartPole-v1", steps=25_000, inference="central", out=tmp_path / "run", **settings)
    assert result["best_return"] > 100
    assert max(row["weight_lag_max"] for row in RunFolder.open(tmp_path / "run").read_metrics()) == 0


def test_a_run_goes_on_from_its_state_bit_for_bit() -> None:
    engine = LocalEngine(strict=True)
    settings: dict[str, Any] = {**PPO, "workers": 2, "inference": "central", "memory": "gru", "memory_size": 8}
    whole, other = (build(engine, "ppo", "CartPole-v1", **settings) for _ in range(2))
    for step in range(2):
        whole.step(step / STEPS)
    state = whole.get_state(restart=True)
    assert [one["exact"] for one in state["evaluators"]] == [True] * 4, "the learner, the server and both workers"
    whole.step(0.5)
    other.set_state(state)
    other.step(0.5)
    assert flat(engine, whole).tobytes() == flat(engine, other).tobytes()
    assert whole.updates == other.updates == 3
    engine.close()


# --- weights and versions ---


def test_weights_go_to_the_server_once_and_workers_hold_none() -> None:
    engine = LocalEngine(strict=True)
    optimizer = build(engine, "ppo", "CartPole-v1", workers=3, inference="central", **PPO)
    optimizer.step(0.0)
    told = engine.get(newest(optimizer.learner(), optimizer.samplers, 0.25))
    assert (told.flat.size, told.version, told.progress) == (0, 1, 0.25)
    server = engine.get(optimizer.samplers.server.call("get_state", False))["policy"]
    assert (server["version"], server["progress"]) == (1, 0.25)
    learner = engine.get(optimizer.learner().call("get_state", False))["policy"]
    assert all(np.array_equal(part, server["model"][name]) for name, part in learner["model"].items())
    for index in (1, 2, 3):
        state = engine.get(optimizer.samplers.handle(index).call("get_state", False))
        assert set(state["policy"]) == {"version", "progress"}
    engine.close()


def test_a_samples_version_is_the_lowest_it_was_played_with() -> None:
    engine = LocalEngine()
    algorithm, spec = algorithms.get("ppo"), EnvSpec("CartPole-v1")
    config = algorithm.configure(None, {**TINY, **PPO})
    make = partial(algorithm.policy, config, *spaces_of(spec), 1)
    server = engine.spawn(CentralServer, make, 1, 4, 16, None, 0.0, callers=2)
    policy = CentralPolicy(EngineClient(engine, server), advantages, config)
    obs = {"obs": np.zeros((4, 4), np.float32)}
    weights = make().get_weights()

    def swap(version: int) -> Any:
        return engine.get(server.call("set_weights", type(weights)(weights.flat, version, 0.5)))

    policy.set_weights(swap(5))
    swap(6)
    assert policy.act(obs, {}).action.shape == (4,) and policy.version == 6, "what it was told is out of date"
    swap(7)
    policy.act(obs, {})
    assert policy.version == 6 and policy.progress == 0.5
    policy.set_weights(swap(8))
    policy.act(obs, {}, explore=False)
    assert policy.version == 8
    engine.close()


def test_weights_are_swapped_under_workers_that_play_on(ray: Engine) -> None:
    optimizer = build(ray, "impala", "CartPole-v1", workers=2, inference="central")
    lags = []
    for step in range(30):
        values = optimizer.step(step / 30).metrics.values()
        lags.append(values["weight_lag_max"])
    assert optimizer.updates == 30 and 0 <= min(lags) and 0 < max(lags) < 20
    optimizer.close()


# --- what is refused ---


@pytest.mark.parametrize("optimizer", ["allreduce", "async_gradients", "parameter_server"])
def test_workers_that_learn_hold_their_policies(optimizer: str) -> None:
    with pytest.raises(ConfigError) as error:
        algorithms.get("a2c").configure(None, {"optimizer": optimizer, "workers": 2, "inference": "central"})
    assert str(error.value) == (
        f"--inference central does not fit --optimizer {optimizer}: its workers learn, and hold the policy for that; "
        "expected one of sync_samples, multi_device, async_samples"
    )


def test_envs_that_explore_by_shares_of_their_own_hold_their_policies() -> None:
    with pytest.raises(ConfigError) as error:
        algorithms.get("dqn").configure(None, {"workers": 2, "inference": "central"})
    assert str(error.value) == (
        "--inference central does not fit --optimizer sync_replay: each env of a worker explores by a share of its own, "
        "which a server of all workers' rows can't tell; expected local"
    )


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"inference": "central"}, "--workers is 0, expected at least 1: with --inference central they ask the server"),
        (
            {"inference": "central", "workers": 2, "engine": "ray", "gpus_per_worker": 0.5},
            "--gpus-per-worker 0.5 would not be read: with --inference central the server has the policy, on --device",
        ),
        ({"inference": "centrl"}, "--inference is 'centrl', expected one of local, central; did you mean 'central'?"),
        (
            {"inference_batch": 8},
            "--inference-batch 8 would not be read: --inference is local, and it goes with --inference central",
        ),
        (
            {"inference_wait_ms": 1},
            "--inference-wait-ms 1.0 would not be read: --inference is local, and it goes with --inference central",
        ),
        (
            {"inference": "central", "workers": 2, "inference_batch": 8},
            "--inference-batch would not be read: with --engine local workers play one after the other, "
            "and nobody is waited for",
        ),
        (
            {"inference": "central", "workers": 2, "inference_wait_ms": 1},
            "--inference-wait-ms would not be read: with --engine local workers play one after the other, "
            "and nobody is waited for",
        ),
    ],
)
def test_settings_that_make_no_sense_are_one_line(settings: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError) as error:
        algorithms.get("ppo").configure(None, settings)
    assert str(error.value) == line


# --- deaths ---


def pid(engine: Engine, handle: Handle) -> int:
    return int(engine.get(handle.ready)[0]["pid"])


def step_until(optimizer: Any, seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        optimizer.step(0.5)
    raise AssertionError("it goes on without its server")


@pytest.mark.parametrize(("algo", "optimizer"), [("ppo", "sync_samples"), ("impala", "async_samples")])
@pytest.mark.parametrize("where", ["local", "ray"])
def test_a_dead_server_ends_the_run_with_its_name(
    request: pytest.FixtureRequest, where: str, algo: str, optimizer: str
) -> None:
    engine: Engine = request.getfixturevalue("ray") if where == "ray" else LocalEngine()
    run = build(engine, algo, "CartPole-v1", workers=2, inference="central", optimizer=optimizer)
    run.step(0.0)
    server = run.samplers.server
    if where == "ray":
        threading.Timer(0.5, os.kill, (pid(engine, server), signal.SIGKILL)).start()
    else:
        engine.kill(server)
    began = time.monotonic()
    with pytest.raises(WorkerDied, match="server-0 is gone"):
        step_until(run, 30)
    assert time.monotonic() - began < 15 and run.samplers.replaced == 0
    run.close()


def test_a_dead_worker_is_replaced_and_nobody_waits_for_it(ray: Engine) -> None:
    run = build(ray, "ppo", "CartPole-v1", workers=2, inference="central", **PPO)
    run.step(0.0)
    for index in (1, 2):
        dying = pid(ray, run.samplers.handle(index))
        threading.Timer(0.05, os.kill, (dying, signal.SIGKILL)).start()
        until = time.monotonic() + 60
        while run.samplers.replaced < index or len(run.samplers.up) < 2:
            assert run.step(0.5).env_steps > 0 and time.monotonic() < until
    assert run.step(0.5).env_steps > TINY["envs"] * TINY["fragment"], "both play again"
    assert run.samplers.replaced == 2
    run.close()
