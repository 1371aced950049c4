"""The live line of a run: a bar on a terminal, a plain line now and then anywhere else."""

from __future__ import annotations

import math
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.text import Text

REFRESH_S = 0.1
PLAIN_S = 10.0
RATE_WINDOW_S = 20.0
SHORTEST_BAR = 8
LONGEST_BAR = 40
SCALES = ((1e3, "k", 1), (1e6, "M", 2), (1e9, "G", 2), (math.inf, "", 0))


class Progress:
    """Shows the rows of a run that goes from `start_steps` to `total_steps` env steps. Rows in between are skipped.

    It draws when `update` is called and has no thread; call `close` at the end, also after an error.
    """

    def __init__(
        self,
        total_steps: int,
        start_steps: int = 0,
        stream: TextIO | None = None,
        enabled: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        from rich.console import Console

        self._total = total_steps
        self._stream = stream if stream is not None else sys.stderr
        self._enabled = enabled
        self._clock = clock
        self._started = clock()
        self._points = deque([(self._started, start_steps)])
        self._row: Mapping[str, Any] | None = None
        self._shown: Mapping[str, Any] | None = None
        terminal = self._stream.isatty()
        self._console = Console(file=self._stream, force_terminal=terminal, highlight=False, markup=False, emoji=False)
        self._live = terminal and not self._console.is_dumb_terminal
        self._period = REFRESH_S if self._live else PLAIN_S
        self._due = self._started if self._live else self._started + PLAIN_S
        self._closed = False

    def update(self, row: Mapping[str, Any]) -> None:
        """Take an iteration's metrics; they are drawn when the last drawing is old enough."""
        self._row = row
        now = self._clock()
        if now >= self._due and not self._closed:
            self._due = now + self._period
            self._draw(now)

    def message(self, text: str) -> None:
        """Print a line above the bar."""
        if not self._enabled:
            return
        self._clear()
        self._stream.write(text + "\n")
        if self._live and self._shown is not None and not self._closed:
            self._draw(self._clock())
        self._stream.flush()

    def close(self) -> None:
        """Draw the last row if it was skipped, and leave the line."""
        if self._closed:
            return
        self._closed = True
        if self._row is not None and self._row is not self._shown:
            self._draw(self._clock())
        if self._live and self._shown is not None and self._enabled:
            self._stream.write("\n")
            self._stream.flush()

    def _draw(self, now: float) -> None:
        if not self._enabled or self._row is None:
            return
        steps = int(self._row["env_steps"])
        rate = self._rate(now, steps)
        done = min(steps / self._total, 1.0) if self._total > 0 else 1.0
        words = self._words(steps, rate, now - self._started)
        self._shown = self._row
        if self._live:
            self._clear()
            self._console.print(self._line(done, words), end="", soft_wrap=True)
        else:
            self._stream.write(f"{percent(done)}  {'  '.join(words)}\n")
        self._stream.flush()

    def _words(self, steps: int, rate: float, elapsed: float) -> list[str]:
        row = self._row or {}
        words = [f"{human(steps)}/{human(self._total)} steps"]
        for key, label in (("return_mean", "return"), ("eval_return_mean", "eval")):
            value = row.get(key)
            if value is not None and math.isfinite(value):
                words.append(f"{label} {value:.1f}" if abs(value) < 1e5 else f"{label} {human(value)}")
        words.append(f"steps/s {human(rate)}")
        left = max(self._total - steps, 0)
        words.append(f"left {duration(left / rate) if rate > 0 else '?'}")
        if "limited_by" in row:
            words.append(f"limit {row['limited_by']}")
        return [*words, f"elapsed {duration(elapsed)}"]

    def _rate(self, now: float, steps: int) -> float:
        """Env steps per second over the recent past, so that a slow start or a change of pace wears off."""
        self._points.append((now, steps))
        while len(self._points) > 2 and self._points[1][0] <= now - RATE_WINDOW_S:
            self._points.popleft()
        then, before = self._points[0]
        return (steps - before) / (now - then) if now > then else 0.0

    def _line(self, done: float, words: list[str]) -> Text:
        """One row of the terminal: what doesn't fit is left out from the end, the bar takes what is over."""
        from rich.text import Text

        room = self._console.width - 1 - len("100%  ")
        while len(words) > 1 and len("  ".join(words)) > room:
            words = words[:-1]
        if words[-1].startswith("elapsed") and room - len("  ".join(words)) <= SHORTEST_BAR:
            words = words[:-1]
        spare = room - len("  ".join(words)) - 1
        size = min(spare, LONGEST_BAR) if spare >= SHORTEST_BAR else 0
        filled = int(size * done)
        full, empty = ("━", "━") if self._console.encoding.startswith("utf") else ("#", "-")
        line = Text()
        line.append(full * filled, style="green")
        line.append(empty * (size - filled), style="bright_black")
        line.append(" " * (size > 0) + percent(done), style="bold")
        line.append("  " + "  ".join(words))
        line.truncate(self._console.width - 1)
        return line

    def _clear(self) -> None:
        if self._live and self._shown is not None:
            self._stream.write("\r\x1b[2K")


def percent(share: float) -> str:
    """Four characters; 100% only when all is done."""
    return f"{int(share * 100 + 1e-9):3d}%"


def human(number: float) -> str:
    """Three figures or so: 950, 8.1k, 12.3k, 100k, 1.20M, 3.45G."""
    if abs(number) < 999.5:
        return f"{number:.0f}" if abs(number) >= 100 or float(number).is_integer() else f"{number:.1f}"
    divisor, unit, most_digits = next(scale for scale in SCALES if abs(number) / scale[0] < 999.5)
    size = number / divisor
    digits = 0 if abs(size) >= 99.95 else 1 if abs(size) >= 9.995 else 2
    return f"{size:.{min(digits, most_digits)}f}{unit}"


def duration(seconds: float) -> str:
    """0:12, 3:07, 1:02:03, 2d 04:05."""
    whole = round(seconds)
    minutes, second = divmod(whole, 60)
    hour, minute = divmod(minutes, 60)
    if hour >= 24:
        return f"{hour // 24}d {hour % 24:02d}:{minute:02d}"
    return f"{hour}:{minute:02d}:{second:02d}" if hour else f"{minute}:{second:02d}"
