"""`podium serve` and the policy behind it: the actions are those that playing gives, whoever asks, until a signal."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import podium
from podium.cli import main
from podium.core.spaces import Columns
from podium.serve import Checkpoint
from podium.serving.policy import Served
from podium.serving.server import BadRequest, InferenceServer, Request
from tests.processes import descendants, left, listening_beyond_loopback, process
from tests.resume_tools import environment, start
from tests.test_api import Counted, Reach

QUICK: dict[str, Any] = {"steps": 200, "fragment": 16, "epochs": 1, "progress": False}
STARTS_S = 60.0


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Small runs of several kinds."""
    root = tmp_path_factory.mktemp("served")
    kinds: dict[str, tuple[Any, dict[str, Any]]] = {
        "cartpole": ("CartPole-v1", {"normalize_obs": True}),
        "recurrent": ("toy:cue", {"memory": "gru", "memory_size": 8}),
        "masked": ("toy:masked", {}),
        "dict": (Reach, {}),
        "stretched": (Reach, {"rescale_actions": True}),
        "counted": (Counted, {}),
    }
    for name, (env, settings) in kinds.items():
        podium.train("ppo", env, out=root / name, **{**QUICK, **settings})
    return {name: root / name for name in kinds}


def served(run: Path) -> Served:
    player = podium.load(run)
    return Served(player.policy, player.observation_space, player.action_space, player.bounds)


def ask(server: InferenceServer, columns: Columns, kind: str = "best") -> Columns:
    """The answer, or what was raised, as a caller gets it."""
    server.submit(Request(columns, len(next(iter(columns.values()))), kind))
    (reply,) = server.poll(0.0)
    if reply.error is not None:
        raise reply.error
    return reply.columns


OBSERVED: dict[str, tuple[Any, Columns]] = {}
RNG = np.random.default_rng(0)
for kind, rows in (
    ("cartpole", RNG.normal(size=(20, 4)).astype(np.float32)),
    ("masked", RNG.random((20, 6)).astype(np.float32)),
    ("counted", np.arange(20) % 3 + 10),
):
    OBSERVED[kind] = (rows, {"obs": rows})
AT, GEAR = RNG.random((20, 2)).astype(np.float32), np.arange(20) % 3
for kind in ("dict", "stretched"):
    OBSERVED[kind] = ({"at": AT, "gear": GEAR}, {"obs/at": AT, "obs/gear": GEAR})


@pytest.mark.parametrize("kind", sorted(OBSERVED))
def test_served_actions_are_those_that_a_player_takes(runs: dict[str, Path], kind: str) -> None:
    seen, columns = OBSERVED[kind]
    server = served(runs[kind]).server(256, 0.0)
    best = ask(server, dict(columns))["action"]
    played = podium.load(runs[kind]).predict(seen)
    assert best.dtype == played.dtype and best.tolist() == played.tolist()
    drawn = [ask(server, dict(columns), "act")["action"].tolist() for _ in range(3)]
    assert drawn[0] != drawn[1] or drawn[1] != drawn[2]
    values = ask(server, dict(columns), "values")["value"]
    assert values.shape == (20,) and np.isfinite(values).all()
    one = {name: column[3:4].copy() for name, column in columns.items()}
    assert np.allclose(ask(server, one)["action"], best[3:4], atol=1e-6)


def test_masks_are_obeyed_beside_rows_without_one(runs: dict[str, Path]) -> None:
    server = served(runs["masked"]).server(256, 0.0)
    rows = OBSERVED["masked"][0][:6]
    for kind in ("best", "act"):
        assert ask(server, {"obs": rows, "mask": np.eye(6, dtype=bool)}, kind)["action"].tolist() == [0, 1, 2, 3, 4, 5]
    server.submit(Request({"obs": rows}, 6, "best", "free"))
    server.submit(Request({"obs": rows, "mask": np.eye(6, dtype=bool)}, 6, "best", "masked"))
    replies = {reply.tag: reply.columns["action"].tolist() for reply in server.poll(0.0)}
    assert replies == {"free": podium.load(runs["masked"]).predict(rows).tolist(), "masked": [0, 1, 2, 3, 4, 5]}
    assert server.stats.passes == 3


