"""Fragments that are not in step: each fills with the rows of one simulator's episodes, at its own pace."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from podium.core.batch import Batch, Finals, empty_aligned
from podium.core.spaces import Columns
from podium.envs.base import MASK

FLAGS = ("terminated", "truncated", "valid", "start")


class Fragment:
    """One column of a batch on its way to `steps` rows. A row is written in two parts, the action and what it led to,
    and counts from the second. `begun` is where the episode under way began in it."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.rows = self.begun = 0
        self.cols: Columns = {}
        self.first: Columns = {}
        self.last: Columns = {}
        self.finals: list[tuple[int, Columns]] = []

    @property
    def full(self) -> bool:
        return self.rows == self.steps

    def act(self, row: Columns, state: Columns, starting: bool) -> None:
        """What was observed and done, and the recurrent state before it, all without an axis of rows."""
        if not self.cols:
            self.cols = {name: np.empty((self.steps, *part.shape), part.dtype) for name, part in row.items()}
            self.cols["reward"] = np.empty(self.steps, np.float32)
            self.cols |= {name: np.empty(self.steps, bool) for name in FLAGS}
        if self.rows == 0:
            self.first = {name: part.copy() for name, part in state.items()}
        for name, part in row.items():
            self.cols[name][self.rows] = part
        self.cols["start"][self.rows] = starting

    def lead(self, reward: float, terminated: bool, truncated: bool, obs: Columns, state: Columns) -> None:
        """What came of it: the next observation, or the episode's last, and the state with which it is looked at."""
        values = zip(("reward", *FLAGS[:3]), (reward, terminated, truncated, True), strict=True)
        for name, value in values:
            self.cols[name][self.rows] = value
        after = {**{name: part for name, part in obs.items() if name != MASK}, **state}
        if terminated or truncated:
            self.finals.append((self.rows, after))
        self.rows += 1
        if self.full:
            over = terminated or truncated
            self.last = {**after, **{name: np.zeros_like(part) for name, part in state.items()}} if over else after

    def cut(self) -> None:
        """Forget the rows of the episode under way."""
        self.rows = self.begun


def side_by_side(fragments: Sequence[Fragment]) -> Batch:
    """Full fragments as one batch."""
    head, n = fragments[0], len(fragments)
    cols = {}
    for name, column in head.cols.items():
        cols[name] = empty_aligned((head.steps, n, *column.shape[1:]), column.dtype)
        np.stack([fragment.cols[name] for fragment in fragments], axis=1, out=cols[name])
    first, last = (
        {name: np.stack([getattr(fragment, side)[name] for fragment in fragments]) for name in getattr(head, side)}
        for side in ("first", "last")
    )
    ends = sorted(
        ((t, i, obs) for i, fragment in enumerate(fragments) for t, obs in fragment.finals), key=lambda end: end[:2]
    )
    times, envs = (np.array([end[place] for end in ends], np.int64) for place in (0, 1))
    after = {name: np.array([obs[name] for _, _, obs in ends], part.dtype) for name, part in last.items()}
    shaped = {name: part.reshape(len(ends), *last[name].shape[1:]) for name, part in after.items()}
    return Batch(cols, first, last, Finals(times, envs, shaped))
