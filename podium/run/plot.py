"""Plots as files: what the given files are decides between learning curves and bars or lines of a benchmark."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from podium.core.errors import UsageError, did_you_mean
from podium.run import bars, curves, latencies, lines
from podium.run.folder import RunFolder, read_rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg")
DPI = 120


def plot_runs(files: Sequence[Path], out: Path | None = None, metric: str | None = None) -> Path:
    """Draw run folders, metrics.jsonl files or benchmark reports into one PNG or SVG, and return its path."""
    if not files:
        raise UsageError("nothing to plot: name a run folder, a metrics.jsonl or a benchmark's JSON report")
    files = [Path(file) for file in files]
    target = Path(out) if out is not None else _default_out(files)
    if target.suffix.lower() not in SUFFIXES:
        raise UsageError(f"can't plot to {target}: expected a name that ends in {' or '.join(SUFFIXES)}")
    reports = [file for file in files if _is_report(file)]
    if reports and len(reports) < len(files):
        other = next(file for file in files if file not in reports)
        raise UsageError(f"{reports[0]} is a benchmark report and {other} a run: plot them one by one")
    if reports and metric is not None:
        raise UsageError(f"metric {metric!r} would not be read: {reports[0]} is a benchmark report")
    figure = _draw_reports(reports) if reports else curves.draw([_read_run(file) for file in files], metric)
    return _save(figure, target)


def _draw_reports(files: Sequence[Path]) -> Figure:
    reports = [_read_report(file) for file in files]
    if all(latencies.is_one(report) for report in reports):
        return latencies.draw([latencies.read(file, report) for file, report in zip(files, reports, strict=True)])
    kinds = sorted({report.get("kind", "bench-rpc") for report in reports})
    if len(kinds) > 1:
        raise UsageError(f"reports of {' and '.join(kinds)} don't go into one plot: plot them one by one")
    rows = []
    for file, report in zip(files, reports, strict=True):
        found = bars.read_rows(file, report)
        several = len(files) > 1
        rows += [{**row, "case": f"{row['case']} ({file.stem})"} if several else row for row in found]
    if all("x" in row and "axis" in row for row in rows):
        return lines.draw(bars.TITLES[kinds[0]], rows)
    return bars.draw(kinds[0], rows)


def _is_report(file: Path) -> bool:
    return file.suffix == ".json" and not file.is_dir()


def _default_out(files: Sequence[Path]) -> Path:
    if len(files) > 1:
        return Path("plot.png")
    (file,) = files
    if _is_report(file):
        return file.with_suffix(".png")
    return (file if file.suffix != ".jsonl" else file.parent) / "plot.png"


def _read_report(file: Path) -> dict[str, Any]:
    try:
        report = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"can't read {file}: {error.strerror}") from None
    except ValueError:
        raise UsageError(f"{file} is no JSON") from None
    if isinstance(report, dict) and latencies.is_one(report):
        return report
    kind = report.get("kind") if isinstance(report, dict) else None
    if kind not in bars.TITLES:
        near = did_you_mean(str(kind), bars.TITLES)
        raise UsageError(f"{file} has kind {kind!r}, expected a report of kind {' or '.join(bars.TITLES)}{near}")
    return dict(report)


def _read_run(file: Path) -> curves.Curve:
    if file.suffix == ".jsonl":
        folder, metrics, name = RunFolder(file.parent), file, file.parent.name or file.stem
        config = RunFolder.open(file.parent).config if (file.parent / "config.json").exists() else {}
    else:
        folder = RunFolder.open(file)
        metrics, config, name = folder.metrics, folder.config, file.resolve().name
    rows = read_rows(metrics)
    if not rows:
        raise UsageError(f"{metrics} {'is empty' if metrics.exists() else 'does not exist'}: nothing to plot")
    return curves.Curve(metrics, name, config, rows)


def _save(figure: Figure, target: Path) -> Path:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    FigureCanvasAgg(figure)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(target, dpi=DPI)
    except OSError as error:
        raise UsageError(f"can't write {target}: {error.strerror or error}") from None
    return target
