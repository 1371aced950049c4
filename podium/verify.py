"""`podium verify`: trains the reference rows over their seeds and says which reach their return, or lie in their band."""

from __future__ import annotations

import sys
import tempfile
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from time import perf_counter
from typing import Any

from podium.core.errors import UsageError, known_names
from podium.run.folder import RunFolder, to_json, write_atomically

ROWS = Path(__file__).with_name("verify.toml")
EPISODES = 100
"""How many a policy plays, without exploring, to be held against a band."""


@dataclass(frozen=True)
class Row:
    """A run over seeds, of at most `within` env steps. Either each seed must `reach` a return, and ends there; with
    `length`, all episodes must be that long. Or all steps are run, and the mean of the seeds' policies is to lie in the
    `band` that `source` gave."""

    name: str
    algo: str
    env: str
    within: int
    seeds: list[int]
    quick: int
    reach: float | None = None
    band: tuple[float, float] | None = None
    source: str | None = None
    preset: str | None = None
    length: int | None = None
    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if (self.reach is None) == (self.band is None) or (self.band is None) != (self.source is None):
            raise ValueError(f"{self.name}: expected either reach, or band and source")


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
    parser.add_argument("--seed", type=int, metavar="N", help="of each row's seeds only this one")
    parser.add_argument("--out", metavar="JSON", help="write the report here")
    parser.add_argument("--json", action="store_true")
    own = parser.parse_args(list(words))
    seeds = {row.name: row.seeds[: row.quick] if own.quick else row.seeds for row in rows()}
    if own.seed is not None:
        seeds = {name: [own.seed] if own.seed in known else [] for name, known in seeds.items()}
    chosen = [row for row in _chosen(own.names) if seeds[row.name]]
    if not chosen and own.seed is not None:
        raise UsageError(f"--seed {own.seed} is none of the seeds of {' '.join(own.names) or 'any row'}")
    if not chosen:
        raise UsageError(
            f"nothing to verify with --quick in {' '.join(own.names)}: expected it without, which takes hours"
        )
    report = [_verify(row, seeds[row.name]) for row in chosen]
    if own.out:
        write_atomically(Path(own.out), to_json(report, indent=2) + "\n")
    if own.json:
        print(to_json(report))
    else:
        from podium.run.table import table

        table([{name: value for name, value in row.items() if name != "runs"} for row in report], COLUMNS)
    return 1 if any(row["verdict"] == "BELOW" for row in report) else 0


COLUMNS = ["row", "target", "reached", "steps", "verdict"]


def _chosen(names: Sequence[str]) -> list[Row]:
    known = rows()
    words = {row.name for row in known} | {row.algo for row in known}
    for name in names:
        if name not in words:
            raise UsageError(f"nothing to verify for {name!r}{known_names(name, words)}")
    return [row for row in known if not names or row.name in names or row.algo in names]


def _verify(row: Row, seeds: Sequence[int]) -> dict[str, Any]:
    runs = [_run(row, seed) for seed in seeds]
    found = {"row": row.name, "steps": max(run["env_steps"] for run in runs), "runs": runs}
    if row.band is None:
        good = [run for run in runs if run["passed"]]
        return found | {
            "target": f"{row.env} >= {row.reach:g} within {row.within:,}",
            "reached": f"{len(good)} of {len(runs)}",
            "verdict": "pass" if len(good) == len(runs) else "BELOW",
        }
    low, high = row.band
    value = mean(run["played_mean"] for run in runs)
    return found | {
        "target": f"{row.env} {low:,g} to {high:,g} at {row.within:,}",
        "source": row.source,
        "reached": f"{value:,.1f}",
        "verdict": "BELOW" if value < low else "above" if value > high else "pass",
    }


def _run(row: Row, seed: int) -> dict[str, Any]:
    """Train on one seed; of a row with a band, let the policy play."""
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
        played = api.evaluate(result.folder, EPISODES)["return_mean"] if row.band is not None else None
    run = {name: result[name] for name in ("seed", "env_steps", "return_mean", "best_return")}
    run |= {"seconds": round(perf_counter() - began, 1)}
    if row.reach is not None:
        lengths = [line["length_mean"] for line in metrics if line["length_mean"] is not None]
        whole = row.length is None or all(length == row.length for length in lengths)
        run["passed"] = whole and result["best_return"] is not None and result["best_return"] >= row.reach
        best = "no full 100 episodes" if run["best_return"] is None else f"{run['best_return']:.1f}"
        said = f"{'reached' if run['passed'] else 'BELOW'}: {best}"
    else:
        run["played_mean"] = played
        said = f"{played:,.1f} over {EPISODES} episodes"
    print(
        f"{row.name} seed {seed}: {said} after {run['env_steps']:,} steps, {run['seconds']:.0f} s",
        file=sys.stderr,
        flush=True,
    )
    return run
