"""Bars of a benchmark report: a panel per case, a bar per contender, whiskers for the range of its runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from podium.core.errors import UsageError
from podium.run.curves import COLOURS, steps_label
from podium.run.progress import human

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TITLES = {
    "bench-sampling": "Sampling throughput",
    "bench-learning": "Training throughput",
    "bench-controller": "Calls of the controller on Ray",
    "bench-scaling": "Scaling over workers",
    "bench-shards": "Parameter server",
    "bench-central": "Central inference",
    "bench-curves": "Return of the last evaluation",
    "bench-replay": "Replay",
    "bench-apex": "Ape-X",
}
KEYS = ("case", "contender", "unit", "median")
BAR_INCHES, CASE_INCHES, TITLE_INCHES = 0.36, 0.85, 0.6


def read_rows(file: Path, report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The report's measured rows; a contender that was not measured has no median and is left out."""
    rows = report.get("rows")
    if not isinstance(rows, list) or not rows:
        raise UsageError(f"{file} has no rows: nothing to plot")
    for number, row in enumerate(rows, start=1):
        missing = [key for key in KEYS if not isinstance(row, dict) or key not in row]
        if missing:
            raise UsageError(f"{file} row {number} has no {missing[0]!r}, expected {', '.join(KEYS)}")
    measured = [row for row in rows if row["median"] is not None]
    if not measured:
        raise UsageError(f"{file} has no measured row: nothing to plot")
    return measured


def draw(kind: str, rows: Sequence[Mapping[str, Any]]) -> Figure:
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    cases: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        cases.setdefault(row["case"], []).append(row)
    contenders = list(dict.fromkeys(row["contender"] for row in rows))
    colours = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(contenders)}
    heights = [CASE_INCHES + BAR_INCHES * len(group) for group in cases.values()]
    figure = Figure(figsize=(9, TITLE_INCHES + sum(heights)), layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.1))
    figure.suptitle(TITLES[kind], fontsize=13, fontweight="bold", x=0.02, ha="left")
    panels = figure.subplots(len(cases), 1, squeeze=False, height_ratios=heights)[:, 0]
    for panel, (case, group) in zip(panels, cases.items(), strict=True):
        _draw_case(panel, case, group, colours)
    return figure


def _draw_case(axes: Axes, case: str, rows: Sequence[Mapping[str, Any]], colours: Mapping[str, str]) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    largest = 0.0
    for place, row in enumerate(rows):
        runs = row.get("runs") or [row["median"]]
        low, high = min(runs), max(runs)
        largest = max(largest, high, row["median"])
        axes.barh(place, row["median"], height=0.66, color=colours[row["contender"]])
        if high > low:
            axes.plot([low, high], [place, place], color="#22272e", linewidth=1.3, marker="|", markersize=8)
        axes.annotate(
            f"{human(row['median'])} {row['unit']}",
            (max(high, row["median"]), place),
            xytext=(7, 0),
            textcoords="offset points",
            va="center",
            fontsize=9,
        )
    axes.set_yticks(range(len(rows)), [row["contender"] for row in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    longest = max(len(row["unit"]) for row in rows)
    axes.set_xlim(0, (largest or 1.0) * (1.1 + 0.012 * longest))  # room for the written value
    axes.set_title(case, loc="left", fontsize=10.5)
    axes.set_xlabel(" / ".join(dict.fromkeys(row["unit"] for row in rows)), fontsize=9)
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: steps_label(value)))
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color="#e3e6ea", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color("#9aa3ad")
