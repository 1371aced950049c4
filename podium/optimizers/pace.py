"""How sampling and learning keep step where nobody calls them in turns: which of them waits for the other, and when."""

from __future__ import annotations

from dataclasses import dataclass

UNLIMITED = 1 << 60
ROUNDS_AHEAD = 2
"""Fragments of every sampler that may be ahead of the learner: one that is being played, and one to learn from meanwhile."""


@dataclass(frozen=True)
class Pace:
    """An update is due for each `every` env steps beyond the first `starts`. A learner that waits makes none before it is
    due; samplers that wait begin no fragment, of `fragment` steps at most, that would lead them too far ahead of it."""

    starts: int
    every: float
    fragment: int
    samplers: int
    learner_waits: bool = True
    samplers_wait: bool = True

    def due(self, seen: int) -> int:
        """Updates in all that may be made after so many env steps."""
        if not self.learner_waits:
            return UNLIMITED if seen >= self.starts else 0
        return max(int((seen - self.starts) / self.every), 0)

    def may_play(self, seen: int, under_way: int, updates: int) -> bool:
        """Whether one more fragment may begin after so many env steps, fragments that are being played, and updates."""
        if not self.samplers_wait:
            return True
        ahead = seen + (under_way + 1) * self.fragment - self.starts - updates * self.every
        return ahead <= ROUNDS_AHEAD * self.samplers * self.fragment + self.every
