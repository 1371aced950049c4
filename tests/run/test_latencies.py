"""The plot of the RPC benchmark's reports: four panels, two quantiles, units, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from podium.core.errors import UsageError
from podium.run import latencies
from podium.run.plot import plot_runs

QUANTILES = ("p50", "p75", "p90", "p95")


def report(path: Path, axis: str | None = "world_size", places: tuple[Any, ...] = (10, 20, 50), **more: Any) -> Path:
    rows = []
    for number, place in enumerate(places, start=1):
        figures = {name: dict.fromkeys(QUANTILES, number * 0.001) for name, *_ in latencies.PANELS}
        rows.append({**({axis: place} if axis else {}), **figures})
    path.write_text(json.dumps({"transport": "shm", "x_axis_name": axis, "benchmark_results": rows, **more}))
    return path


def drawn(*files: Path) -> Any:
    return latencies.draw([latencies.read(file, json.loads(file.read_text())) for file in files])


def test_four_panels_with_units_and_both_quantiles(tmp_path: Path) -> None:
    figure = drawn(report(tmp_path / "a.json"))
    assert [(axes.get_title(loc="left"), axes.get_ylabel()) for axes in figure.axes] == [
        ("Agent latency", "milliseconds"),
        ("Agent throughput", "requests per second"),
        ("Observer latency", "milliseconds"),
        ("Observer throughput", "requests per second"),
    ]
    for axes in figure.axes:
        assert axes.get_xlabel() == "world size (processes)"
        assert [line.get_label() for line in axes.lines] == ["p50", "p95"]
        assert [list(line.get_xdata()) for line in axes.lines] == [[10, 20, 50]] * 2
    assert list(figure.axes[0].lines[0].get_ydata()) == [1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    ("axis", "places"),
    [("transport", ("torch_rpc", "shm")), ("batch", (True, False)), ("state_size", ("4", "10-20-10")), (None, (1,))],
)
def test_categories_are_points_that_nothing_joins(axis: str | None, places: tuple[Any, ...], tmp_path: Path) -> None:
    axes = drawn(report(tmp_path / "a.json", axis, places)).axes[0]
    names = [str(place) for place in places] if axis else ["shm"]
    assert [label.get_text() for label in axes.get_xticklabels()] == names
    assert {line.get_linestyle() for line in axes.lines} == {"None"}


def test_reports_overlay_under_their_names(tmp_path: Path) -> None:
    one, two = report(tmp_path / "monday.json"), report(tmp_path / "friday.json", places=(10, 100))
    axes = drawn(one, two).axes[0]
    assert [line.get_label() for line in axes.lines] == ["monday, p50", "monday, p95", "friday, p50", "friday, p95"]
    assert axes.lines[0].get_color() != axes.lines[2].get_color()
    out = plot_runs([one, two], tmp_path / "both.svg")
    assert out.read_text().count("<svg") == 1
    assert plot_runs([one]) == tmp_path / "monday.png"


def test_what_does_not_go_together_is_refused(tmp_path: Path) -> None:
    one, other = report(tmp_path / "a.json"), report(tmp_path / "b.json", "transport", ("shm",))
    with pytest.raises(UsageError, match="along world_size and transport don't go into one plot"):
        plot_runs([one, other], tmp_path / "x.png")
    other.write_text(json.dumps({"kind": "bench-sampling", "rows": [{}]}))
    with pytest.raises(UsageError, match="bench-rpc and bench-sampling don't go into one plot"):
        plot_runs([one, other], tmp_path / "x.png")


def test_a_report_without_its_figures_is_refused(tmp_path: Path) -> None:
    file = report(tmp_path / "a.json", places=())
    with pytest.raises(UsageError, match="has no rows in benchmark_results"):
        plot_runs([file])
    content = json.loads(report(file).read_text())
    del content["benchmark_results"][1]["agent throughput"]
    file.write_text(json.dumps(content))
    with pytest.raises(UsageError, match="row 2 has no 'agent throughput'"):
        plot_runs([file])
    content["benchmark_results"][1]["agent throughput"] = {"p50": 1.0}
    file.write_text(json.dumps(content))
    with pytest.raises(UsageError, match="row 2 has no p95 of 'agent throughput'"):
        plot_runs([file])
