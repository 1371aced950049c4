"""The rows of a report, measured in alternation over the rounds, and the bar that shows how far that is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any

from podium.bench.rpc.run import Found, measure, measure_bare
from podium.bench.rpc.settings import Axis, Settings


class Bar:
    """Rich's bar on stderr, or nothing."""

    def __init__(self, shown: bool) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        parts = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"))
        times = (TimeElapsedColumn(), TimeRemainingColumn())
        self._progress = Progress(*parts, *times, console=Console(stderr=True), disable=not shown, refresh_per_second=4)
        self._task = self._progress.add_task("starting", total=1.0)
        self._done = 0.0

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(self, *raised: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._progress.stop()

    def expect(self, measurements: int) -> None:
        self._progress.update(self._task, total=float(measurements))

    def begin(self, what: str) -> None:
        self._progress.update(self._task, description=what)

    def share(self, share: float) -> None:
        self._progress.update(self._task, completed=self._done + share)

    def end(self) -> None:
        self._done += 1.0
        self.share(0.0)


def alternate(
    rows: Sequence[Settings], axis: Axis | None, rounds: int, bare: bool, found: Sequence[list[Any]], bar: Bar
) -> None:
    """A, bare A, B, bare B, A, bare A, ...: what each came to is added to its list in `found`."""
    bar.expect(len(rows) * rounds * (1 + bare))
    for _ in range(rounds):
        for row, of in zip(rows, found, strict=True):
            label = f"{row.transport}, {axis.name} {getattr(row, axis.name)}" if axis is not None else row.transport
            bar.begin(label)
            one: Found = measure(row, bar.share)
            bar.end()
            if bare:
                bar.begin(f"{label}, bare")
                one = replace(one, bare=measure_bare(row, bar.share))
                bar.end()
            of.append(one)
