"""What the benchmark found: the JSON with the known keys, and the printed table in the known shape."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from statistics import median
from typing import Any

import numpy as np

from podium.bench.report import machine, version
from podium.bench.rpc.run import Found
from podium.bench.rpc.settings import Axis, Settings

QUANTILES = {"p50": 0.5, "p75": 0.75, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p99.9": 0.999}
PRINTED = ("p50", "p75", "p90", "p95")
METRICS = (
    "agent latency (seconds)",
    "agent throughput",
    "observer latency (seconds)",
    "observer throughput",
)
PACKAGES = ("podium", "numpy", "torch", "grpcio", "ray")
TITLE = "PyTorch distributed rpc benchmark reinforcement learning suite"
WIDTH = 12


def row(settings: Settings, rounds: Sequence[Found]) -> dict[str, Any]:
    """One row: the round whose rate is the median of all, and beside it what every round came to."""
    middle = sorted(rounds, key=lambda found: found.rate)[(len(rounds) - 1) // 2]
    found = {"transport": settings.transport, **_figures(middle)}
    bare = [one.bare for one in rounds if one.bare is not None]
    if bare:
        found["bare requests per second"] = median(bare)
        found["ratio to bare"] = median(one.rate / one.bare for one in rounds if one.bare is not None)
    if settings.rate is not None:
        found["due per second"] = settings.rate
    found |= {
        "cores": len(os.sched_getaffinity(0)),
        "versions": versions(),
        "rounds": [
            {**_figures(one), "bare requests per second": one.bare, "wall seconds": one.wall_s} for one in rounds
        ],
    }
    return found


def _figures(found: Found) -> dict[str, Any]:
    answered, seconds = found.passes[:, 0], found.passes[:, 1]
    values = (seconds, answered / seconds, found.latencies, 1 / found.latencies)
    return {
        **{name: quantiles(value) for name, value in zip(METRICS, values, strict=True)},
        "requests": len(found.latencies),
        "requests per second": found.rate,
        "mean batch": float(answered.mean()),
        "cpu seconds per request": found.cpu_s / len(found.latencies),
    }


def quantiles(values: np.ndarray) -> dict[str, float]:
    return dict(zip(QUANTILES, np.quantile(values, list(QUANTILES.values())).tolist(), strict=True))


def versions() -> dict[str, str | None]:
    return {name: version(name) for name in PACKAGES}


def content(
    settings: Settings, axis: Axis | None, rows: Iterable[Mapping[str, Any]], words: Sequence[str], failed: str | None
) -> dict[str, Any]:
    """The whole report; of one that failed, the rows that were measured before, and why."""
    values = axis.values if axis is not None else ()
    labels = [{axis.name: value} for value in values] if axis is not None else [{}]
    several = {axis.name: list(values)} if axis is not None else {}
    return {
        "kind": "bench-rpc",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["podium", "bench", *words]),
        "machine": machine(),
        **{name: value for name, value in asdict(settings).items() if value is not None},
        **several,
        "x_axis_name": axis.name if axis is not None else None,
        **({"failed": failed} if failed is not None else {}),
        "benchmark_results": [{**label, **found} for label, found in zip(labels, rows, strict=False)],
    }


def show(report: Mapping[str, Any], names: Sequence[str]) -> None:
    """Print it: banner, settings, header, one line for each row."""
    x = report["x_axis_name"]
    carriers = report["transport"]
    banner = f"{TITLE}: {', '.join(carriers) if isinstance(carriers, list) else carriers}"
    print("-" * len(banner), banner, "-" * len(banner), sep="\n")
    for name in names:
        if name in report:
            print(f"{name} : {_setting(report[name])}")
    print(f"x_axis_name : {x}\n")
    rows = report["benchmark_results"]
    labels = [str(found[x]) if x is not None else "" for found in rows]
    first = max(map(len, [x or "", *labels]))
    group = (WIDTH + 1) * len(PRINTED) - 1
    heads = " | ".join(f"{name:<{group}}" for name in METRICS)
    print(f"{x or '':<{first}} | {heads}".rstrip())
    under = " | ".join(" ".join(f"{name:<{WIDTH}}" for name in PRINTED) for _ in METRICS)
    print(f"{'':<{first}} | {under}".rstrip())
    for label, found in zip(labels, rows, strict=True):
        cells = " | ".join(" ".join(f"{_number(found[name][q]):<{WIDTH}}" for q in PRINTED) for name in METRICS)
        print(f"{label:<{first}} | {cells}".rstrip())
    print()
    _show_totals(x, labels, rows)


def _show_totals(x: str | None, labels: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
    from podium.run.table import table

    columns = ["requests per second", "mean batch", "cpu seconds per request", "due per second"]
    columns += ["bare requests per second", "ratio to bare"]
    shown = [name for name in columns if any(name in found for found in rows)]
    first = [x] if x is not None else []
    table([{**found, **({x: label} if x else {})} for label, found in zip(labels, rows, strict=True)], [*first, *shown])


def _setting(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _number(value: float) -> str:
    """Six figures, never with an exponent that hides how small it is."""
    return f"{value:.6f}" if value < 1 else f"{value:.{max(0, 6 - len(str(int(value))))}f}"
