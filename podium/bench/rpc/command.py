"""`podium bench rpc` and `launcher.py`: flags, rows in alternation, the report."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from podium.bench.rpc import settings as flags
from podium.bench.rpc.settings import FIELDS, MEET_AT_A_PORT, Axis, Settings
from podium.core.errors import PodiumError

DESCRIPTION = """One agent answers the requests of world_size - 2 observers for actions, and each measures what that takes.
At most one of the flags marked * may hold several values with commas between them: the report's x axis."""
OUT = Path("benchmark_report.json")


def main(words: Sequence[str], parser_class: type[argparse.ArgumentParser]) -> int:
    """Measure, write the report and print it."""
    name, *rest = words
    parser = parser_class(prog="podium bench rpc", description=DESCRIPTION, allow_abbrev=False)
    for flag, field in FIELDS.items():
        parser.add_argument(f"--{flag}", metavar=flag.upper(), help=("* " if field.several else "") + field.help)
    parser.add_argument("--output_file_path", type=Path, default=OUT, metavar="FILE", help=f"the report; {OUT}")
    parser.add_argument("--rounds", default="1", metavar="N", help="measure all rows this often, keep the medians; 1")
    asked = "measure a bare echo after each row; True if there are several transports"
    parser.add_argument("--bare", metavar="BARE", help=asked)
    parser.add_argument("--json", action="store_true", help="print the report as JSON, and nothing else, on stdout")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    own = parser.parse_args(_underscored(rest))
    from podium.bench.report import check_out

    given = {flag: str(getattr(own, flag)) for flag in FIELDS if getattr(own, flag) is not None}
    settings, axis = flags.read(given)
    rounds = flags.whole("rounds", own.rounds)
    several = axis is not None and axis.name == "transport"
    bare = flags.truth("bare", own.bare) if own.bare is not None else several and settings.rate is None
    check_out(own.output_file_path, "--output_file_path")
    rows = flags.along(settings, axis)
    _check_places(rows)
    return _run(rows, axis, rounds, bare, own, [name, *rest])


def _underscored(words: Sequence[str]) -> list[str]:
    """`--world-size 3` and `--world_size=3` are the same."""
    parts = [word.partition("=") for word in words]
    return [
        (name.replace("-", "_").replace("__", "--", 1) + equals + value)
        if name.startswith("--")
        else name + equals + value
        for name, equals, value in parts
    ]


def _check_places(rows: Sequence[Settings]) -> None:
    from podium.bench.rpc.carriers import CARRIERS

    used = [row for row in rows if row.transport in MEET_AT_A_PORT]
    if used and flags.check_address(used[0].master_addr, used[0].master_port):
        host = used[0].master_addr
        what = (
            "torch_rpc unpickles what it is sent" if any(row.transport == "torch_rpc" for row in used) else "no token"
        )
        print(f"podium: --master_addr {host} can be reached from other machines ({what})", file=sys.stderr)
    for transport in dict.fromkeys(row.transport for row in rows):
        CARRIERS[transport].check()


def _run(rows: list[Settings], axis: Axis | None, rounds: int, bare: bool, own: Any, words: Sequence[str]) -> int:
    from podium.bench.rpc import report
    from podium.bench.rpc.alternate import Bar, alternate
    from podium.run.folder import to_json, write_atomically

    found: list[list[Any]] = [[] for _ in rows]
    failed: str | None = None
    try:
        with Bar(not own.quiet and sys.stderr.isatty()) as bar:
            alternate(rows, axis, rounds, bare, found, bar)
    except PodiumError as error:
        failed = str(error)
        raise
    finally:
        measured = [report.row(row, of) for row, of in zip(rows, found, strict=True) if len(of) == rounds]
        if measured or failed:
            content = report.content(rows[0], axis, measured, words, failed)
            write_atomically(own.output_file_path, to_json(content, indent=2) + "\n")
    if own.json:
        print(to_json(content))
        return 0
    report.show(content, list(FIELDS))
    print(f"\n  report  {own.output_file_path}")
    return 0