def test_a_recurrent_policys_state_travels_with_its_caller(runs: dict[str, Path]) -> None:
    """Two episodes side by side on a server that remembers nobody, and each alone with a player that remembers."""
    server = served(runs["recurrent"]).server(256, 0.0)
    episodes = np.random.default_rng(1).random((2, 5, 3)).astype(np.float32)
    states: list[Columns] = [{}, {}]
    asked: list[list[np.ndarray]] = [[], []]
    for t in range(5):
        for i in (0, 1):
            server.submit(Request({"obs": episodes[i, t : t + 1], **states[i]}, 1, "best", i))
        for reply in server.poll(0.0):
            assert reply.error is None
            states[reply.tag] = {name: column for name, column in reply.columns.items() if name != "action"}
            asked[reply.tag].append(reply.columns["action"][0])
    assert server.stats.passes == 5 and states[0] and all(name.startswith("state/") for name in states[0])
    for i in (0, 1):
        player = podium.load(runs["recurrent"])
        for row in episodes[i]:
            player.predict(row)
        for name, part in player._state.items():
            assert np.allclose(states[i][f"state/{name}"], part, atol=1e-6) and part.any()
    with pytest.raises(BadRequest, match=r"state/\w+ holds NaN"):
        ask(server, {"obs": episodes[0, :1], **{name: part * np.nan for name, part in states[0].items()}})


@pytest.mark.parametrize(
    ("kind", "columns", "line"),
    [
        ("counted", {"obs": np.array([13])}, r"obs holds values outside its Discrete\(3"),
        ("counted", {"obs": np.array([0])}, "obs holds values outside its"),
        (
            "masked",
            {"obs": np.zeros((1, 6), np.float32), "mask": np.zeros((1, 6), bool)},
            "a mask with no legal action",
        ),
        ("dict", {"obs/at": np.zeros((1, 2), np.float32)}, "no column 'obs/gear'; there are obs/at"),
        ("dict", {"obs/at": AT, "obs/gear": GEAR, "mask": np.ones((20, 2), bool)}, "unknown columns: mask"),
    ],
    ids=["too high", "too low", "mask", "missing", "no masks"],
)
def test_numbers_that_would_spoil_a_pass_are_refused_alone(
    runs: dict[str, Path], kind: str, columns: Columns, line: str
) -> None:
    server = served(runs[kind]).server(256, 0.0)
    good = {name: column[:1].copy() for name, column in OBSERVED[kind][1].items()}
    server.submit(Request(good, 1, "best", "good"))
    with pytest.raises(BadRequest, match=line):
        server.submit(Request(columns, len(next(iter(columns.values()))), "best", "bad"))
        replies = {reply.tag: reply for reply in server.poll(0.0)}
        assert replies["good"].error is None
        raise replies["bad"].error or AssertionError("answered")


# --- the command ---


