"""The trials of a search as they go on: a table that changes on a terminal, a line for each one anywhere else."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from time import monotonic
from typing import TYPE_CHECKING, Any

from podium.run.progress import human
from podium.run.table import show
from podium.tuning.goal import Goal

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

REDRAW_S = 0.25
MOST_ROWS = 16
ORDER = ("running", "complete", "missed", "pruned", "failed")


class Board:
    """`update` takes what is new of one trial; running ones stand first, then the best."""

    def __init__(self, goal: Goal, trials: int, title: str, enabled: bool = True) -> None:
        self._goal, self._trials, self._title, self._enabled = goal, trials, title, enabled
        self._rows: dict[int, dict[str, Any]] = {}
        self._live: Live | None = None
        self._drawn = 0.0
        if enabled and sys.stderr.isatty():
            from rich.console import Console
            from rich.live import Live

            self._live = Live(console=Console(stderr=True), auto_refresh=False, transient=False)
            self._live.start()

    def update(self, number: int, params: Mapping[str, Any], state: str, **figures: Any) -> None:
        before = self._rows.get(number, {})
        self._rows[number] = {**before, "number": number, "params": dict(params), "state": state, **figures}
        if self._live is not None:
            self._redraw(force=state != "running")
        elif self._enabled and state != "running":
            print(_line(self._rows[number], self._goal.metric), file=sys.stderr, flush=True)

    def say(self, line: str) -> None:
        """A line beside the table."""
        if self._live is not None:
            self._live.console.print(line, highlight=False)
        elif self._enabled:
            print(line, file=sys.stderr, flush=True)

    def _redraw(self, force: bool) -> None:
        assert self._live is not None
        if force or monotonic() - self._drawn > REDRAW_S:
            self._drawn = monotonic()
            self._live.update(self._table(), refresh=True)

    def _table(self) -> Table:
        from rich.table import Table

        names = list(dict.fromkeys(name for row in self._rows.values() for name in row["params"]))
        over = [row for row in self._rows.values() if row["state"] != "running"]
        table = Table(title=f"{self._title}: {len(over)} of {self._trials} trials", title_justify="left")
        soon = ("return",) if self._goal.spends else ()
        for name in ("trial", *names, self._goal.metric, *soon, "env steps", "state"):
            table.add_column(name, justify="left" if name == "state" else "right", overflow="fold")
        rows = sorted(self._rows.values(), key=self._rank)
        for row in rows[:MOST_ROWS]:
            table.add_row(
                str(row["number"]),
                *(show(row["params"].get(name)) for name in names),
                show(row.get("value")),
                *(show(row.get(name)) for name in soon),
                human(row.get("env_steps") or 0),
                row["state"] + (f": {row['cause']}" if row.get("cause") else ""),
            )
        if len(rows) > MOST_ROWS:
            table.caption = f"and {len(rows) - MOST_ROWS} more"
        return table

    def _rank(self, row: Mapping[str, Any]) -> tuple[int, float, int]:
        value = row.get("value")
        good = 0.0 if value is None else value if self._goal.direction == "minimize" else -value
        return ORDER.index(row["state"]), 0.0 if row["state"] == "running" else good, row["number"]

    def close(self) -> None:
        if self._live is not None:
            self._live.update(self._table(), refresh=True)
            self._live.stop()
            self._live = None


def _line(row: Mapping[str, Any], metric: str) -> str:
    params = ", ".join(f"{name} {show(value)}" for name, value in row["params"].items())
    value = "" if row.get("value") is None else f"{metric} {show(row['value'])}, "
    spent = f" ({human(row['env_steps'])} env steps)" if row.get("env_steps") else ""
    cause = f": {row['cause']}" if row.get("cause") else ""
    return f"trial {row['number']} {row['state']}: {value}{params}{spent}{cause}"
