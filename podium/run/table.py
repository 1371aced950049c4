"""Rows as a table: drawn on a terminal, plain aligned text anywhere else."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]


def table(rows: Sequence[Row], columns: Sequence[str]) -> None:
    """Print `rows` to stdout under the named columns; a column that holds numbers alone is set to the right."""
    cells = [[show(row.get(name)) for name in columns] for row in rows]
    right = [_is_numeric(rows, name) for name in columns]
    if sys.stdout.isatty():
        _print_drawn(cells, columns, right)
    else:
        _print_plain(cells, columns, right)


def show(value: Any) -> str:
    """A cell's text: thousands apart, four figures of a fraction, nothing for None."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return str(value)


def _is_numeric(rows: Sequence[Row], name: str) -> bool:
    values = [row[name] for row in rows if row.get(name) is not None]
    return bool(values) and all(isinstance(value, int | float) for value in values)


def _print_drawn(cells: Sequence[Sequence[str]], columns: Sequence[str], right: Sequence[bool]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(header_style="bold")
    for name, to_right in zip(columns, right, strict=True):
        drawn.add_column(Text(name), justify="right" if to_right else "left", overflow="fold")
    for line in cells:
        drawn.add_row(*map(Text, line))
    Console(file=sys.stdout).print(drawn)


def _print_plain(cells: Sequence[Sequence[str]], columns: Sequence[str], right: Sequence[bool]) -> None:
    lines = [list(columns), *cells]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    for line in lines:
        aligned = [
            text.rjust(width) if to_right else text.ljust(width)
            for text, width, to_right in zip(line, widths, right, strict=True)
        ]
        print("  ".join(aligned).rstrip())
