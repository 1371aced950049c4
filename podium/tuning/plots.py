"""Plots of a search: what it found over time, which settings mattered, which went together, who came from whom."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from podium.run.curves import COLOURS, steps_label
from podium.run.table import show
from podium.tuning.request import Asked
from podium.tuning.space import Dimension

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DPI = 120
GREY, DARK = "#b4bac2", "#22272e"
Record = Mapping[str, Any]


def write(folder: Path, asked: Asked, records: Sequence[Record], study: Any, lineage: Sequence[Record]) -> list[Path]:
    """Draw what there is enough of; the files that were written."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    found = [record for record in records if record["value"] is not None and record["params"]]
    drawn: dict[str, Figure | None] = {
        "history": None if lineage else history(asked, found, records),
        "importance": importance(asked, study),
        "parallel": parallel(asked, [record for record in found if record["state"] == "complete"]),
        "lineage": descent(asked, lineage),
    }
    paths = []
    for name, figure in drawn.items():
        if figure is not None:
            FigureCanvasAgg(figure)
            path = folder / "plots" / f"{name}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            figure.savefig(path, dpi=DPI)
            paths.append(path)
    return paths


def _figure(title: str, width: float = 9, height: float = 4.2) -> Figure:
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    figure = Figure(figsize=(width, height), layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.1))
    figure.suptitle(title, fontsize=13, fontweight="bold", x=0.02, ha="left")
    return figure


