"""The benchmarks of what is distributed: each runs on Ray and reports what it measured, and says what it can't do."""

from __future__ import annotations

import ast
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from podium.bench import bare_ray, usage
from podium.bench.idle import ConstantPolicy
from podium.bench.report import Measured, Report, Target
from podium.bench.scaling import _curve
from podium.cli import main
from podium.core.errors import UsageError
from podium.engine.ray import RayEngine
from podium.envs.make import EnvSpec, make
from podium.run.lines import apart
from podium.run.plot import plot_runs

QUICK = ("--rounds", "1", "--seconds", "0.05")


@pytest.fixture(scope="module")
def ray_runs() -> Iterator[None]:
    """A small cluster that every command of this file finds running, with nothing left of it afterwards."""
    engine = RayEngine(num_cpus=4)
    yield
    pids = {process["pid"] for process in engine.processes()} - {os.getpid()}
    engine.close()
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def bench(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    """The report of a quick benchmark, its plot seen to be there."""
    assert main(["bench", *words, *QUICK, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report == json.loads(Path(f"bench-{words[0]}.json").read_text())
    assert set(report) == {"kind", "date", "command", "machine", "rows", "targets", "notes"}
    assert report["machine"]["ray"]
    assert Path(f"bench-{words[0]}.png").stat().st_size > 0
    return report


def failing_line(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(words) == 2
    out, error = capsys.readouterr()
    assert out == "" and error.startswith("podium:") and not list(Path().glob("*.json"))
    return error


def test_central_measures_a_server_beside_policies_of_their_own(
    ray_runs: None, capsys: pytest.CaptureFixture[str]
) -> None:
    report = bench(capsys, "central", "--workers", "2", "--envs", "1", "--fragment", "2", "--threads", "1")
    assert [(row["contender"], row["unit"]) for row in report["rows"]] == [
        ("podium", "env steps/s"),
        ("own policies", "env steps/s"),
    ]
    assert all(row["median"] > 0 for row in report["rows"])
    (target,) = report["targets"]
    assert (target["what"], target["target"]) == ("podium / own policies", 0.7)


def test_controller_measures_both_loops_beside_plain_ray(ray_runs: None, capsys: pytest.CaptureFixture[str]) -> None:
    report = bench(capsys, "controller", "--workers", "1")
    found = [(row["case"].split(",")[0], row["contender"], row["unit"]) for row in report["rows"]]
    assert found == [
        ("async_samples", "podium", "calls/s"),
        ("async_samples", "bare", "calls/s"),
        ("async_samples", "calls", "calls/s"),
        ("sync_samples", "podium", "calls/s"),
        ("sync_samples", "bare", "calls/s"),
    ]
    assert all(row["median"] > 0 for row in report["rows"])
    assert [(t["what"], t["target"]) for t in report["targets"]] == [("podium / bare", 0.8)] * 2


def test_scaling_is_held_against_a_straight_line(ray_runs: None, capsys: pytest.CaptureFixture[str]) -> None:
    report = bench(capsys, "scaling", "--workers", "2,1,2", "--ms", "2")
    podium = [row for row in report["rows"] if row["contender"] == "podium"]
    assert [row["x"] for row in podium] == [1, 2] * 3 and {row["axis"] for row in podium} == {"workers"}
    assert [row["case"].split(",")[0] for row in podium[::2]] == ["sync_samples", "async_samples", "evolution"]
    for row in podium:
        rows = 2 if "evolution" in row["case"] else 1
        assert 0 < row["median"] <= row["x"] * rows * 1000 / 2, "a step takes 2 ms at least"
    assert podium[0]["ratio_to"] == {"linear": 1.0}
    assert all(0 <= row["cpu"] <= 1 for row in podium)
    assert "MiB" in " ".join(report["notes"]) and report["targets"] == []


def test_workers_that_do_not_fit_into_the_memory_are_refused(
    ray_runs: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("podium.bench.scaling.available_bytes", lambda: 10 << 20)
    line = failing_line(["bench", "scaling", *QUICK, "--workers", "1,64"], capsys).splitlines()[-1]
    assert "--workers 64 do not fit into the memory, expected at most 1" in line


def test_shards_are_measured_on_both_engines(ray_runs: None, capsys: pytest.CaptureFixture[str]) -> None:
    report = bench(capsys, "shards", "--shards", "1,3", "--parameters", "1000", "--workers", "1")
    found = [(row["case"].split(",")[0], row["contender"], row["x"]) for row in report["rows"]]
    assert found == [(e, c, x) for e in ("local", "ray") for x in (1, 3) for c in ("podium", "copy")]
    for row in report["rows"]:
        assert row["unit"] == "GB/s" and row["median"] > 0
        if row["contender"] == "podium":
            assert row["updates_per_s"] == pytest.approx(row["median"] * 1e9 / 8000), "8 bytes move for each parameter"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["controller", "--workers", "0"], "whole number from 1"),
        (["controller", "--envs", "3"], "--envs"),
        (["scaling", "--workers", "1,x"], "whole number from 1"),
        (["scaling", "--ms", "0"], "number of milliseconds above 0"),
        (["shards", "--shards", ""], "whole number from 1"),
        (["shards", "--shards", "8", "--parameters", "4"], "expected at most --parameters, which is 4"),
        (["shards", "--out", "x.png"], "ends in .json"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(words: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = failing_line(["bench", *words], capsys)
    assert expected in line and line.count("\n") == 1


def test_the_env_that_sleeps_takes_its_time_and_is_constant_otherwise() -> None:
    from time import perf_counter

    env = make(EnvSpec("toy:sleep", {"ms": 30, "length": 2}), 3)
    env.reset([0, 1, 2])
    began = perf_counter()
    steps = [env.step(np.zeros(3, np.int64)) for _ in range(2)]
    assert perf_counter() - began >= 0.06
    assert [step.truncated.tolist() for step in steps] == [[False] * 3, [True] * 3]
    assert all((step.reward == 1).all() for step in steps)
    for wrong in (-1, "20", True, float("inf"), float("nan")):
        with pytest.raises(UsageError, match="expected a number of milliseconds from 0"):
            make(EnvSpec("toy:sleep", {"ms": wrong}), 1)


def test_a_point_is_not_judged_where_the_cores_are_the_limit(capsys: pytest.CaptureFixture[str]) -> None:
    report = Report("bench-scaling", ["scaling"])
    runs = {1: [10.0, 12.0, 11.0], 32: [330.0, 300.0, 340.0], 64: [400.0, 500.0, 450.0]}
    first, middle, last = _curve(report, "a case", runs, {1: [0.1], 32: [0.5], 64: [0.99]})
    assert [point.runs["linear"][0] for point in (first, middle, last)] == [11.0, 352.0, 704.0]
    assert (first.targets, last.targets) == ((), ()) and middle.targets == (Target("linear", 0.9),)
    assert report.notes == ["a case: 64 workers are not judged, the machine's cores were 99% busy"]
    report.cases = [first, middle, last]
    (target,) = report.to_json()["targets"]
    assert target["what"] == "podium / linear at 32 workers" and target["value"] == 330 / 352 and target["met"]


def test_what_was_noted_belongs_to_podiums_row_alone() -> None:
    point = {"axis": "shards", "x": 2, "updates_per_s": 5.0}
    measured = Measured("a case", {"podium": [1.0], "copy": [4.0]}, (), "GB/s", point)
    ours, copy = Report("bench-shards", ["shards"], [measured]).to_json()["rows"]
    assert ours["updates_per_s"] == 5.0 and (ours["axis"], ours["x"]) == (copy["axis"], copy["x"]) == ("shards", 2)
    assert "updates_per_s" not in copy


def test_lines_are_drawn_from_a_report_with_an_axis(tmp_path: Path) -> None:
    from podium.run.folder import to_json

    cases = [
        Measured(
            "a case", {"podium": [float(x), x + 1.0], "copy": [90.0, 91.0]}, (), "GB/s", {"axis": "shards", "x": x}
        )
        for x in (1, 2, 4)
    ]
    file = tmp_path / "r.json"
    file.write_text(to_json(Report("bench-shards", ["shards"], cases).to_json()))
    assert plot_runs([file], tmp_path / "r.svg").read_text().count("shards") >= 1


def test_labels_that_would_touch_are_left_out() -> None:
    assert apart([1, 2, 4, 8]) == [8, 4, 2, 1]
    assert apart([1, 2, 4, 8, 16, 32, 64]) == [64, 32, 16, 8, 4, 1]
    assert apart([3]) == [3]


def test_the_machine_says_what_is_used() -> None:
    assert usage.cpu_share((10, 100), (40, 160)) == 0.5
    assert usage.available_bytes() > 1 << 20 and usage.own_bytes(os.getpid()) > 1 << 20


def test_the_constant_policy_has_one_gradient() -> None:
    policy = ConstantPolicy(7)
    assert policy.get_weights().flat.shape == (7,)
    gradient, _ = policy.gradients(None, None)  # type: ignore[arg-type]
    assert gradient.shape == (7,) and len(set(gradient.tolist())) == 1


def test_the_bare_ray_loops_have_nothing_of_the_library() -> None:
    tree = ast.parse(Path(bare_ray.__file__).read_text())
    modules = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    modules |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert "ray" in modules and not [name for name in modules if name.startswith("podium")]
