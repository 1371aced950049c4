"""The live line, drawn on a stream that says it is a terminal and on one that says it is not."""

from __future__ import annotations

import io
import re
import time

import pytest

from podium.run.progress import Progress, duration, human, percent


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "120")
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)


def row(steps: int, **more: float | None) -> dict[str, float | None]:
    return {"env_steps": steps, "return_mean": 231.4, **more}


def drawn(stream: io.StringIO) -> list[str]:
    """What each drawing of the line showed, without colours."""
    lines = re.split(r"\r\x1b\[2K|\n", stream.getvalue())
    return [text for text in (re.sub(r"\x1b\[[0-9;]*m", "", line) for line in lines) if text]


def test_the_line_has_all_its_parts() -> None:
    stream, clock = Terminal(), Clock()
    progress = Progress(100_000, stream=stream, clock=clock)
    clock.now += 5.0
    progress.update(row(40_500, eval_return_mean=250.0))
    (line,) = drawn(stream)
    # 40,500 steps in 5 s are 8.1 k/s; the other 59,500 take 7.3 s
    assert line.endswith(" 40%  40.5k/100k steps  return 231.4  eval 250.0  steps/s 8.1k  left 0:07  elapsed 0:05")
    assert set(line.partition(" ")[0]) == {"━"}


def test_the_bar_grows_with_the_share_and_the_line_stays_within_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for width in (200, 120, 80, 60, 40, 20, 10):
        monkeypatch.setenv("COLUMNS", str(width))
        stream, clock = Terminal(), Clock()
        progress = Progress(100, stream=stream, clock=clock)
        for steps in range(0, 101, 10):
            clock.now += 1.0
            progress.update(row(steps))
        progress.close()
        lines = drawn(stream)
        assert len(lines) == 11 and max(map(len, lines)) < width
    monkeypatch.setenv("COLUMNS", "120")
    stream, clock = Terminal(), Clock()
    progress = Progress(100, stream=stream, clock=clock)
    for steps in (0, 50, 100):
        clock.now += 1.0
        progress.update(row(steps))
    filled = [len(text) for text in re.findall("\x1b\\[32m(━+)", stream.getvalue())]
    assert len(filled) == 2 and filled[1] == pytest.approx(2 * filled[0], abs=3)
    assert "100%" in drawn(stream)[-1]


def test_it_draws_ten_times_a_second_at_most_and_always_the_last() -> None:
    stream, clock = Terminal(), Clock()
    progress = Progress(10_000, stream=stream, clock=clock)
    for steps in range(1, 401):  # 40 updates a second for 10 s
        clock.now += 0.025
        progress.update(row(steps))
    before_close = len(drawn(stream))
    assert 80 <= before_close <= 101
    progress.update(row(9_999))
    progress.close()
    assert len(drawn(stream)) == before_close + 1
    assert "10.0k/10.0k steps" in drawn(stream)[-1] and " 99%" in drawn(stream)[-1]
    assert stream.getvalue().endswith("\n")
    progress.close()
    progress.update(row(10_000))
    assert len(drawn(stream)) == before_close + 1


def test_time_left_goes_by_the_recent_rate() -> None:
    stream, clock = Terminal(), Clock()
    progress = Progress(1_000_000, stream=stream, clock=clock)
    steps = 0
    for rate, seconds in ((100, 60), (1000, 60)):  # a slow minute, then a quick one
        for _ in range(seconds):
            clock.now += 1.0
            steps += rate
            progress.update(row(steps))
    # 934,000 steps are left: 15:34 at the 1,000/s of late, 28:18 at the mean of both minutes
    assert "steps/s 1.0k  left 15:34  elapsed 2:00" in drawn(stream)[-1]


def test_a_resumed_run_does_not_count_what_was_done_before_as_speed() -> None:
    stream, clock = Terminal(), Clock()
    progress = Progress(100_000, start_steps=90_000, stream=stream, clock=clock)
    clock.now += 10.0
    progress.update(row(91_000))
    assert "steps/s 100  left 1:30" in drawn(stream)[-1]


def test_without_a_terminal_a_plain_line_every_ten_seconds_and_a_last_one() -> None:
    stream, clock = io.StringIO(), Clock()
    progress = Progress(100_000, stream=stream, clock=clock)
    for steps in range(1, 1001):  # 25 s
        clock.now += 0.025
        progress.update(row(steps * 10, return_mean=None))
    progress.close()
    lines = stream.getvalue().splitlines()
    assert len(lines) == 3
    assert lines[-1] == " 10%  10.0k/100k steps  steps/s 400  left 3:45  elapsed 0:25"
    assert not re.search(r"[^\x20-\x7e\n]", stream.getvalue())


def test_colour_forced_by_the_environment_does_not_reach_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    stream = io.StringIO()
    progress = Progress(100, stream=stream)
    progress.update(row(50))
    progress.message("saved")
    progress.close()
    assert "\x1b" not in stream.getvalue() and "\r" not in stream.getvalue()


def test_a_dumb_terminal_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    stream = Terminal()
    progress = Progress(100, stream=stream)
    progress.update(row(50))
    progress.close()
    assert stream.getvalue().count("\n") == 1 and "\x1b" not in stream.getvalue()


def test_a_message_stands_above_the_bar() -> None:
    stream, clock = Terminal(), Clock()
    progress = Progress(100, stream=stream, clock=clock)
    progress.message("starting")
    clock.now += 1.0
    progress.update(row(50))
    progress.message("saved [step-50]")
    progress.close()
    assert [line.strip("━ ").split("  ")[0] for line in drawn(stream)] == ["starting", "50%", "saved [step-50]", "50%"]
    assert "saved [step-50]\n" in stream.getvalue()


def test_disabled_it_writes_nothing_on_a_terminal() -> None:
    stream, clock = Terminal(), Clock()
    progress = Progress(100, stream=stream, enabled=False, clock=clock)
    clock.now += 1.0
    progress.update(row(50))
    progress.message("text")
    progress.close()
    assert stream.getvalue() == ""


def test_close_before_any_row_writes_nothing() -> None:
    stream = Terminal()
    Progress(100, stream=stream).close()
    assert stream.getvalue() == ""


def test_ten_seconds_of_updates_costs_less_than_a_hundredth() -> None:
    stream, clock = Terminal(), Clock()
    progress = Progress(10_000_000, stream=stream, clock=clock)
    began = time.process_time()
    for steps in range(400):  # 10 s of training at 40 iterations a second
        clock.now += 0.025
        progress.update(row(steps))
    assert time.process_time() - began < 0.1


@pytest.mark.parametrize(
    ("number", "text"),
    [
        *[(0, "0"), (0.4, "0.4"), (950, "950"), (999.7, "1.0k"), (8123, "8.1k"), (12_345, "12.3k"), (-8123, "-8.1k")],
        *[(99_960, "100k"), (100_000, "100k"), (999_400, "999k"), (999_600, "1.00M"), (1_200_000, "1.20M")],
        *[(12_340_000, "12.3M"), (123_400_000, "123M"), (3.45e9, "3.45G")],
    ],
)
def test_human_numbers(number: float, text: str) -> None:
    assert human(number) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0:00"), (12.4, "0:12"), (59.6, "1:00"), (187, "3:07"), (3723, "1:02:03"), (187_500, "2d 04:05")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_percent_is_full_only_when_all_is_done() -> None:
    assert [percent(share) for share in (0.0, 0.29, 0.999, 1.0)] == ["  0%", " 29%", " 99%", "100%"]
