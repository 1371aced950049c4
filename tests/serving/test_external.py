"""Learning from simulators that connect: what is gathered, what is refused or left out, and how such a run begins and ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np
import pytest

import podium
from podium import cli
from podium.algorithms.common.on_policy import advantages
from podium.core.errors import CallTimedOut, PodiumError
from podium.core.metrics import Timers
from podium.core.spaces import Box, Dict, Discrete, MultiDiscrete
from podium.envs.sync import SyncVector
from podium.evaluation.collector import Collector
from podium.evaluation.simulators import Simulators, connecting
from podium.run.folder import RunFolder
from podium.serving.base import RunOver
from podium.serving.server import BadRequest
from podium.serving.simulator import Session, play
from podium.serving.speech import Listener, Moved, spaces_of
from tests.serving.outside import (
    ACTION,
    OBSERVATION,
    Counter,
    Match,
    Walk,
    free_port,
    hello,
    playing,
    says,
    start,
    step,
)

ROOT = Path(__file__).parents[2]
NOW = SimpleNamespace(gamma=0.9, gae_lambda=0.8, reward_scale=1.0, reward_clip=None)
SMALL = {"steps": 100, "envs": 2, "fragment": 16, "progress": False}


@pytest.fixture
def port() -> int:
    return free_port()


def walking(port: int, episodes: int | None = None, token: str = "", **how: Any) -> Any:
    """A simulator that walks, to be run in a thread."""
    return lambda: play(Walk(**how), f"127.0.0.1:{port}", episodes, token=token)


# --- what is gathered ---


@pytest.mark.parametrize("masked", [False, True])
def test_a_batch_is_what_the_collector_gathers(port: int, masked: bool) -> None:
    actor: Any = Counter()
    collector = Collector(SyncVector([lambda: Walk(masked=masked)], "walk"), actor, Timers(), [0])
    expected = [collector.collect(7) for _ in range(4)]
    with playing(walking(port, masked=masked)), closing(connecting(1, port=port, wait=10)) as source:
        gathering = source.collector(actor, Timers())
        for known in expected:
            batch = gathering.collect(7)
            assert batch.cols.keys() == known.cols.keys() and ("mask" in batch.cols) == masked
            for name, column in known.cols.items():
                np.testing.assert_array_equal(batch[name], column, name)
                assert batch[name].dtype == column.dtype, name
            goes_on = ~(known["terminated"] | known["truncated"])[-1]
            for name, part in known.first.items():
                np.testing.assert_array_equal(batch.first[name], np.where(known["start"][0][:, None], 0, part), name)
            for name, part in known.last.items():
                np.testing.assert_array_equal(batch.last[name][goes_on], part[goes_on], name)
            assert known.finals is not None and batch.finals is not None
            for mine, theirs in zip(vars(batch.finals).values(), vars(known.finals).values(), strict=True):
                np.testing.assert_equal(mine, theirs)
            learned = [advantages(actor, one, NOW)["advantage"] for one in (batch, known)]
            np.testing.assert_array_equal(*learned)
        finished = collector.take_finished()
        np.testing.assert_allclose(gathering.take_finished()[: len(finished)], finished, rtol=1e-6)


def test_simulators_fill_fragments_of_their_own(port: int) -> None:
    """Each column goes from row to row as its simulator did, whoever is quick or slow."""
    lengths = [(3, 4), (50, 7), (11,), (2,)]
    with playing(*(walking(port, lengths=own) for own in lengths)):
        with closing(connecting(6, port=port, wait=10)) as source:
            gathering = source.collector(Counter(), Timers())
            for _ in range(10):
                batch = gathering.collect(16)
                assert batch["valid"].all() and batch["action"].shape == (16, 6)
                over = (batch["terminated"] | batch["truncated"])[:-1]
                np.testing.assert_array_equal(batch["start"][1:], over)
                moved = batch["obs"][1:, :, 1] - batch["obs"][:-1, :, 1]
                np.testing.assert_array_equal(moved[~over], batch["action"][:-1][~over])
                assert (batch["obs"][1:, :, 1][over] == 0).all()
            assert gathering.figures().values() == {"simulators_connected": 4, "episodes_dropped": 0}


def poison(port: int, way: str) -> None:
    """An episode that is worth very much, and ends in its midst."""
    bad = {"obs": np.zeros(2, np.float32)}
    session = Session(f"127.0.0.1:{port}", OBSERVATION, ACTION)
    with closing(session):
        session.start(bad)
        session.step(bad, 1e6, False, False)
        session.step(bad, 1e6, False, False)
        if way == "cut off":
            session._channel.close()
        elif way != "leave":
            wrong = {"nan": np.full(2, np.nan, np.float32), "shape": np.zeros(3, np.float32), "dtype": np.zeros(2)}[way]
            with pytest.raises(BadRequest):
                session.step({"obs": wrong}, 1e6, False, False)


def test_nothing_is_learned_of_episodes_that_were_left(port: int) -> None:
    """A fragment holds two whole walks: an episode of poison, shorter than one, never fills it."""
    ways = ["leave", "cut off", "nan", "shape", "dtype"] * 20
    done = threading.Event()

    def simulate(ways: list[str]) -> None:
        for way in ways:
            play(Walk(lengths=(4,)), f"127.0.0.1:{port}", episodes=1)
            poison(port, way)

    def simulate_all() -> None:
        with playing(partial(simulate, ways[::2]), partial(simulate, ways[1::2])):
            pass
        done.set()
        play(Walk(lengths=(4,)), f"127.0.0.1:{port}")

    with playing(simulate_all), closing(connecting(1, port=port, wait=10)) as source:
        gathering = source.collector(Counter(), Timers())
        rows = 0
        while not done.is_set() or gathering.dropped < 100:
            batch = gathering.collect(8)
            rows += batch.steps
            assert batch["reward"].max() < 10 and batch["valid"].all()
            ends = np.arange(8) % 4 == 3
            np.testing.assert_array_equal((batch["terminated"] | batch["truncated"])[:, 0], ends)
            assert abs(advantages(Counter(), batch, NOW)["advantage"]).max() < 100
        assert gathering.dropped == 100 and rows >= 400
        assert all(length == 4 and total < 10 for total, length in gathering.take_finished())


def test_a_fragment_that_was_left_is_filled_by_another(port: int) -> None:
    left = threading.Event()

    def leave() -> None:
        play(Walk(lengths=(3,)), f"127.0.0.1:{port}", episodes=2)
        left.set()

    def follow() -> None:
        left.wait(20)
        play(Walk(lengths=(5,)), f"127.0.0.1:{port}")

    with playing(leave, follow), closing(connecting(1, port=port, wait=10)) as source:
        batch = source.collector(Counter(), Timers()).collect(10)
        np.testing.assert_array_equal(np.flatnonzero(batch["start"][:, 0]), [0, 3, 6])


def test_ppo_learns_from_four_simulators(port: int, tmp_path: Path) -> None:
    """Guessing is worth 5.3 of 16, and so is whatever is learned from rewards of other rows."""

    def simulate(seed: int) -> None:
        env = Match()
        env.reset(seed=seed)
        play(env, f"127.0.0.1:{port}")

    with playing(*(partial(simulate, seed) for seed in range(4))):
        settings = {"envs": 4, "fragment": 64, "lr": 5e-3, "gamma": 0.5, "progress": False}
        settings |= {"steps": 24_000, "stop_return": 15.0}  # who is slow has fewer fragments in an update
        result = podium.train("ppo", "external", env_args={"port": port}, out=tmp_path / "run", **settings)
    assert result["return_mean"] >= 15
    assert result["episodes"] >= result["env_steps"] // 16 - 4
    row = RunFolder(tmp_path / "run").read_metrics()[-1]
    assert (row["simulators_connected"], row["episodes_dropped"]) == (4, 0)
    manifest = json.loads((tmp_path / "run/checkpoints/latest/manifest.json").read_text())
    assert manifest["info"]["exact"] is False
    assert result.policy.predict(np.eye(3, dtype=np.float32)).tolist() == [0, 1, 2]


# --- what is refused ---

OBS = np.zeros(2, np.float32)
MASKED = {"mask": np.array([True, False, True]), "obs": OBS}


@pytest.mark.parametrize(
    ("events", "reason"),
    [
        ([b"\xff\xff\xff"], "no Event"),
        ([start()], "the first event is start, expected hello"),
        ([hello(observation="{")], "observation_space is '{', expected the JSON of a space"),
        ([hello(action='{"discrete": "many", "start": 0}')], "action_space is"),
        ([hello(action='{"discrete": 0, "start": 0}')], "expected the JSON of a space"),
        ([hello(observation='{"box": [[0], [1]], "shape": [1], "dtype": "O"}')], "expected the JSON of a space"),
        ([hello(action=Dict({"a": ACTION}))], "action_space is Dict(a: Discrete(3)), expected one Box, Discrete"),
        ([hello(observation=Box.of(0, 1, (3,)))], "observation_space is Box[3] float32 (0 to 1), expected Box[2]"),
        ([hello(observation=Box.of(0, 1, (2,)))], "other simulators have"),
        ([hello(action=Discrete(4))], "action_space is Discrete(4), expected Discrete(3)"),
        ([hello(), hello()], "hello between episodes, expected start"),
        ([hello(), step()], "step between episodes, expected start"),
        ([hello(), start(), start()], "start in the midst of an episode, expected step"),
        ([hello(), start(obs=np.zeros(3, np.float32))], "obs has shape [3], expected [2]"),
        ([hello(), start(obs=np.zeros(2))], "obs is float64, expected float32"),
        ([hello(), start(obs=np.array([0, np.inf], np.float32))], "obs holds NaN or infinity"),
        ([hello(), start(camera=OBS)], "no column 'obs'; there are camera"),
        ([hello(), start(obs=OBS, camera=OBS)], "unknown columns: camera"),
        ([hello(), start(**MASKED)], "a mask, unlike the run's other simulators"),
        ([hello(), start(), step(float("nan"))], "reward is nan, expected a finite number"),
        ([hello(), start(), step(1e60)], "reward is 1e+60, expected a finite number"),
        ([hello(), start(), step(obs=np.full(2, np.nan, np.float32))], "obs holds NaN"),
        ([hello(), start(), b"\xff"], "no Event"),
    ],
)
def test_a_simulator_that_is_wrong_is_told_why_and_the_run_goes_on(run_on: Any, events: Any, reason: str) -> None:
    port, gathering = run_on
    before = gathering.batches
    assert says(port, *events)[0] == "INVALID_ARGUMENT"
    assert reason in says(port, *events)[1]
    limit = time.monotonic() + 20
    while gathering.batches < before + 2 and time.monotonic() < limit:
        time.sleep(0.01)
    assert gathering.batches >= before + 2


class Gathering(threading.Thread):
    """A run that goes on and on, without learning."""

    def __init__(self, source: Simulators) -> None:
        super().__init__(daemon=True)
        self.collector, self.batches, self.ended = source.collector(Counter(), Timers()), 0, threading.Event()

    def run(self) -> None:
        while not self.ended.is_set():
            assert np.isfinite(self.collector.collect(8)["reward"]).all()
            self.batches += 1


@pytest.fixture(scope="module")
def run_on() -> Iterator[tuple[int, Gathering]]:
    """A run with one good simulator: its port, and what it has gathered."""
    port = free_port()
    with playing(walking(port)), closing(connecting(1, port=port, wait=10)) as source:
        gathering = Gathering(source)
        gathering.start()
        yield port, gathering
        assert gathering.is_alive()
        gathering.ended.set()
        gathering.join(20)


def heard(observation: Any, action: Any, *events: Any) -> Any:
    """What is understood of the last event."""
    known = spaces_of(hello(observation, action).hello)
    listener = Listener(known, lambda given: True)
    return [listener.hear(event.SerializeToString()) for event in events][-1]


def test_numbers_are_the_envs_own_and_masks_are_looked_at() -> None:
    action = MultiDiscrete((2, 3))
    both = Dict({"at": Discrete(4, start=10), "grid": Box.of(0, 255, (2, 2), np.uint8)})
    grid, mask = np.zeros((2, 2), np.uint8), np.array([True, False, True, True, False])
    first = {"obs/at": np.array(12), "obs/grid": grid, "mask": mask}
    began = heard(both, action, start(**first))
    assert began.obs["obs/at"].tolist() == [2] and began.obs["obs/grid"].shape == (1, 2, 2)
    assert began.obs["mask"].tolist() == [mask.tolist()]
    for change, reason in [
        ({"obs/at": np.array(14)}, "obs/at is 14, outside its declared Discrete(4, start=10)"),
        ({"mask": mask[:4]}, "mask is bool [4], expected bool [5]"),
        ({"mask": mask.astype(np.int8)}, "mask is int8"),
        ({"mask": mask & (np.arange(5) < 2)}, "no legal action"),
    ]:
        with pytest.raises(BadRequest) as refused:
            heard(both, action, start(**{**first, **change}))
        assert reason in str(refused.value)
    last = step(1.0, **{"obs/at": np.array(10), "obs/grid": grid, "mask": mask[:1]})
    last.step.terminated = True
    moved = heard(both, action, start(**first), last)
    assert isinstance(moved, Moved) and moved.over and moved.obs.keys() == {"obs/at", "obs/grid"}


def test_actions_are_the_envs_own(port: int) -> None:
    got: list[Any] = []

    def simulate() -> None:
        session = Session(f"127.0.0.1:{port}", OBSERVATION, Discrete(3, start=-1))
        with closing(session), pytest.raises(RunOver):
            got.append(session.start({"obs": np.full(2, 1, np.float32)}))
            while True:
                got.append(session.step({"obs": OBS}, 0.0, False, False))

    with playing(simulate), closing(connecting(1, port=port, wait=10)) as source:
        batch = source.collector(Counter(), Timers()).collect(4)
    assert [int(action) for action in got[:4]] == (batch["action"][:, 0] - 1).tolist() == [1, 0, 1, -1]


# --- how it begins and ends ---


def command(port: int, out: Path, *words: str) -> int:
    return cli.main(["train", "ppo", "external", "--port", str(port), "--out", str(out), "--quiet", *words])


def test_a_run_that_nobody_comes_to_ends(port: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    began = time.monotonic()
    assert command(port, tmp_path / "run", "--wait", "0.5") == 2
    assert time.monotonic() - began < 10
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == f"podium: waiting for a simulator on 127.0.0.1:{port}"
    assert lines[-1] == f"podium: no simulator came to 127.0.0.1:{port} within 0.5 s (--wait)"
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--workers", "2"], "--workers is 2, expected 0 with env external"),
        (["--workers", "auto"], "--workers is auto, expected 0"),
        (["--optimizer", "multi_device"], "--optimizer is multi_device, expected sync_samples"),
        (["--engine", "ray"], "--engine is ray, expected local"),
        (["--eval-every", "100"], "--eval-every is 100, expected none"),
        (["--frame-stack", "2"], "--frame-stack is 2, expected 1"),
        (["--time-limit", "9"], "--time-limit is 9, expected none"),
        (["--host", "0.0.0.0"], "--host 0.0.0.0 is not this machine alone: give a token by PODIUM_TOKEN or --token"),
        (["--token", ""], "--token is empty"),
        (["--wait", "0"], "--wait is '0', expected a number above 0"),
        (["--env-arg", "prot=3"], "external has no argument 'prot'; did you mean 'port'?"),
        (["--env-arg", "port=3"], "--env-arg port is given twice"),
    ],
)
def test_what_makes_no_sense_is_refused_at_once(
    port: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], reason: str
) -> None:
    began = time.monotonic()
    assert command(port, tmp_path / "run", *words) == 2
    assert time.monotonic() - began < 10
    (line,) = capsys.readouterr().err.splitlines()
    assert reason in line


def test_what_learns_from_a_replay_is_refused(port: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", "dqn", "external", "--port", str(port)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "--optimizer sync_replay does not fit env external" in line and "such as ppo" in line


def test_ports_are_looked_at(port: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--port", "many"], ["--port", "70000"], ["--port", "-1"]):
        assert cli.main(["train", "ppo", "external", *words]) == 2
    assert cli.main(["train", "ppo", "external"]) == 2
    assert cli.main(["plan", "ppo", "external", "--port", str(port)]) == 2
    assert cli.main(["train", "ppo", "CartPole-v1", "--port", str(port)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert all("expected a whole number from 0 to 65535" in line for line in lines[:2])
    assert "on which port do simulators connect? give --port" in lines[3]
    assert "external has no plan" in lines[4]
    assert "CartPole-v1 has no argument 'port'" in lines[5]
    with playing(walking(port)), closing(connecting(1, port=port, wait=10)):
        other = subprocess.run(
            [sys.executable, "-m", "podium.cli", "train", "ppo", "external", "--port", str(port), "--wait", "5"],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            timeout=60,
            check=False,
        )
    assert other.returncode == 2
    assert other.stderr.splitlines()[-1] == f"podium: 127.0.0.1:{port} can't be listened on: is the port taken?"


def test_a_token_is_asked_for(port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By whoever has set one; the run folder doesn't tell it, and a run that goes on takes it from the environment."""

    def knock() -> None:
        for token in (None, "wrong"):
            code, line = says(port, hello(), token=token)
            assert code == "UNAUTHENTICATED" and line.startswith("the token is missing or wrong: ")
        play(Walk(), f"127.0.0.1:{port}", token="secret-word")

    out = tmp_path / "run"
    with playing(knock):
        args = {"port": port, "token": "secret-word", "wait": 10}
        podium.train("ppo", "external", env_args=args, out=out, **SMALL)
    assert not [file for file in out.rglob("*") if file.is_file() and b"secret-word" in file.read_bytes()]
    monkeypatch.setenv("PODIUM_TOKEN", "secret-word")
    with playing(knock):
        assert podium.resume(out, 200, progress=False)["env_steps"] >= 200


