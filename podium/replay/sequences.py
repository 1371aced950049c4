"""A replay of sequences for recurrent policies (Kapturowski et al., 2019): stored state, and rows that only warm it up."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from podium.core.batch import Batch, Finals
from podium.core.spaces import Frames, under
from podium.replay.base import Drawn
from podium.replay.prioritized import PrioritizedReplay
from podium.replay.uniform import MASK

LEARNED = "learned"


class SequenceReplay(PrioritizedReplay):
    """Sequences of `burn_in + length` rows that begin at every `every`-th row of a stream, and may go over the ends of
    episodes. They are drawn as a batch `[burn_in + length, B]`: `first` is the recurrent state that the columns
    `state/...` hold for the first row, `last` and `finals` what the rows led to, and `learned` says which rows are to be
    learned from; the others lead the state there. An `alpha` of 0 draws all alike.
    """

    def __init__(
        self,
        capacity: int,
        *,
        length: int,
        burn_in: int = 0,
        every: int = 1,
        seed: int = 0,
        frames: Mapping[str, Frames] | None = None,
        alpha: float = 0.0,
        eta: float = 0.9,
    ) -> None:
        super().__init__(capacity, seed=seed, frames=frames, n_step=burn_in + length, alpha=alpha)
        self.length, self.burn_in, self.every, self.eta = length, burn_in, every, eta

    def _enter(self, at: np.ndarray) -> None:
        super()._enter(at[at % self.every == 0])

    def sample(self, count: int, gamma: float = 0.0, beta: float = 0.0) -> Drawn:
        """Sequences, with the rewards as they were; `gamma` is for whoever finishes them."""
        self._check_any()
        at, stream, weight = self._draw(count, beta)
        rows, steps = self.rows, self.n_step
        ahead = at + np.arange(steps)[:, None]
        streams = np.broadcast_to(stream, ahead.shape)
        cols = {
            name: rows.take(column, ahead, streams)
            for name, column in rows.columns.items()
            if name not in under({name: 0}, "obs")
        }
        for name in under(rows.columns, "obs"):
            seen = rows.observed(name, ahead.reshape(-1), streams.reshape(-1))
            cols[name] = seen.reshape(steps, count, *seen.shape[1:])
        terminated, done = (rows.take(part, ahead, streams) for part in (rows.terminated, rows.done))
        usable = rows.take(rows.usable, ahead, streams)
        cols |= {"terminated": terminated, "truncated": done & ~terminated, "valid": usable}
        cols |= {"start": rows.take(rows.start, ahead, streams), "weight": np.broadcast_to(weight, ahead.shape)}
        cols[LEARNED] = usable & (np.arange(steps) >= self.burn_in)[:, None]
        first = {name: column[0] for name, column in under(cols, "state").items()}
        last = {name: rows.take(rows.columns[name], ahead[-1] + 1, stream) for name in first}
        last |= {name: rows.after(name, ahead[-1], stream).copy() for name in under(rows.columns, "obs")}
        if MASK in rows.columns:
            last[MASK] = self._legal_after(ahead[-1], stream)
        return Drawn(Batch(cols, first, last, self._finals(ahead, streams)), at * rows.width + stream)

    def _finals(self, ahead: np.ndarray, streams: np.ndarray) -> Finals:
        rows = self.rows
        t, n = np.nonzero(rows.take(rows.beside.at, ahead, streams) >= 0)
        at, stream = ahead[t, n], streams[t, n]
        return Finals(t, n, {name: rows.after(name, at, stream).copy() for name in rows.seen})

    def feedback(self, ids: np.ndarray, errors: np.ndarray) -> None:
        """Errors `[length, B]` of the rows behind the burn-in: a sequence counts by the maximum and the mean of those that
        were learned from."""
        at = ids // self.rows.width + self.burn_in + np.arange(self.length)[:, None]
        learned = self.rows.take(self.rows.usable, at, np.broadcast_to(ids % self.rows.width, at.shape))
        size = np.where(learned, np.abs(errors), 0.0)
        mean = size.sum(axis=0) / np.maximum(learned.sum(axis=0), 1)
        super().feedback(ids, self.eta * size.max(axis=0) + (1 - self.eta) * mean)
