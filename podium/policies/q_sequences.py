"""The value-based policy with a memory: it learns from sequences, whose first rows only lead its state to the others."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import torch
from torch import Tensor

from podium.core.batch import Batch
from podium.core.returns import n_step_parts
from podium.core.spaces import under
from podium.policies.networks import State
from podium.policies.q import QPolicy, Said
from podium.policies.q_networks import QNetwork
from podium.policies.torch import Loaded, Minibatch, Report, tensor

LEARNED, MASK = "learned", "mask"


@dataclass(frozen=True)
class Targets:
    """Of the rows that are learned from, by their flat places in `rows`: the sum of their rewards, what the value of what
    follows is worth, and where that is said in a table. The table has the rows behind the burn-in, then what each env
    came to after the last of them, then the observations that ended episodes there, which are `ends` of the finals."""

    rows: np.ndarray
    gain: np.ndarray
    discount: np.ndarray
    follows: np.ndarray
    ends: np.ndarray


def targets(batch: Batch, burn_in: int, gamma: float, n: int) -> Targets:
    """Sums of up to `n` rewards within the sequence: fewer at an end of an episode, and at the end of the sequence."""
    terminated, truncated, reward, learned = (
        batch[name][burn_in:] for name in ("terminated", "truncated", "reward", LEARNED)
    )
    gain, summed = n_step_parts(reward, terminated | truncated, gamma, n)
    length, width = reward.shape
    after = np.arange(width, (length + 1) * width).reshape(length, width)
    ends = np.zeros(0, np.int64)
    if (finals := batch.finals) is not None:
        ends = np.flatnonzero(finals.t >= burn_in)
        after[finals.t[ends] - burn_in, finals.n[ends]] = (length + 1) * width + np.arange(len(ends))
    t, env = np.nonzero(learned)
    last = t + summed[t, env] - 1
    discount = (gamma ** summed[t, env] * ~terminated[last, env]).astype(np.float32)
    return Targets(t * width + env, gain[t, env], discount, after[last, env], ends)


class SequenceQPolicy(QPolicy):
    """It learns from what a replay of sequences gives. The network and its target each begin with the state that is stored
    for a sequence's first row, and go without a gradient over `burn_in` rows."""

    model: QNetwork
    _target: QNetwork

    def _gradient(
        self, loaded: Loaded, minibatch: Minibatch, envs: np.ndarray | None, now: SimpleNamespace
    ) -> tuple[Tensor, Report]:
        for model in (self.model, self._target):
            model.renew(self._rng)
        batch = loaded.batch
        to = targets(batch, now.burn_in, now.gamma, now.n_step)
        errors = np.zeros((batch.length - now.burn_in, batch.width), np.float32)
        if not len(to.rows):
            self._errors = errors
            return torch.zeros_like(self._flat), {"loss": 0.0}
        rows = self._rows(loaded, to, now.burn_in)
        gradient, report = self._descent(self._said(loaded, to, rows, now.burn_in), rows, now)
        errors.reshape(-1)[to.rows] = self._errors
        self._errors = errors
        return gradient, report

    def _rows(self, loaded: Loaded, to: Targets, burn_in: int) -> Minibatch:
        """The rows that are learned from, with what they are to be learned by."""
        at = self._here(to.rows)
        given = {name: loaded.columns[name][burn_in:].flatten(0, 1)[at] for name in ("action", "weight")}
        columns = {**given, "return": self._here(to.gain), "discount": self._here(to.discount)}
        return Minibatch(columns, lambda column: column, len(to.rows))

    def _said(self, loaded: Loaded, to: Targets, rows: Minibatch, burn_in: int) -> Said:
        online = self._table(self.model, loaded, to, burn_in)
        with torch.no_grad():
            target = self._table(self._target, loaded, to, burn_in)
        at, follows = self._here(to.rows), self._here(to.follows)
        mask = None
        if MASK in loaded.columns:
            mask = self._here(_legal(loaded.batch, len(to.ends), burn_in)[to.follows])
        next_online = online.detach()
        return Said(self.value, online[at], rows["action"], target[follows], lambda: next_online[follows], mask)

    def _table(self, model: QNetwork, loaded: Loaded, to: Targets, burn_in: int) -> Tensor:
        """What a network says of every row behind the burn-in, and of the observations beyond them."""
        seen = {path: self._filtered(path, loaded.columns[path]) for path in self._paths}
        start, state = loaded.columns["start"], loaded.first
        if burn_in:
            with torch.no_grad():
                warm = {path: column[:burn_in] for path, column in seen.items()}
                state = model.unroll(warm, state, start[:burn_in])[1][-1][1]
        rows = {path: column[burn_in:] for path, column in seen.items()}
        said, states = model.unroll(rows, state, start[burn_in:])
        with torch.no_grad():
            beyond, _ = model.step(*self._beyond(loaded.batch, to, states, burn_in))
        return torch.cat([said.flatten(0, 1), beyond])

    def _beyond(
        self, batch: Batch, to: Targets, states: list[tuple[int, State]], burn_in: int
    ) -> tuple[dict[str, Tensor], State]:
        """The observations that no row shows, and the states that they are looked at with: a cut is followed by a start."""
        ends = to.ends
        finals = under(batch.finals.cols, "obs") if batch.finals is not None and len(ends) else {}
        obs = {
            path: np.concatenate([batch.last[path], finals[path][ends]]) if finals else batch.last[path]
            for path in self._paths
        }
        picked = [states[-1][1]]
        if batch.finals is not None:
            behind, env = batch.finals.t[ends] - burn_in + 1, batch.finals.n[ends]
            for row, state in states:
                here = self._here(env[behind == row])
                picked.append({name: part[here] for name, part in state.items()})
        state = {name: torch.cat([part[name] for part in picked]) for name in picked[0]}
        return {path: self._filtered(path, self._here(column)) for path, column in obs.items()}, state

    def _here(self, array: np.ndarray) -> Tensor:
        return tensor(array).to(self.device)


def _legal(batch: Batch, ends: int, burn_in: int) -> np.ndarray:
    """The masks of all in the table; of observations that ended episodes nobody has said what is legal there."""
    rows = batch[MASK][burn_in:]
    return np.concatenate([rows.reshape(-1, rows.shape[-1]), batch.last[MASK], np.ones((ends, rows.shape[-1]), bool)])
