"""A benchmark's report: rows, targets and the machine, as JSON, a plot and a table."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from podium.bench.measure import THREADS
from podium.core.errors import UsageError
from podium.run.folder import to_json, write_atomically

OURS = "podium"
KEYS = ("case", "contender", "axis", "x", "unit", "median", "runs", "ratio_to")
PACKAGES = ("podium", "torch", "numpy", "gymnasium", "envpool", "ale-py", "stable_baselines3", "ray")


@dataclass(frozen=True)
class Target:
    """How many times the speed of another contender is to be reached."""

    against: str
    least: float


@dataclass
class Measured:
    """What one case came to: each contender's runs, and the targets that hold for it."""

    case: str
    runs: Mapping[str, Sequence[float]]
    targets: Sequence[Target] = ()
    unit: str = "steps/s"
    point: Mapping[str, Any] = field(default_factory=dict)
    """Where on an axis this is (`axis` its name, `x` the place), and what else was noted of Podium there."""


@dataclass
class Report:
    """Everything that one benchmark run found."""

    kind: str
    words: Sequence[str]
    cases: list[Measured] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        """Something that a reader of the figures must know, told at once and kept in the report."""
        self.notes.append(text)
        print(f"podium: {text}", file=sys.stderr)

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "command": shlex.join(["podium", "bench", *self.words]),
            "machine": machine(),
            "rows": [row for case in self.cases for row in _rows(case)],
            "targets": [target for case in self.cases for target in _targets(case)],
            "notes": self.notes,
        }


def _rows(measured: Measured) -> list[dict[str, Any]]:
    return [
        {
            "case": measured.case,
            "contender": name,
            **(measured.point if name == OURS else _where(measured.point)),
            "unit": measured.unit,
            "median": median(runs),
            "runs": list(runs),
            "ratio_to": {other: ratio(runs, theirs) for other, theirs in measured.runs.items() if other != name},
        }
        for name, runs in measured.runs.items()
    ]


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> float | None:
    """The median of the rounds' ratios: what a round measures one after the other shares the machine's moods. There is none
    to returns of 0."""
    return None if 0 in theirs else median(a / b for a, b in zip(ours, theirs, strict=True))


def _targets(measured: Measured) -> list[dict[str, Any]]:
    """Each target with what was reached; neither a value nor a verdict where the other was not measured."""
    found = []
    for target in measured.targets:
        value = None
        if target.against in measured.runs:
            value = ratio(measured.runs[OURS], measured.runs[target.against])
        found.append(
            {
                "case": measured.case,
                "what": f"{OURS} / {target.against}{_place(measured.point)}",
                "target": target.least,
                "value": value,
                "met": None if value is None else value >= target.least,
            }
        )
    return found


def _where(point: Mapping[str, Any]) -> dict[str, Any]:
    """Without what was noted of Podium alone."""
    return {key: value for key, value in point.items() if key in KEYS}


def _place(point: Mapping[str, Any]) -> str:
    return f" at {point['x']} {point['axis']}" if point else ""


def machine() -> dict[str, Any]:
    """What the figures depend on besides the code."""
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "threads": THREADS,
        "python": platform.python_version(),
        **{name: version(name) for name in PACKAGES},
    }


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def check_out(out: Path, flag: str = "--out") -> None:
    """Refuse a file that can't be written before anything is measured."""
    if out.suffix != ".json":
        raise UsageError(f"{flag} is {str(out)!r}, expected a name that ends in .json")
    if out.is_dir():
        raise UsageError(f"{flag} is {str(out)!r}, which is a folder, expected a file")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"can't write to {out.parent}: {error.strerror or error}") from None
    if not os.access(out.parent, os.W_OK):
        raise UsageError(f"can't write to {out.parent}: no permission")


def publish(report: Report, out: Path, as_json: bool) -> None:
    """Write the JSON and its plot, and print either the JSON or tables."""
    from podium.run.plot import plot_runs

    content = report.to_json()
    write_atomically(out, to_json(content, indent=2) + "\n")
    plot = plot_runs([out])
    if as_json:
        print(to_json(content))
        return
    _print(content)
    print(f"\n  report  {out}\n  plot    {plot}")


def _print(content: Mapping[str, Any]) -> None:
    from podium.run.table import table

    rows = [
        {
            **row,
            row.get("axis", ""): row.get("x"),
            row["unit"]: row["median"],
            "lowest": min(row["runs"]),
            "highest": max(row["runs"]),
            **{f"to {other}": value for other, value in row["ratio_to"].items()},
        }
        for row in content["rows"]
    ]
    first = content["rows"][0]
    axis = [first["axis"]] if "axis" in first else []
    noted = [key for key in first if key not in KEYS]
    others = dict.fromkeys(name for row in rows for name in row if name.startswith("to ") and name != f"to {OURS}")
    table(rows, ["case", "contender", *axis, first["unit"], "lowest", "highest", *others, *noted])
    if content["targets"]:
        print()
        verdict = {True: "met", False: "missed", None: "not measured"}
        targets = [{**t, "target": f">= {t['target']:g}", "met": verdict[t["met"]]} for t in content["targets"]]
        table(targets, ["case", "what", "value", "target", "met"])
