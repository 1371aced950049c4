"""Panels of the RPC benchmark's reports: latency and throughput of agent and observers, p50 and p95 along the x axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from podium.core.errors import UsageError
from podium.run.curves import COLOURS, value_label
from podium.run.lines import apart

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROWS = "benchmark_results"
PANELS = (
    ("agent latency (seconds)", "Agent latency", "milliseconds", 1e3),
    ("agent throughput", "Agent throughput", "requests per second", 1.0),
    ("observer latency (seconds)", "Observer latency", "milliseconds", 1e3),
    ("observer throughput", "Observer throughput", "requests per second", 1.0),
)
SHOWN = (("p50", "-", "o"), ("p95", (0, (4, 1.8)), "s"))
AXES = {
    "world_size": "world size (processes)",
    "transport": "transport",
    "batch": "batch (all observers in one pass)",
    "state_size": "state size",
    "nlayers": "linear layers after the first",
    "out_features": "actions",
    "max_batch": "most requests in a pass",
    "max_wait_ms": "longest wait of a pass (milliseconds)",
    "rate": "rate (requests per second, open loop)",
}
FAR = 20.0
"""From this between the least and the greatest, the axis is logarithmic."""


@dataclass(frozen=True)
class Line:
    """One report: where its rows lie, and what they hold."""

    name: str
    axis: str
    places: Sequence[Any]
    rows: Sequence[Mapping[str, Any]]


def is_one(report: Mapping[str, Any]) -> bool:
    return ROWS in report


def read(file: Path, report: Mapping[str, Any]) -> Line:
    rows = report[ROWS]
    if not isinstance(rows, list) or not rows:
        raise UsageError(f"{file} has no rows in {ROWS}: nothing to plot")
    axis = report.get("x_axis_name") or ""
    for number, row in enumerate(rows, start=1):
        wanted = [*([axis] if axis else []), *(name for name, *_ in PANELS)]
        missing = [name for name in wanted if not isinstance(row, dict) or name not in row]
        if missing:
            raise UsageError(f"{file} row {number} has no {missing[0]!r}, expected {', '.join(wanted)}")
        for name, *_ in PANELS:
            absent = [q for q, *_ in SHOWN if q not in row[name]]
            if absent:
                raise UsageError(f"{file} row {number} has no {absent[0]} of {name!r}")
    places = [row[axis] if axis else str(report.get("transport", file.stem)) for row in rows]
    return Line(file.stem, str(axis), places, rows)


def draw(lines: Sequence[Line]) -> Figure:
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    axes = list(dict.fromkeys(line.axis for line in lines))
    if len(axes) > 1:
        names = [axis or "none" for axis in axes]
        raise UsageError(f"reports along {' and '.join(names)} don't go into one plot: plot them one by one")
    numeric = all(isinstance(p, int | float) and not isinstance(p, bool) for line in lines for p in line.places)
    known = list(dict.fromkeys(str(place) for line in lines for place in line.places))
    figure = Figure(figsize=(11, 7.6), layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.12))
    carriers = {str(row["transport"]) for line in lines for row in line.rows if "transport" in row}
    over = f" over {carriers.pop()}" if len(carriers) == 1 else ""
    figure.suptitle(f"Asking a policy for actions{over}", fontsize=13, fontweight="bold", x=0.02, ha="left")
    panels = figure.subplots(2, 2).ravel()
    for panel, (metric, name, unit, scale) in zip(panels, PANELS, strict=True):
        for index, line in enumerate(lines):
            places = list(line.places) if numeric else [known.index(str(place)) for place in line.places]
            _draw_line(panel, line, places, metric, scale, COLOURS[index % len(COLOURS)], numeric, len(lines) > 1)
        panel.set_title(name, loc="left", fontsize=11)
        panel.set_ylabel(unit)
        panel.set_xlabel(AXES.get(axes[0], axes[0].replace("_", " ")))
        _style(panel, numeric, known)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper right", ncols=min(len(labels), 6), fontsize=9, frameon=False)
    return figure


def _draw_line(
    panel: Axes, line: Line, places: Sequence[float], metric: str, scale: float, colour: str, joined: bool, named: bool
) -> None:
    """Points of a category aren't joined: nothing lies between them."""
    order = sorted(range(len(places)), key=lambda at: places[at])
    for quantile, dashes, marker in SHOWN:
        values = [line.rows[at][metric][quantile] * scale for at in order]
        filled = colour if quantile == "p50" else "white"
        panel.plot(
            [places[at] for at in order],
            values,
            color=colour,
            linestyle=dashes if joined else "none",
            marker=marker,
            markersize=6,
            markerfacecolor=filled,
            linewidth=1.8,
            label=f"{line.name}, {quantile}" if named else quantile,
        )


def _style(panel: Axes, numeric: bool, known: Sequence[str]) -> None:
    import numpy as np
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    heights = np.concatenate([np.asarray(drawn.get_ydata(), float) for drawn in panel.lines])
    if heights.min() > 0 and heights.max() > FAR * heights.min():
        panel.set_yscale("log")
        panel.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        panel.yaxis.set_minor_formatter(NullFormatter())
    else:
        panel.set_ylim(0, 1.12 * heights.max())
    panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: value_label(value)))
    if numeric:
        places = np.unique(np.concatenate([np.asarray(drawn.get_xdata(), float) for drawn in panel.lines])).tolist()
        if places[0] > 0 and places[-1] > FAR * places[0]:
            panel.set_xscale("log")
            panel.xaxis.set_minor_formatter(NullFormatter())
            kept = places
        else:
            kept = sorted(apart(places))
        panel.set_xticks(kept, [value_label(place) for place in kept])
    else:
        panel.set_xticks(range(len(known)), known)
        panel.set_xlim(-0.5, len(known) - 0.5)
    panel.grid(color="#e3e6ea", linewidth=0.8)
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)
    panel.spines[["left", "bottom"]].set_color("#9aa3ad")
