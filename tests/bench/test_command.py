"""The command: reports that hold what was measured, and one line for each thing that can't be."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from podium.bench import learning, sampling
from podium.bench.measure import alternate, rate
from podium.bench.report import Measured, Report, Target
from podium.cli import main

QUICK = ("--rounds", "1", "--seconds", "0.05")


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def without(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    """As if the package were not installed."""
    from importlib import util

    find = util.find_spec
    monkeypatch.setattr(util, "find_spec", lambda name, *rest: None if name == package else find(name, *rest))
    monkeypatch.setitem(sys.modules, package, None)


def contenders(report: dict[str, Any], case: str) -> list[str]:
    return [row["contender"] for row in report["rows"] if case in row["case"]]


def failing_line(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(words) == 2
    out, error = capsys.readouterr()
    assert out == "" and error.count("\n") == 1
    return error


def test_sampling_another_env_prints_and_writes_a_report(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "sampling", *QUICK, "--env", "Acrobot-v1", "--envs", "4", "--out", "r/a.json"]) == 0
    out = capsys.readouterr().out
    assert "Acrobot-v1, 4 envs" in out and "podium" in out and "bare" in out
    report = json.loads(Path("r/a.json").read_text())
    assert contenders(report, "Acrobot-v1") == ["podium", "bare", "sb3"]
    assert report["targets"] == []
    assert Path("r/a.png").stat().st_size > 0


def test_learning_prints_json_alone_and_measures_every_contender(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "learning", "--rounds", "2", "--seconds", "0.05", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report == json.loads(Path("bench-learning.json").read_text())
    assert report["kind"] == "bench-learning"
    assert report["command"] == "podium bench learning --rounds 2 --seconds 0.05 --json"
    assert report["machine"]["cores"] >= 1 and report["machine"]["torch"]
    assert contenders(report, "default networks") == ["podium", "bare", "sb3"]
    assert contenders(report, "own nn.Module") == ["podium", "bare"]
    assert all(len(row["runs"]) == 2 and min(row["runs"]) > 0 for row in report["rows"])
    assert [(t["what"], t["target"]) for t in report["targets"]] == [
        ("podium / bare", 1.0),
        ("podium / sb3", 2.0),
        ("podium / bare", 1.0),
    ]


@pytest.mark.parametrize("algo", ["sac", "td3"])
def test_learning_from_a_replay_measures_updates_of_every_contender(
    algo: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "learning", "--algo", algo, "--rounds", "1", "--seconds", "0.1", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert contenders(report, f"{algo} HalfCheetah-v5, batch 256, 256x256") == ["podium", "bare", "sb3"]
    assert all(min(row["runs"]) > 0 for row in report["rows"])
    assert [(t["what"], t["target"]) for t in report["targets"]] == [("podium / bare", 0.9), ("podium / sb3", 1.3)]


def test_the_pinned_sampling_cases_and_their_targets() -> None:
    first, second, third = sampling.cases(None, None)
    assert (first.env, first.envs, first.targets) == ("CartPole-v1", 64, (Target("bare", 0.8),))
    assert (second.env, second.envs, second.targets) == ("envpool:Pendulum-v1", 1024, (Target("bare", 0.8),))
    assert second.env_args == {"num_threads": 2}
    assert (third.env, third.envs, third.targets) == ("atari:Pong", 64, (Target("bare", 0.8),))
    assert sampling.cases("CartPole-v1", None) == [first]
    assert sampling.cases("CartPole-v1", 8)[0].targets == ()


def test_a_case_without_its_extra_is_left_out_unless_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    without(monkeypatch, "envpool")
    assert "podium[envpool]" in failing_line(["bench", "sampling", "--env", "envpool:Pendulum-v1"], capsys)
    small = (sampling.Case("CartPole-v1", 4), sampling.PINNED[1])
    monkeypatch.setattr(sampling, "PINNED", small)
    assert main(["bench", "sampling", *QUICK]) == 0
    assert "Pendulum-v1, 1024 envs: left out" in capsys.readouterr().err
    report = json.loads(Path("bench-sampling.json").read_text())
    assert contenders(report, "CartPole") and not contenders(report, "Pendulum")
    assert any("left out" in note for note in report["notes"])


def test_without_stable_baselines3_its_target_is_not_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    without(monkeypatch, "stable_baselines3")
    assert main(["bench", "learning", *QUICK]) == 0
    out, error = capsys.readouterr()
    assert "no sb3" in error and "not measured" in out
    report = json.loads(Path("bench-learning.json").read_text())
    (target,) = [target for target in report["targets"] if target["what"] == "podium / sb3"]
    assert target["value"] is None and target["met"] is None


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], "known: sampling, learning, controller, scaling, shards, central, apex, replay, curves, rpc"),
        (["sampel"], "did you mean 'sampling'?"),
        (["sampling", "--envs", "8"], "goes with --env"),
        (["sampling", "--env", "CartPol-v1"], "did you mean 'CartPole-v1'?"),
        (["sampling", "--env", "toy:chain"], "expected a gymnasium id, atari:NAME or envpool:NAME"),
        (["sampling", "--env", "FrozenLake-v1"], "expected a Box of one axis"),
        (["sampling", "--rounds", "0"], "whole number from 1"),
        (["learning", "--seconds", "0"], "number of seconds above 0"),
        (["learning", "--round", "3"], "did you mean '--rounds'?"),
        (["learning", "--out", "report.txt"], "ends in .json"),
        (["replay", "--capacity", "100000000"], "63,504 bytes each in podium, sb3, and there are"),
        (["replay", "--contenders", "podium,sb4"], "did you mean 'sb3'?"),
        (["replay", "--contenders", "sb3"], "expected podium among them"),
        (["shards", "--shards", "1,8", "--parameters", "4"], "--shards 8, expected at most --parameters"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(words: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert expected in failing_line(["bench", *words], capsys)
    assert not list(Path().glob("*.json"))


def test_replay_measures_both_ways_and_says_what_memory_it_takes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "replay", *QUICK, "--capacity", "2000", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert contenders(report, "insert") == contenders(report, "sample") == ["podium", "sb3"]
    assert [(t["what"], t["target"]) for t in report["targets"]] == [
        ("podium / sb3", 5.0),
        ("podium / tianshou", 5.0),
    ] * 2
    assert any(note.startswith("memory: ") for note in report["notes"])
    assert main(["bench", "replay", *QUICK, "--capacity", "600", "--contenders", "podium"]) == 0
    assert "not measured" in capsys.readouterr().out


def test_help_names_the_benchmarks(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--help"]) == 0
    out = capsys.readouterr().out
    assert "sampling" in out and "learning" in out


def test_medians_ratios_and_verdicts() -> None:
    runs = {"podium": [80.0, 90.0, 1000.0], "bare": [100.0, 300.0, 1.0], "sb3": [50.0, 40.0, 45.0]}
    measured = Measured("a case", runs, (Target("bare", 1.0), Target("sb3", 2.0), Target("other", 1.0)))
    report = Report("bench-learning", ["learning"], [measured]).to_json()
    podium = report["rows"][0]
    assert podium["median"] == 90.0 and podium["runs"] == runs["podium"] and podium["unit"] == "steps/s"
    assert podium["ratio_to"] == {"bare": 0.8, "sb3": 2.25}, "medians of the rounds' ratios, not ratios of medians"
    assert [(t["value"], t["met"]) for t in report["targets"]] == [(0.8, False), (2.25, True), (None, None)]


class Recorder:
    """A contender that notes when it is measured and closed."""

    def __init__(self, name: str, seen: list[str]) -> None:
        self.name, self.seen = name, seen

    def measure(self, seconds: float) -> float:
        self.seen.append(self.name)
        return float(len(self.seen))

    def close(self) -> None:
        self.seen.append(f"{self.name} closed")


def test_contenders_are_measured_in_alternation_and_closed() -> None:
    seen: list[str] = []
    runs = alternate({"a": lambda: Recorder("a", seen), "b": lambda: Recorder("b", seen)}, 3, 1.0)
    assert seen == ["a", "b", "a", "b", "a", "b", "b closed", "a closed"]
    assert runs == {"a": [1.0, 3.0, 5.0], "b": [2.0, 4.0, 6.0]}


def test_a_rate_is_steps_over_the_seconds_they_took(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([10.0, 11.5, 13.0])
    monkeypatch.setattr("podium.bench.measure.perf_counter", lambda: next(clock))
    assert rate(lambda: 300, 2.0) == 200.0


def test_the_clock_leaves_out_the_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([1.0, 2.0, 3.0, 4.0, 5.0, 5.4, 6.0])
    monkeypatch.setattr(learning, "perf_counter", lambda: next(times))
    clock = learning.Clock(1.0)
    steps = [10, 20, 30, 40, 50, 90, 150]
    assert [clock.on_iteration(None, {"env_steps": n}) for n in steps] == [False] * 6 + [True]
    assert clock.rate == pytest.approx(100.0)
