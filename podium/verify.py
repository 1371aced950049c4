"""`podium verify`: trains the reference rows over their seeds and says which reach their return."""

from __future__ import annotations

import sys
import tempfile
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

from podium.core.errors import UsageError, known_names
from podium.run.folder import RunFolder, to_json, write_atomically

ROWS = Path(__file__).with_name("verify.toml")


@dataclass(frozen=True)
class Row:
    """A run that must reach a return within some env steps, on every seed; with `length`, all episodes that long."""

    name: str
    algo: str
    env: str
    reach: float
    within: int
    seeds: list[int]
    quick: int
    preset: str | None = None
    length: int | None = None
    settings: dict[str, Any] = field(default_factory=dict)


def rows() -> list[Row]:
    """The reference rows."""
    return [Row(**row) for row in tomllib.loads(ROWS.read_text())["row"]]


def main(words: Sequence[str], parser_class: Callable[..., Any]) -> int:
    """The command: prints a line per seed on stderr and a table at the end; 1 if any row fell short."""
    parser = parser_class(
        prog="podium verify", description="Check that the algorithms still learn.", allow_abbrev=False
    )
    parser.add_argument("names", nargs="*", metavar="ALGO|ROW", help="only these")
    parser.add_argument("--quick", action="store_true", help="fewer seeds a row: minutes")
    parser.add_argument("--out", metavar="JSON", help="write the report here")
    parser.add_argument("--json", action="store_true")
    own = parser.parse_args(list(words))
    report = [_verify(row, row.seeds[: row.quick] if own.quick else row.seeds) for row in _chosen(own.names)]
    if own.out:
        write_atomically(Path(own.out), to_json(report, indent=2) + "\n")
    if own.json:
        print(to_json(report))
    else:
        from podium.run.table import table

        table([{name: value for name, value in row.items() if name != "runs"} for row in report], COLUMNS)
    return 0 if all(row["verdict"] == "pass" for row in report) else 1


COLUMNS = ["row", "target", "reached", "slowest", "verdict"]


def _chosen(names: Sequence[str]) -> list[Row]:
    known = rows()
    words = {row.name for row in known} | {row.algo for row in known}
    for name in names:
        if name not in words:
            raise UsageError(f"nothing to verify for {name!r}{known_names(name, words)}")
    return [row for row in known if not names or row.name in names or row.algo in names]


def _verify(row: Row, seeds: Sequence[int]) -> dict[str, Any]:
    runs = [_run(row, seed) for seed in seeds]
    good = [run for run in runs if run["passed"]]
    return {
        "row": row.name,
        "target": f"{row.env} >= {row.reach:g} within {row.within:,}",
        "reached": f"{len(good)} of {len(runs)}",
        "slowest": max(run["env_steps"] for run in runs),
        "verdict": "pass" if len(good) == len(runs) else "BELOW",
        "runs": runs,
    }


def _run(row: Row, seed: int) -> dict[str, Any]:
    from podium import api

    began = perf_counter()
    with tempfile.TemporaryDirectory(prefix="podium-verify-") as folder:
        result = api.train(
            row.algo,
            row.env,
            out=Path(folder) / "run",
            preset=row.preset,
            progress=sys.stderr.isatty(),
            seed=seed,
            steps=row.within,
            stop_return=None if row.length else row.reach,
            **row.settings,
        )
        metrics = RunFolder.open(result.folder).read_metrics()
    lengths = [line["length_mean"] for line in metrics if line["length_mean"] is not None]
    whole = row.length is None or all(length == row.length for length in lengths)
    passed = whole and result["best_return"] is not None and result["best_return"] >= row.reach
    run = {name: result[name] for name in ("seed", "env_steps", "return_mean", "best_return")}
    run |= {"seconds": round(perf_counter() - began, 1), "passed": passed}
    best = "no full 100 episodes" if run["best_return"] is None else f"{run['best_return']:.1f}"
    print(
        f"{row.name} seed {seed}: {'reached' if passed else 'BELOW'}: {best} after {run['env_steps']:,} steps, "
        f"{run['seconds']:.0f} s",
        file=sys.stderr,
        flush=True,
    )
    return run