@contextmanager
def serving(run: Path, *words: object) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The command, and the line it begins with."""
    command = start("serve", run, *words)
    try:
        assert command.stdout is not None
        yield command, command.stdout.readline().strip()
    finally:
        command.kill()
        command.communicate()


def stopped(command: subprocess.Popen[str], number: signal.Signals) -> tuple[int, str, str]:
    began = time.monotonic()
    command.send_signal(number)
    out, err = command.communicate(timeout=20)
    assert time.monotonic() - began < 8
    return command.returncode, out, err


def test_a_run_is_served_until_ctrl_c(runs: dict[str, Path]) -> None:
    rows, columns = OBSERVED["cartpole"]
    with serving(runs["cartpole"]) as (command, line):
        said, _, address = line.rpartition(" answers at ")
        assert said == f"{runs['cartpole']} latest (version 2)" and address.startswith("grpc:127.0.0.1:"), line
        own = process(command.pid)
        assert own is not None and listening_beyond_loopback([own, *descendants(command.pid)]) == []
        with closing(podium.connect(address)) as client:
            for _ in range(20):
                answer = client.ask(columns, "best")
            assert answer.columns["action"].tolist() == podium.load(runs["cartpole"]).predict(rows).tolist()
            assert answer.version == 2
            with pytest.raises(BadRequest, match=r"obs has shape \[1, 3\], expected \[1, 4\]"):
                client.ask({"obs": np.zeros((1, 3), np.float32)}, "best")
        code, out, err = stopped(command, signal.SIGINT)
        assert (code, err) == (130, "")
        lines = out.splitlines()
        assert lines[0] == "20 requests with 400 rows in 20 passes; 1 refused, 0 failed; version 2"
        assert [line.split()[0] for line in lines[1:]] == ["latency", "rows", "queue"]
        assert left([own]) == []


def test_as_json_with_a_token_until_it_is_terminated(runs: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "token").write_text("s3cret\n")
    words = ("--host", "0.0.0.0", "--token-file", tmp_path / "token", "--max-wait-ms", 50, "--json")
    with serving(runs["cartpole"], *words) as (command, line):
        begun = json.loads(line)
        assert begun["pid"] == command.pid and begun["address"].startswith("grpc:0.0.0.0:")
        with closing(podium.connect(begun["address"].replace("0.0.0.0", "127.0.0.1"), token="s3cret")) as client:
            began = time.monotonic()
            client.ask(OBSERVED["cartpole"][1], "act")
            assert time.monotonic() - began >= 0.045
        code, out, err = stopped(command, signal.SIGTERM)
        assert (code, err) == (143, "")
        stats = json.loads(out)
        assert (stats["requests"], stats["rows"], stats["version"]) == (1, 20, 2) and stats["latency_s"]["p50"] > 0.04


def test_newer_checkpoints_are_followed_and_no_request_is_dropped(tmp_path: Path) -> None:
    run = tmp_path / "run"
    podium.train("ppo", "CartPole-v1", out=run, lr=0.01, **{**QUICK, "epochs": 4})
    rows, columns = OBSERVED["cartpole"]
    values: dict[int, list[float]] = {}
    over = threading.Event()
    errors: list[BaseException] = []
    with serving(run, "--follow") as (_, line):
        address = line.rpartition(" ")[2]

        def work() -> None:
            try:
                with closing(podium.connect(address)) as client:
                    while not over.is_set():
                        answer = client.ask(columns, "values")
                        seen = values.setdefault(answer.version, answer.columns["value"].tolist())
                        assert seen == pytest.approx(answer.columns["value"].tolist(), abs=1e-4)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        newest = max_version(values)
        for steps in (400, 600):
            podium.resume(run, steps=steps, progress=False)
            limit = time.monotonic() + STARTS_S
            while max_version(values) == newest and not errors and time.monotonic() < limit:
                time.sleep(0.05)
            newest = max_version(values)
        over.set()
        for thread in threads:
            thread.join(20)
    assert errors == [] and len(values) >= 3
    player = podium.load(run)
    assert newest == player.policy.version
    assert values[newest] == pytest.approx(player.policy.values({"obs": rows}, {}).tolist(), abs=1e-4)
    assert len({tuple(np.round(seen, 2)) for seen in values.values()}) == len(values), "each has its own weights"


def test_what_cannot_take_over_is_told_and_passed_over(
    runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(runs["cartpole"], tmp_path / "run", symlinks=True)
    checkpoint = Checkpoint(str(run), "latest")
    assert checkpoint.newer() is None, "nothing is new"
    shutil.rmtree(run)
    assert checkpoint.newer() is None, "it may be just being written"
    shutil.copytree(runs["counted"], run, symlinks=True)
    assert checkpoint.newer() is None
    assert (
        capsys.readouterr().err == f"podium: latest of {run} is passed over: it is another run's, with other spaces\n"
    )
    shutil.rmtree(run)
    shutil.copytree(runs["cartpole"], run, symlinks=True)
    newer = checkpoint.newer()
    assert newer is not None and newer.version == checkpoint.served.version
    policy = run / "checkpoints" / "latest" / "policy.safetensors"
    policy.write_bytes(policy.read_bytes()[:-1])
    os.utime(run / "checkpoints" / "latest" / "manifest.json", (1, 1))
    assert checkpoint.newer() is None and "part 'policy' is damaged" in capsys.readouterr().err
    assert checkpoint.newer() is None and capsys.readouterr().err == "", "it is told once"


def max_version(values: dict[int, Any]) -> int:
    """The newest version that has answered; waits for the first."""
    limit = time.monotonic() + STARTS_S
    while not values and time.monotonic() < limit:
        time.sleep(0.02)
    return max(values)


def test_mistakes_are_one_line(runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = runs["cartpole"]
    for words, line in (
        (("nowhere",), "nowhere does not exist"),
        ((tmp_path,), "holds no run"),
        ((run, "--checkpoint", "lates"), "no checkpoint 'lates'; there are: "),
        (
            (run, "--host", "0.0.0.0"),
            "0.0.0.0 is not the loopback interface (127.0.0.1), and listening elsewhere needs",
        ),
        ((run, "--token", "a", "--token-file", "b"), "--token and --token-file can't go together"),
        ((run, "--token-file", tmp_path / "none"), f"can't read --token-file {tmp_path / 'none'}"),
        ((run, "--token", "two words"), "the token is empty or holds more than printable ASCII"),
        ((run, "--port", 70000), "port is 70000, expected 0"),
        ((run, "--port", "x"), "argument --port: invalid int value: 'x'"),
        ((run, "--max-batch", 0), "'0', expected a whole number from 1"),
        ((run, "--max-wait-ms", "long"), "'long', expected a number from 0 to 60000"),
        ((run, "--max-wait", 5), "unrecognized arguments: --max-wait 5; did you mean '--max-wait-ms'?"),
        (("memory://runs/a", "--follow"), "--follow needs a run's folder on this machine"),
    ):
        assert main(["serve", *map(str, words)]) == 2, words
        out, err = capsys.readouterr()
        assert out == "" and err.startswith("podium: ") and err.count("\n") == 1 and line in err, err


def test_without_grpc_the_extra_is_named(runs: dict[str, Path]) -> None:
    code = "import sys; sys.modules['grpc'] = None; from podium.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "serve", str(runs["cartpole"])]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr == (
        "podium: serving over gRPC needs an extra that is not installed: pip install 'podium[serve]'\n"
    )
