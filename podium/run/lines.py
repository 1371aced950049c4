"""Lines of a benchmark report that measured along an axis: a panel per case, a line per contender, a band for its runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from podium.run.curves import COLOURS, steps_label

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PLAIN = ("linear", "copy")
"""Contenders that others are held against: drawn dashed and grey."""

GREY = "#7a838d"
APART = 0.035
FAR = 5


def draw(title: str, rows: Sequence[Mapping[str, Any]]) -> Figure:
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine
    from matplotlib.ticker import FuncFormatter

    cases: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        cases.setdefault(row["case"], []).append(row)
    figure = Figure(figsize=(max(9, 5.5 * len(cases)), 5), layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.1))
    figure.suptitle(title, fontsize=13, fontweight="bold", x=0.02, ha="left")
    panels = figure.subplots(1, len(cases), squeeze=False)[0]
    names = dict.fromkeys(row["contender"] for row in rows if row["contender"] not in PLAIN)
    colours = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(names)}
    far = _far(rows)
    for panel, (case, group) in zip(panels, cases.items(), strict=True):
        _draw_case(panel, case, group, colours)
        if far:
            panel.set_yscale("log")
        else:
            panel.set_ylim(bottom=0)
        panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: steps_label(value)))
    return figure


def _draw_case(axes: Axes, case: str, rows: Sequence[Mapping[str, Any]], colours: Mapping[str, str]) -> None:
    lines: dict[str, list[Mapping[str, Any]]] = {}
    for row in sorted(rows, key=lambda row: row["x"]):
        lines.setdefault(row["contender"], []).append(row)
    for name, points in lines.items():
        _draw_line(axes, name, points, colours.get(name, GREY))
    axes.set_title(case, loc="left", fontsize=10.5)
    axes.set_xlabel(rows[0]["axis"])
    axes.set_ylabel(rows[0]["unit"])
    axes.set_xticks(apart(sorted({row["x"] for row in rows})))
    axes.grid(color="#e3e6ea", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#9aa3ad")
    axes.legend(loc="best", fontsize=9, framealpha=0.9, edgecolor="#e3e6ea")


def _far(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether what the others are held against lies so far above them that they would lie flat on the ground."""
    plain = [row["median"] for row in rows if row["contender"] in PLAIN]
    others = [row["median"] for row in rows if row["contender"] not in PLAIN]
    return bool(plain and others) and min(others) > 0 and median(plain) > FAR * max(others)


def _draw_line(axes: Axes, name: str, points: Sequence[Mapping[str, Any]], colour: str) -> None:
    places, medians = [row["x"] for row in points], [row["median"] for row in points]
    if name in PLAIN:
        axes.plot(places, medians, color=colour, linestyle=(0, (4, 2)), linewidth=1.4, label=name)
        return
    axes.plot(places, medians, color=colour, marker="o", markersize=4.5, linewidth=1.8, label=name)
    runs = [row.get("runs") or [row["median"]] for row in points]
    axes.fill_between(places, [min(r) for r in runs], [max(r) for r in runs], color=colour, alpha=0.15, linewidth=0)


def apart(places: Sequence[float]) -> list[float]:
    """Those of the places whose labels don't touch, from the greatest down."""
    room = APART * (places[-1] - places[0])
    kept: list[float] = []
    for place in reversed(places):
        if not kept or kept[-1] - place >= room:
            kept.append(place)
    return kept
