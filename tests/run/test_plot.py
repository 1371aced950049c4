"""Plots: what is drawn for which files, and what is refused."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from podium.core.errors import UsageError
from podium.run import bars, curves
from podium.run.folder import RunFolder
from podium.run.plot import plot_runs

STEPS = range(1000, 11_000, 1000)


def make_run(path: Path, values: Iterable[float], seed: int = 1, evals: bool = False, **config: Any) -> Path:
    run = RunFolder.create(path, {"algo": "ppo", "env": "CartPole-v1", "seed": seed, **config})
    run.append_metrics({"env_steps": 500, "return_mean": None, "loss": 1.0})  # no episode has ended yet
    for steps, value in zip(STEPS, values, strict=True):
        more = {"eval_return_mean": value + 5} if evals and steps % 2000 == 0 else {}
        run.append_metrics({"env_steps": steps, "return_mean": value, "loss": 1 / steps, **more})
    return run.path


def curve(path: Path) -> curves.Curve:
    run = RunFolder.open(path)
    return curves.Curve(run.metrics, path.name, run.config, run.read_metrics())


def drawn(paths: Iterable[Path], metric: str | None = None) -> Any:
    (axes,) = curves.draw([curve(path) for path in paths], metric).axes
    return axes


def lines(paths: Iterable[Path], metric: str | None = None) -> dict[str, Any]:
    """The labelled lines of the drawing, the way a legend lists them."""
    handles, labels = drawn(paths, metric).get_legend_handles_labels()
    return dict(zip(labels, handles, strict=True))


def png_size(file: Path) -> tuple[int, int]:
    head = file.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", head[16:24])
    return width, height


def report(path: Path, kind: str = "bench-sampling", **changes: Any) -> Path:
    measured = [("podium", 840.0, [800.0, 840.0, 900.0]), ("bare", 1000.0, [950.0, 1000.0, 1010.0])]
    rows = [
        {"case": case, "contender": name, "unit": "steps/s", "median": median, "runs": runs, **changes}
        for case in ("CartPole-v1", "Pendulum-v1")
        for name, median, runs in measured
    ]
    path.write_text(json.dumps({"kind": kind, "rows": rows}))
    return path


def test_a_run_is_drawn_into_its_folder_at_the_given_size(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", STEPS)
    out = plot_runs([run])
    assert out == run / "plot.png"
    assert png_size(out) == (1080, 600)
    assert len(out.read_bytes()) > 10_000


def test_the_line_is_return_by_env_step_without_rows_that_have_none(tmp_path: Path) -> None:
    values = [float(v * v) for v in range(10)]
    run = make_run(tmp_path / "run", values, evals=True)
    found = lines([run])
    assert list(found) == ["training", "evaluation"]
    assert list(found["training"].get_xdata()) == list(STEPS)
    assert list(found["training"].get_ydata()) == values
    assert list(found["evaluation"].get_xdata()) == [2000, 4000, 6000, 8000, 10_000]
    axes = drawn([run])
    assert axes.get_title(loc="left") == "ppo CartPole-v1 seed 1"
    assert axes.get_xlabel() == "env steps"
    assert axes.get_ylabel() == "return (mean of the last 100 episodes)"
    assert axes.xaxis.get_major_formatter()(20_000, 0) == "20k"


def test_seeds_become_a_mean_with_a_band_and_thin_lines(tmp_path: Path) -> None:
    paths = [make_run(tmp_path / f"s{seed}", [10.0 * seed] * 10, seed=seed) for seed in (1, 2, 6)]
    axes = drawn(paths)
    found = lines(paths)
    assert list(found) == ["training"] and axes.get_title(loc="left") == "ppo CartPole-v1 (3 seeds)"
    assert np.allclose(found["training"].get_ydata(), 30.0)  # the mean of 10, 20, 60; their median is 20
    assert len(axes.lines) == 4 and len(axes.collections) == 1
    heights = axes.collections[0].get_paths()[0].vertices[:, 1]
    assert (heights.min(), heights.max()) == (10.0, 60.0)


def test_a_mean_ends_where_the_first_seed_ends(tmp_path: Path) -> None:
    whole, short = make_run(tmp_path / "a", [1.0] * 10), make_run(tmp_path / "b", [3.0] * 10, seed=2)
    RunFolder.open(short).cut_metrics(6000)
    mean = lines([whole, short])["training"]
    assert mean.get_xdata()[-1] == 6000 and np.allclose(mean.get_ydata(), 2.0)


def test_runs_that_differ_in_a_setting_are_not_averaged(tmp_path: Path) -> None:
    paths = [
        make_run(tmp_path / f"{lr}-{seed}", [lr * 1000] * 10, seed=seed, lr=lr, fragment=32)
        for lr in (0.001, 0.01)
        for seed in (1, 2)
    ]
    found = lines(paths)
    assert list(found) == ["ppo CartPole-v1, lr 0.001 (2 seeds)", "ppo CartPole-v1, lr 0.01 (2 seeds)"]
    assert [float(line.get_ydata()[0]) for line in found.values()] == [1.0, 10.0]


def test_algorithms_are_told_apart_and_the_title_names_the_env(tmp_path: Path) -> None:
    paths = [make_run(tmp_path / "a", STEPS), make_run(tmp_path / "b", STEPS, algo="a2c")]
    assert list(lines(paths)) == ["ppo CartPole-v1 seed 1", "a2c CartPole-v1 seed 1"]
    axes = drawn(paths)
    assert axes.get_title(loc="left") == "a2c and ppo on CartPole-v1"


def test_another_metric_has_its_own_axis_and_an_unknown_one_is_refused(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", STEPS)
    axes = drawn([run], "loss")
    assert axes.get_ylabel() == "loss" and axes.lines[0].get_ydata()[1] == 1 / 1000
    with pytest.raises(UsageError, match="no metric 'return_men'; did you mean 'return_mean'"):
        plot_runs([run], metric="return_men")
    with pytest.raises(UsageError, match="no metric 'zz'; it has loss, return_mean"):
        plot_runs([run], metric="zz")


def test_a_metrics_file_that_stands_alone_is_drawn_under_its_folders_name(tmp_path: Path) -> None:
    source = make_run(tmp_path / "run", STEPS)
    alone = tmp_path / "copied"
    alone.mkdir()
    (alone / "other.jsonl").write_bytes((source / "metrics.jsonl").read_bytes())
    assert plot_runs([alone / "other.jsonl"]) == alone / "plot.png"
    out = plot_runs([alone / "other.jsonl", source / "metrics.jsonl"], tmp_path / "both.svg")
    assert out.read_text().count("<svg") == 1


def test_nothing_to_draw_names_the_file(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "run", {"algo": "ppo", "env": "CartPole-v1"})
    with pytest.raises(UsageError, match=r"run/metrics\.jsonl does not exist: nothing to plot"):
        plot_runs([run.path])
    run.metrics.write_text("")
    with pytest.raises(UsageError, match=r"run/metrics\.jsonl is empty: nothing to plot"):
        plot_runs([run.path])
    run.append_metrics({"env_steps": 256, "return_mean": None})
    with pytest.raises(UsageError, match="no value of return_mean in any row yet"):
        plot_runs([run.path])
    with pytest.raises(UsageError, match="does not exist; did you mean 'run'"):
        plot_runs([tmp_path / "rum"])
    with pytest.raises(UsageError, match="nothing to plot: name a run folder"):
        plot_runs([])


def test_only_png_and_svg_are_written(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", STEPS)
    with pytest.raises(UsageError, match=r"curve\.jpg: expected a name that ends in \.png or \.svg") as raised:
        plot_runs([run], tmp_path / "curve.jpg")
    assert raised.value.exit_code == 2
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="can't write"):
        plot_runs([run], tmp_path / "file" / "curve.png")
    assert png_size(plot_runs([run], tmp_path / "new" / "curve.PNG")) == (1080, 600)


def test_a_report_has_a_panel_per_case_with_values_and_the_range_of_runs(tmp_path: Path) -> None:
    content = json.loads(report(tmp_path / "report.json").read_text())
    figure = bars.draw("bench-sampling", bars.read_rows(tmp_path / "report.json", content))
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["CartPole-v1", "Pendulum-v1"]
    axes: Any = figure.axes[0]
    assert [patch.get_width() for patch in axes.patches] == [840.0, 1000.0]
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["podium", "bare"]
    assert [text.get_text() for text in axes.texts] == ["840 steps/s", "1.0k steps/s"]
    assert [list(line.get_xdata()) for line in axes.lines] == [[800.0, 900.0], [950.0, 1010.0]]
    assert axes.patches[0].get_facecolor() == figure.axes[1].patches[0].get_facecolor()
    assert plot_runs([tmp_path / "report.json"]) == tmp_path / "report.png"
    assert png_size(tmp_path / "report.png")[0] == 1080


def test_reports_of_one_kind_stand_in_one_plot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monday, friday = report(tmp_path / "monday.json"), report(tmp_path / "friday.json")
    assert plot_runs([monday, friday]) == Path("plot.png")
    assert (tmp_path / "plot.png").exists()
    learning = report(tmp_path / "learning.json", kind="bench-learning")
    with pytest.raises(UsageError, match="bench-learning and bench-sampling don't go into one plot"):
        plot_runs([monday, learning])


def test_a_contender_that_was_not_measured_is_left_out(tmp_path: Path) -> None:
    file = report(tmp_path / "report.json")
    content = json.loads(file.read_text())
    content["rows"].append({"case": "CartPole-v1", "contender": "missing", "unit": "steps/s", "median": None})
    assert [row["contender"] for row in bars.read_rows(file, content)] == ["podium", "bare"] * 2
    with pytest.raises(UsageError, match="no measured row"):
        plot_runs([report(tmp_path / "none.json", median=None)])


def test_a_report_that_is_none_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    with pytest.raises(UsageError, match="can't read"):
        plot_runs([file])
    for text, said in [
        ("{", "is no JSON"),
        ('{"kind": "bench-samplin", "rows": []}', "did you mean 'bench-sampling'"),
        ("[1]", "has kind None"),
        ('{"kind": "bench-learning", "rows": []}', "has no rows"),
        ('{"kind": "bench-learning", "rows": [{"case": "x", "unit": "s"}]}', "row 1 has no 'contender'"),
    ]:
        file.write_text(text)
        with pytest.raises(UsageError, match=said):
            plot_runs([file])
    run = make_run(tmp_path / "run", STEPS)
    with pytest.raises(UsageError, match=r"is a benchmark report and .*run a run"):
        plot_runs([report(file), run])
    with pytest.raises(UsageError, match="metric 'loss' would not be read"):
        plot_runs([file], metric="loss")


def test_drawing_opens_no_window_and_loads_no_window_code(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", STEPS)
    code = (
        "import sys; from podium.run.plot import plot_runs; assert 'matplotlib' not in sys.modules\n"
        "plot_runs([sys.argv[1]]); print(sorted({'matplotlib.pyplot', 'tkinter', 'torch'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(run)], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