def _plain(axes: Axes) -> None:
    axes.grid(color="#e3e6ea", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def history(asked: Asked, found: Sequence[Record], records: Sequence[Record]) -> Figure | None:
    """Every trial's value by its number, and the best so far as a line."""
    complete = sorted(
        (record for record in found if record["state"] == "complete"), key=lambda record: record["number"]
    )
    if not complete:
        return None
    figure = _figure(f"{asked.goal.metric} of the trials")
    axes = figure.subplots()
    best: list[float] = []
    steps: list[int] = []
    for record in complete:
        if not best or asked.goal.better(record["value"], best[-1]):
            best.append(record["value"])
            steps.append(record["number"])
    last = max(record["number"] for record in records)
    axes.step([*steps, last], [*best, best[-1]], where="post", color=COLOURS[0], linewidth=1.8, label="best so far")
    for state, colour in (("complete", COLOURS[0]), ("pruned", GREY)):
        some = [record for record in found if record["state"] == state]
        if some:
            numbers, values = [r["number"] for r in some], [r["value"] for r in some]
            axes.scatter(numbers, values, s=22, color=colour, label=f"{state} ({len(some)})", zorder=3)
    valueless = [record["number"] for record in records if record["value"] is None]
    if valueless:
        low = axes.get_ylim()[0]
        label = f"no value ({len(valueless)})"
        axes.scatter(valueless, [low] * len(valueless), marker="x", s=26, color="#c2553d", label=label, zorder=3)
    axes.set_xlabel("trial")
    axes.set_ylabel(asked.goal.metric)
    axes.legend(frameon=False)
    _plain(axes)
    return figure


def importance(asked: Asked, study: Any) -> Figure | None:
    """How much each setting decides whether a trial is among the better ones (PED-ANOVA)."""
    if study is None:
        return None
    import optuna

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = optuna.importance.get_param_importances(study)
    except (ValueError, RuntimeError):  # too few trials, or all alike
        return None
    if not found or not all(map(math.isfinite, found.values())):
        return None
    figure = _figure("How much each setting mattered", height=1.4 + 0.45 * len(found))
    axes = figure.subplots()
    names = list(found)[::-1]
    axes.barh(names, [found[name] for name in names], color=COLOURS[0], height=0.62)
    for place, name in enumerate(names):
        axes.annotate(
            f"{found[name]:.2f}", (found[name], place), xytext=(6, 0), textcoords="offset points", va="center"
        )
    axes.set_xlim(0, max(found.values()) * 1.12 or 1)
    axes.set_xlabel("share of what decides (PED-ANOVA of the complete trials)")
    _plain(axes)
    return figure


def parallel(asked: Asked, found: Sequence[Record]) -> Figure | None:
    """An axis for each setting and one for the value, a line for each complete trial; better ones are darker."""
    if len(found) < 2:
        return None
    from matplotlib import colormaps

    dimensions = asked.space.dimensions
    figure = _figure(f"Settings and {asked.goal.metric}", width=max(6.0, 2.1 * (len(dimensions) + 1)))
    axes = figure.subplots()
    values = [record["value"] for record in found]
    scale_value, low, high = _scale(min(values), max(values), False)
    scales = [_scale_of(one) for one in dimensions]
    order = sorted(found, key=lambda record: record["value"], reverse=asked.goal.direction == "minimize")
    for place, record in enumerate(order):
        heights = [scale(record["params"][one.name]) for one, scale in zip(dimensions, scales, strict=True)]
        share = place / max(len(order) - 1, 1)
        colour = colormaps["viridis_r"](0.05 + 0.9 * share)
        axes.plot(
            range(len(heights) + 1), [*heights, scale_value(record["value"])], color=colour, linewidth=1.1 + share
        )
    names = [*(one.name for one in dimensions), asked.goal.metric]
    axes.set_xticks(range(len(names)), names)
    axes.set_yticks([])
    axes.set_ylim(-0.08, 1.08)
    axes.set_xlim(-0.3, len(names) - 0.4)
    for place, one in enumerate(dimensions):
        axes.axvline(place, color=GREY, linewidth=0.9)
        for value in one.ends:
            shown = show(one.setting(value) if one.choices else value)
            axes.annotate(
                shown, (place, scales[place](one.setting(value))), xytext=(4, 2), textcoords="offset points", fontsize=8
            )
    axes.axvline(len(dimensions), color=DARK, linewidth=1)
    for value in (low, high):
        axes.annotate(
            show(value), (len(dimensions), scale_value(value)), xytext=(4, 2), textcoords="offset points", fontsize=8
        )
    axes.spines[["top", "right", "left", "bottom"]].set_visible(False)
    return figure


def _scale_of(one: Dimension) -> Callable[[Any], float]:
    """From a setting's value to its height, from 0 to 1."""
    if one.choices:
        places = {value: place / (len(one.choices) - 1) for place, value in enumerate(one.choices)}
        return lambda value: places[value]
    scale, _, _ = _scale(one.low, one.high, one.log)
    return lambda value: scale(float(str(value).partition("->")[0]))


def _scale(low: float, high: float, log: bool) -> tuple[Callable[[float], float], float, float]:
    width = (math.log(high / low) if log else high - low) or 1.0
    return (lambda value: (math.log(value / low) if log else value - low) / width), low, high


def descent(asked: Asked, lineage: Sequence[Record]) -> Figure | None:
    """A panel for each setting that is a number: a line for each member over env steps, dots where it went on from another."""
    numbers = [one for one in asked.space.dimensions if not one.choices]
    if not lineage or not numbers:
        return None
    figure = _figure("Who went on from whom", height=1.2 + 2.8 * len(numbers))
    panels = figure.subplots(len(numbers), 1, squeeze=False, sharex=True)[:, 0]
    last = asked.config.steps
    members = sorted({row["member"] for row in lineage})
    for panel, one in zip(panels, numbers, strict=True):
        for member in members:
            own = [row for row in lineage if row["member"] == member]
            steps = [*(row["env_steps"] for row in own), last]
            values = [row["after"][one.name] for row in own]
            colour = COLOURS[member % len(COLOURS)]
            label = f"member {member}"
            panel.step(steps, [*values, values[-1]], where="post", color=colour, linewidth=1.3, alpha=0.85, label=label)
            panel.scatter(steps[1:-1], values[1:], s=16, color=colour, zorder=3)
            for row in own[1:]:
                from_value = _held(lineage, row["parent"], row["env_steps"], one.name)
                panel.plot(
                    [row["env_steps"]] * 2, [from_value, row["after"][one.name]], color=GREY, linewidth=0.8, zorder=1
                )
        if one.log:
            panel.set_yscale("log")
        panel.set_ylabel(one.name)
        _plain(panel)
    if len(members) <= len(COLOURS):
        panels[0].legend(frameon=False, fontsize=8, ncols=4)
    panels[-1].set_xlabel("env steps of each member")
    panels[-1].xaxis.set_major_formatter(lambda value, _: steps_label(value))
    return figure


def _held(lineage: Sequence[Record], member: int, env_steps: int, name: str) -> float:
    """What a member's setting was at that moment; parents keep theirs."""
    before = [row["after"][name] for row in lineage if row["member"] == member and row["env_steps"] <= env_steps]
    return float(np.asarray(before[-1]))
