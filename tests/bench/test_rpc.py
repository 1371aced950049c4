"""The RPC benchmark: flags become rows, rows are measured, and the report says what was measured in the known words."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from podium.bench.rpc import bare_rpc, report, settings
from podium.bench.rpc.policy import DummyPolicy
from podium.bench.rpc.roles import Observer, _wait_until
from podium.bench.rpc.run import Found
from podium.bench.rpc.settings import Settings
from podium.cli import main
from podium.core.errors import UsageError
from podium.run.plot import plot_runs
from podium.serving.base import Answer

ROOT = Path(__file__).parents[2]
METRICS = ("agent latency (seconds)", "agent throughput", "observer latency (seconds)", "observer throughput")
QUICK = ("--episodes", "2", "--steps", "10", "--warmup", "3", "--state-size", "4-2")


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def bench(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["bench", "rpc", *QUICK, *words, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert found == json.loads(Path("benchmark_report.json").read_text())
    return found


# --- measured ---


def test_the_launcher_prints_and_writes_what_its_users_know() -> None:
    words = ["--world_size=4,3", "--master_addr=127.0.0.1", "--master_port=29511", "--batch=True", "--nlayers=5"]
    command = [sys.executable, str(ROOT / "launcher.py"), *words, *QUICK, "--output_file_path=out/report.json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=True)
    lines = done.stdout.splitlines()
    assert lines[0] == lines[2] == "-" * len(lines[1])
    assert lines[1] == "PyTorch distributed rpc benchmark reinforcement learning suite: torch_rpc"
    assert "world_size : 4 3" in lines and "state_size : 4-2" in lines and "x_axis_name : world_size" in lines
    (head,) = [number for number, line in enumerate(lines) if line.startswith("world_size | agent latency (seconds)")]
    assert [name.strip() for name in lines[head].split("|")] == ["world_size", *METRICS]
    assert lines[head + 1].split() == ["|", "p50", "p75", "p90", "p95"] * 4
    assert [line.split()[0] for line in lines[head + 2 : head + 4]] == ["4", "3"]
    assert done.stderr == ""
    found = json.loads(Path("out/report.json").read_text())
    assert found["x_axis_name"] == "world_size" and found["world_size"] == [4, 3] and found["batch"] is True
    for row, world in zip(found["benchmark_results"], (4, 3), strict=True):
        assert (row["world_size"], row["transport"], row["mean batch"]) == (world, "torch_rpc", world - 2)
        assert row["requests"] == 20 * (world - 2), "the warm-up is not among them"
        assert all(list(row[name]) == ["p50", "p75", "p90", "p95", "p99", "p99.9"] for name in METRICS)
        assert 0 < row["agent latency (seconds)"]["p50"] < row["observer latency (seconds)"]["p50"]
        assert row["requests per second"] > 0 and row["cpu seconds per request"] > 0 and row["cores"] >= 1
        assert row["versions"]["torch"] and "bare requests per second" not in row


def test_transports_are_an_axis_with_a_bare_echo_beside_each(capsys: pytest.CaptureFixture[str]) -> None:
    found = bench(capsys, "--transport", "torch_rpc,grpc,shm", "--world-size", "4", "--master-port", "29512")
    rows = {row["transport"]: row for row in found["benchmark_results"]}
    assert list(rows) == ["torch_rpc", "grpc", "shm"] and found["x_axis_name"] == "transport"
    for row in rows.values():
        assert row["ratio to bare"] == pytest.approx(row["requests per second"] / row["bare requests per second"])
    assert plot_runs([Path("benchmark_report.json")]).stat().st_size > 10_000


def test_one_row_has_no_label_and_rounds_keep_the_median(capsys: pytest.CaptureFixture[str]) -> None:
    found = bench(capsys, "--transport", "shm", "--batch", "False", "--rounds", "3", "--world-size", "4")
    assert found["x_axis_name"] is None
    (row,) = found["benchmark_results"]
    rates = [one["requests per second"] for one in row["rounds"]]
    assert len(rates) == 3 and row["requests per second"] == sorted(rates)[1]
    assert row["mean batch"] == 1.0


def test_an_open_loop_counts_from_when_a_request_was_due(capsys: pytest.CaptureFixture[str]) -> None:
    found = bench(capsys, "--transport", "shm", "--rate", "100,1000000", "--world-size", "4")
    slow, fast = found["benchmark_results"]
    assert slow["requests per second"] == pytest.approx(100, rel=0.3) and slow["due per second"] == 100
    assert fast["requests per second"] < 500_000, "a million a second is past saturation"
    # Past it the queue grows to the end: the last waits for about as long as everything takes.
    assert fast["observer latency (seconds)"]["p99.9"] > 0.5 * 40 / fast["requests per second"]


# --- what counts ---


class Slow:
    """A client whose every answer takes 20 ms."""

    def ask(self, columns: Any, kind: str = "act", timeout: float = 1.0) -> Answer:
        import time

        time.sleep(0.02)
        return Answer({"action": np.zeros(1, np.int64)}, 0)


def observed(monkeypatch: pytest.MonkeyPatch, **given: Any) -> np.ndarray:
    import time

    observer = Observer(Settings(transport="shm", world_size=3, state_size="2", episodes=1, steps=10, **given), 0)
    monkeypatch.setattr(observer, "_client", Slow())
    began, ended, latencies = observer.play(time.monotonic())
    assert ended - began >= 0.2 and latencies.shape == (10,)
    return latencies


def test_latency_is_from_the_request_and_of_a_schedule_from_when_it_was_due(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = observed(monkeypatch)
    assert closed.min() >= 0.02 and np.median(closed) < 0.035
    queued = observed(monkeypatch, rate=100.0)  # due every 10 ms, answered every 20
    assert (np.diff(queued) > 0.005).all() and queued[-1] > 0.1


def test_what_is_due_later_is_waited_for_and_what_was_due_earlier_is_not() -> None:
    import time

    now = time.monotonic()
    assert _wait_until(now - 5) == now - 5
    assert _wait_until(now + 0.05) == now + 0.05 and time.monotonic() >= now + 0.05


def test_figures_are_those_of_the_definitions() -> None:
    passes = np.array([[2, 0.001], [2, 0.002], [4, 0.002]])
    found = Found(np.array([0.004, 0.002, 0.001, 0.004, 0.004, 0.002, 0.001, 0.005]), passes, 0.5, 0.08, 32.0)
    row = report.row(Settings(), [found])
    assert row["agent latency (seconds)"]["p50"] == 0.002
    assert row["agent throughput"]["p50"] == 2000.0 and row["agent throughput"]["p95"] == 2000.0
    assert row["observer latency (seconds)"]["p50"] == 0.003
    assert row["observer throughput"]["p50"] == pytest.approx((250 + 500) / 2), "of each request's own, not 1 / median"
    assert row["requests per second"] == 16.0 and row["mean batch"] == pytest.approx(8 / 3)
    assert row["cpu seconds per request"] == 0.01 and row["ratio to bare"] == 0.5


def test_the_policy_is_linear_layers_and_a_softmax_over_each_rows_actions() -> None:
    policy = DummyPolicy(8, 3, 5, seed=1)
    assert [tuple(weight.shape) for weight, _ in policy._layers] == [(8, 5), (5, 5), (5, 5), (5, 5)]
    states = np.random.default_rng(1).random((6, 2, 4), dtype=np.float32)
    likely = policy.probabilities(states).detach().numpy()
    assert likely.shape == (6, 5) and np.allclose(likely.sum(1), 1.0)
    x = states.reshape(6, 8).astype(np.float64)
    for weight, bias in policy._layers:
        x = x @ weight.numpy() + bias.numpy()
    assert np.allclose(likely, np.exp(x) / np.exp(x).sum(1, keepdims=True), atol=1e-6)
    drawn = np.concatenate([policy.act({"obs": states})["action"] for _ in range(500)])
    assert drawn.shape == (3000,) and np.abs(np.bincount(drawn, minlength=5) / 3000 - likely.mean(0)).max() < 0.04


# --- flags ---


def test_published_defaults() -> None:
    one, axis = settings.read({})
    assert axis is None and one.passes == (8, None) and one.shape == (10, 20, 10) and one.requests == 1000
    assert (one.transport, one.world_size, one.nlayers, one.out_features, one.batch) == ("torch_rpc", 10, 5, 10, True)


@pytest.mark.parametrize(
    ("words", "passes"),
    [
        ({"batch": "False"}, (1, 0.0)),
        ({"max_batch": "4"}, (4, 0.0)),
        ({"max_wait_ms": "2"}, (8, 0.002)),
        ({"max_batch": "3", "max_wait_ms": "1.5"}, (3, 0.0015)),
        ({"rate": "100"}, (8, 0.0)),
    ],
)
def test_passes(words: dict[str, str], passes: tuple[int, float | None]) -> None:
    assert settings.read(words)[0].passes == passes


def test_a_list_is_the_axis() -> None:
    one, axis = settings.read({"batch": "True,false", "world_size": "5"})
    assert axis is not None and axis.name == "batch"
    assert [(row.batch, row.world_size) for row in settings.along(one, axis)] == [(True, 5), (False, 5)]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--world_size=10,20", "--batch=True,False"], "both hold several values, expected at most one list"),
        (["--world_size=2"], "--world_size is '2', expected a whole number from 3"),
        (["--world-size=10,"], "--world_size is '', expected a whole number from 3"),
        (["--state_size=10-x-10"], "--state_size is '10-x-10', expected whole numbers from 1 with dashes between"),
        (["--state_size=10-0"], "expected whole numbers from 1"),
        (["--batch=perhaps"], "--batch is 'perhaps', expected True or False"),
        (["--transport=shn"], "did you mean 'shm'?"),
        (["--world_siz=10"], "did you mean '--world_size'?"),
        (["--nlayers=1,1"], "which holds '1' twice"),
        (["--episodes=1,2"], "--episodes is '1,2', expected a whole number from 1"),
        (["--batch=False", "--max_wait_ms=1"], "--max_wait_ms would not be read"),
        (["--timeout=0"], "expected a number of seconds above 0"),
        (["--rate=nan"], "--rate is 'nan', expected requests per second above 0"),
        (["--rounds=0"], "--rounds is '0', expected a whole number from 1"),
        (["--master_port=70000"], "expected a port from 1 to 65535"),
        (["--master_addr=192.0.2.1"], "expected an address of this machine"),
        (["--output_file_path=report.txt"], "--output_file_path is 'report.txt', expected a name that ends in .json"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(words: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "rpc", *words]) == 2
    out, error = capsys.readouterr()
    assert out == "" and error.count("\n") == 1 and expected in error
    assert not list(Path().glob("*.json"))


def test_an_address_beyond_loopback_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    assert settings.check_address("127.0.0.1", 29513) is False
    assert settings.check_address("0.0.0.0", 29513) is True
    with pytest.raises(UsageError, match="expected a name or an address of this machine"):
        settings.check_address("no such host", 29513)


def test_the_bare_echoes_have_nothing_of_the_library() -> None:
    tree = ast.parse(Path(bare_rpc.__file__).read_text())
    modules = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    modules |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert "torch.distributed" in modules and "grpc" in modules
    assert not [name for name in modules if name.startswith("podium")]