def test_a_run_that_everybody_left_ends_after_a_checkpoint(
    port: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("podium.driver.KEEP_EVERY_S", 0.0)
    monkeypatch.setattr("podium.driver.KEEP_SHARE", 0.0)
    with playing(walking(port, episodes=40)):
        assert command(port, tmp_path / "run", "--wait", "2", "--envs", "2", "--fragment", "16", "--epochs", "1") == 1
    line = capsys.readouterr().err.splitlines()[-1]
    assert f"no simulator was connected to 127.0.0.1:{port} for 2 s (--wait)" in line
    result = RunFolder(tmp_path / "run").read_result()
    assert result is not None and result["status"] == "failed" and result["env_steps"] > 0
    assert (tmp_path / "run/checkpoints/latest/manifest.json").exists()
    assert podium.load(tmp_path / "run").predict(OBS) in (0, 1, 2)
    with pytest.raises(PodiumError, match="simulators that connect can only be trained on"):
        podium.evaluate(tmp_path / "run")


def test_a_signal_ends_a_run_that_waits(port: int, tmp_path: Path) -> None:
    words = ["train", "ppo", "external", "--port", str(port), "--out", str(tmp_path / "run"), "--quiet"]
    run = subprocess.Popen(
        [sys.executable, "-m", "podium.cli", *words, "--envs", "2", "--fragment", "16", "--epochs", "1"],
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    try:
        play(Walk(), f"127.0.0.1:{port}", episodes=40)  # then the run waits for somebody
        run.send_signal(signal.SIGTERM)
        began = time.monotonic()
        assert run.wait(20) == 143
        assert time.monotonic() - began < 10
    finally:
        run.kill()
        run.communicate()
    assert (tmp_path / "run/checkpoints/latest/manifest.json").exists()


def test_a_simulator_whose_run_dies_is_told(port: int) -> None:
    with pytest.raises(CallTimedOut, match=f"127.0.0.1:{port} did not answer within"):
        Session(f"127.0.0.1:{port}", OBSERVATION, ACTION, timeout=0.5)


def test_a_simulator_that_falls_silent_is_let_go(port: int) -> None:
    """While another one plays on."""

    def doze() -> None:
        session = Session(f"127.0.0.1:{port}", OBSERVATION, ACTION)
        with closing(session):
            session.start({"obs": OBS})
            time.sleep(3.0)
            with pytest.raises(BadRequest, match="nothing was said for 2 s"):
                session.step({"obs": OBS}, 0.0, False, False)
        awake.set()

    awake = threading.Event()
    with playing(walking(port), doze), closing(connecting(1, port=port, wait=2)) as source:
        gathering = source.collector(Counter(), Timers())
        while not awake.is_set() or not gathering.dropped:
            gathering.collect(8)
        assert gathering.dropped == 1


def test_health_and_reflection_need_what_they_should(port: int) -> None:
    from grpc_health.v1 import health_pb2, health_pb2_grpc
    from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

    with playing(walking(port, token="t")) as _, closing(connecting(1, port=port, wait=10, token="t")):
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            asked = health_pb2.HealthCheckRequest(service="podium.v1.Training")
            assert health_pb2_grpc.HealthStub(channel).Check(asked, timeout=10).status == 1
            reflected = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo
            question = [reflection_pb2.ServerReflectionRequest(list_services="")]
            (answer,) = reflected(iter(question), metadata=[("authorization", "Bearer t")], timeout=10)
            assert "podium.v1.Training" in {one.name for one in answer.list_services_response.service}
            with pytest.raises(grpc.RpcError, match="UNAUTHENTICATED"):
                list(reflected(iter(question), timeout=10))
