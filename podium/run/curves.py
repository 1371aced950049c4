"""Learning curves: one line per run, and a mean with its band where runs differ in the seed alone."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from podium.core.errors import UsageError, did_you_mean

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#1b62a5", "#d9641e", "#2a8c57", "#a83279", "#6b5bb5", "#8a6d1f", "#1f8fa3", "#5c6670")
NOT_COMPARED = ("seed", "out")
"""Settings in which two runs may differ and still be the same experiment."""

RETURN, EVAL = "return_mean", "eval_return_mean"
LABELS = {
    RETURN: "return (mean of the last 100 episodes)",
    EVAL: "return of evaluation episodes (mean)",
    "steps_per_s": "env steps per second",
    "length_mean": "episode length (env steps)",
    "wall_s": "wall-clock time (s)",
}


@dataclass(frozen=True)
class Curve:
    """What one metrics.jsonl holds; `config` is empty where the file stands alone."""

    file: Path
    name: str
    config: Mapping[str, Any]
    rows: Sequence[Mapping[str, Any]]

    @property
    def experiment(self) -> str:
        """Equal for runs that may be averaged."""
        kept = {key: value for key, value in _flat(self.config).items() if key not in NOT_COMPARED}
        return json.dumps(kept, sort_keys=True) if kept else str(self.file)

    @property
    def title(self) -> str:
        return f"{self.config['algo']} {self.config['env']}" if self.config else self.name

    def points(self, metric: str) -> tuple[list[float], list[float]]:
        """Env steps and values of the rows where there is one."""
        found = [(row["env_steps"], row[metric]) for row in self.rows if _is_number(row.get(metric))]
        return [steps for steps, _ in found], [value for _, value in found]


def draw(runs: Sequence[Curve], metric: str | None) -> Figure:
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    main = metric or RETURN
    for run in runs:
        _check_has(run, main)
    figure = Figure(figsize=(9, 5), layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.1))
    axes = figure.add_subplot()
    groups: dict[str, list[Curve]] = {}
    for run in runs:
        groups.setdefault(run.experiment, []).append(run)
    labels = _labels(list(groups.values()))
    for index, (group, label) in enumerate(zip(groups.values(), labels, strict=True)):
        colour = COLOURS[index % len(COLOURS)]
        _draw_group(axes, group, main, label if len(labels) > 1 else "training", colour, "-")
        if metric is None and any(run.points(EVAL)[0] for run in group):
            evaluation = f"{label}, evaluation" if len(labels) > 1 else "evaluation"
            _draw_group(axes, group, EVAL, evaluation, colour, (0, (4, 1.5)))
    _style(axes, metric)
    axes.set_title(_title(runs, labels), fontsize=13, fontweight="bold", loc="left", pad=10)
    if len(axes.get_legend_handles_labels()[1]) > 1:
        axes.legend(loc="best", fontsize=9, framealpha=0.9, edgecolor="#e3e6ea")
    return figure


def _style(axes: Axes, metric: str | None) -> None:
    from matplotlib.ticker import FuncFormatter

    axes.set_xlabel("env steps")
    axes.set_ylabel(LABELS.get(metric or RETURN, (metric or RETURN).replace("_", " ")))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: steps_label(value)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: value_label(value)))
    axes.grid(color="#e3e6ea", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#9aa3ad")
    axes.margins(x=0.02)


def _draw_group(axes: Axes, group: Sequence[Curve], metric: str, label: str, colour: str, dashes: Any) -> None:
    import numpy as np

    curves = [points for points in (run.points(metric) for run in group) if points[0]]
    start, end = max(steps[0] for steps, _ in curves), min(steps[-1] for steps, _ in curves)
    averaged = len(curves) > 1 and start < end
    for index, (steps, values) in enumerate(curves):
        marker = "o" if len(steps) == 1 or (metric == EVAL and len(steps) <= 60) else None
        width, alpha = (0.7, 0.45) if averaged else (1.8, 1.0)
        line = axes.plot(steps, values, color=colour, linestyle=dashes, marker=marker, linewidth=width, alpha=alpha)[0]
        line.set_markersize(3.5)
        if index == 0 and not averaged:
            line.set_label(label)
    if not averaged:
        return
    grid = np.linspace(start, end, 400)
    stacked = np.stack([np.interp(grid, steps, values) for steps, values in curves])
    axes.plot(grid, stacked.mean(0), color=colour, linestyle=dashes, linewidth=2.2, label=label)
    if metric != EVAL:  # a second band in the same colour would hide the first
        axes.fill_between(grid, stacked.min(0), stacked.max(0), color=colour, alpha=0.15, linewidth=0)


def _labels(groups: Sequence[Sequence[Curve]]) -> list[str]:
    """`ppo CartPole-v1 seed 1`, `ppo CartPole-v1 (5 seeds)`; where that is not enough, the settings that differ."""
    titles = [group[0].title for group in groups]
    labels = []
    for group, title in zip(groups, titles, strict=True):
        rivals = [other[0] for other, theirs in zip(groups, titles, strict=True) if theirs == title]
        parts = [title, *_differences(group[0], rivals)]
        labels.append(", ".join(parts) + _seeds(group))
    return [
        f"{label} [{group[0].name}]" if labels.count(label) > 1 else label
        for label, group in zip(labels, groups, strict=True)
    ]


def _seeds(group: Sequence[Curve]) -> str:
    seeds = [run.config.get("seed") for run in group]
    if len(group) > 1:
        return f" ({len(group)} {'seeds' if len(set(seeds)) == len(group) else 'runs'})"
    return f" seed {seeds[0]}" if seeds[0] is not None else ""


def _differences(run: Curve, rivals: Sequence[Curve]) -> list[str]:
    """The first three settings of a run that not all its rivals share."""
    configs = [_flat(rival.config) for rival in rivals]
    mine = _flat(run.config)
    differing = [key for key in mine if key not in NOT_COMPARED and any(c.get(key) != mine[key] for c in configs)]
    return [f"{key} {mine[key]}" for key in differing[:3]]


def _flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by their last name, also where the config nests them."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        flat.update(_flat(value) if isinstance(value, Mapping) else {key: value})
    return flat


def _title(runs: Sequence[Curve], labels: Sequence[str]) -> str:
    if len(labels) == 1:
        return labels[0]
    known = [run.config for run in runs if run.config]
    envs = {str(config["env"]) for config in known}
    algos = {str(config["algo"]) for config in known}
    if len(known) < len(runs) or len(envs) > 1:
        return "Learning curves"
    return f"{' and '.join(sorted(algos))} on {envs.pop()}"


def _check_has(run: Curve, metric: str) -> None:
    if run.points(metric)[0]:
        return
    known = sorted({key for row in run.rows for key, value in row.items() if _is_number(value)} - {"env_steps"})
    if any(metric in row for row in run.rows):
        raise UsageError(f"{run.file} has no value of {metric} in any row yet: nothing to plot")
    hint = did_you_mean(metric, known) or f"; it has {', '.join(known)}"
    raise UsageError(f"{run.file} has no metric {metric!r}{hint}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def value_label(value: float) -> str:
    text = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:g}"
    return text.replace("-", "\N{MINUS SIGN}")


def steps_label(value: float) -> str:
    """0, 500, 20k, 1.5M."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"
