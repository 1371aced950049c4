"""Tables: aligned text for a pipe, a drawing for a terminal."""

from __future__ import annotations

import io
import sys

import pytest

from podium.run.table import show, table

ROWS = [
    {"name": "ppo", "steps": 100_000, "ratio": 0.98765},
    {"name": "a2c [old]", "steps": 500, "ratio": None},
]


def test_plain_text_is_aligned_and_has_no_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    table(ROWS, ["name", "steps", "ratio"])
    assert capsys.readouterr().out == (
        "name         steps   ratio\n"
        "ppo        100,000  0.9877\n"
        "a2c [old]      500\n"
    )  # fmt: skip


def test_columns_come_in_the_order_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    table(ROWS, ["steps", "name"])
    assert capsys.readouterr().out.splitlines()[1] == "100,000  ppo"


def test_without_rows_the_head_alone_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    table([], ["name", "steps"])
    assert capsys.readouterr().out == "name  steps\n"


def test_a_terminal_gets_a_drawn_table_with_every_cell_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        encoding = "utf-8"

        def isatty(self) -> bool:
            return True

    stream = Terminal()
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setenv("COLUMNS", "80")
    table(ROWS, ["name", "steps", "ratio"])
    printed = stream.getvalue()
    assert "┃" in printed
    for cell in ("ppo", "a2c [old]", "100,000", "0.9877"):
        assert cell in printed


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, ""), (True, "yes"), (12, "12"), (1234567, "1,234,567"), (0.5, "0.5"), (12345.678, "12,346"), ("x", "x")],
)
def test_cells(value: object, text: str) -> None:
    assert show(value) == text
