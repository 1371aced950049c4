"""Learning on sequences: sums and what follows them by hand, states that agree with playing, rows that teach nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from podium import algorithms
from podium.core.batch import Batch, Finals
from podium.core.spaces import Box, Discrete
from podium.policies.base import Sgd
from podium.policies.q_sequences import SequenceQPolicy, targets
from podium.policies.torch import Loaded
from podium.replay.sequences import SequenceReplay

SPACE, ACTIONS = Box.of(-1, 1, (3,)), Discrete(4)
SMALL: dict[str, Any] = {"hidden": (16,), "memory_size": 8, "lr": 1e-2, "n_step": 2, "gamma": 0.9}
KINDS: dict[str, dict[str, Any]] = {
    "plain": {"double": False, "dueling": False, "rescale": False},
    "lstm": {},
    "gru": {"memory": "gru"},
    "noisy": {"noisy": True},
    "categorical": {"distribution": "categorical", "atoms": 11, "v_min": -5, "v_max": 5},
    "quantile": {"distribution": "quantile", "atoms": 7},
    "filtered": {"normalize_obs": True},
}
STEPS, CUT, END = 20, 9, 14


def policy(seed: int = 0, **settings: Any) -> SequenceQPolicy:
    r2d2 = algorithms.get("r2d2")
    made = r2d2.policy(r2d2.configure(None, {**SMALL, **settings}), SPACE, ACTIONS, seed)
    assert isinstance(made, SequenceQPolicy)
    return made


def column(values: Any, kind: Any = np.float32) -> np.ndarray:
    return np.array(values, kind).reshape(len(values), -1)


def test_sums_and_what_follows_them_by_hand() -> None:
    """Two envs, one row of burn-in, up to 3 rewards, gamma 0.5. The first is cut at row 3 of 8 and ends at row 5; the
    second goes on, but its row 2 is not learned from. The table has 7 rows of two, then 14 and 15 after the last, then
    16: what the cut led to."""
    rewards = column([[9, 8], [1, 8], [2, 8], [4, 8], [8, 8], [16, 8], [32, 8], [64, 8]])
    truncated, terminated = (column([[t == at, False] for t in range(8)], bool) for at in (3, 5))
    learned = column([[t > 0, t not in (0, 2)] for t in range(8)], bool)
    cols = {"reward": rewards, "truncated": truncated, "terminated": terminated, "learned": learned}
    finals = Finals(np.array([3]), np.array([0]), {"obs": np.zeros((1, 3), np.float32)})
    to = targets(Batch(cols, {}, {}, finals), 1, 0.5, 3)
    first, second = (to.rows % 2 == env for env in (0, 1))
    assert to.rows.tolist() == [0, 1, 2, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13]
    # 1 + 2/2 + 4/4, 2 + 4/2, 4 | 8 + 16/2, 16 | 32 + 64/2, 64
    assert to.gain[first].tolist() == [3, 4, 4, 16, 16, 64, 64]
    assert to.discount[first].tolist() == [0.125, 0.25, 0.5, 0, 0, 0.25, 0.5]
    follows = to.follows[first]
    assert follows[:3].tolist() == [16] * 3, "what the cut led to, not row 6: there another episode begins"
    assert follows[5:].tolist() == [14, 14]
    assert to.gain[second].tolist() == [14, 14, 14, 14, 12, 8]
    assert to.discount[second].tolist() == [0.125, 0.125, 0.125, 0.125, 0.25, 0.5]
    assert to.follows[second].tolist() == [7, 11, 13, 15, 15, 15]
    beyond = targets(Batch(cols, {}, {}), 1, 0.5, 3)
    assert beyond.follows[first][:3].tolist() == [6] * 3, "an env that begins anew a row later shows it there"


@torch.no_grad()
def played(made: SequenceQPolicy) -> tuple[Batch, torch.Tensor, torch.Tensor]:
    """An env's rows as a collector gives them, cut at one row and ended at another; what the network said of each, and of
    the observation that the cut led to."""
    rng = np.random.default_rng(0)
    obs = rng.uniform(-1, 1, (STEPS + 1, 1, 3)).astype(np.float32)
    cut_to = rng.uniform(-1, 1, (1, 3)).astype(np.float32)
    state = made.initial_state(1)
    kept: dict[str, list[np.ndarray]] = {name: [] for name in state}
    said, after_cut = [], {}
    for t in range(STEPS):
        if t - 1 in (CUT, END):
            state = made.initial_state(1)
        acted = made.act({"obs": obs[t]}, state, explore=False)
        for name, part in acted.extra.items():
            kept[name].append(part)
        said.append(made._look({"obs": obs[t]}, state)[0])
        state = acted.state
        if t == CUT:
            after_cut = state
    t = np.arange(STEPS)
    cols = {
        "obs": obs[:-1],
        "reward": column(rng.normal(size=STEPS)),
        "action": column(rng.integers(4, size=STEPS), np.int64),
        "terminated": column(t == END, bool),
        "truncated": column(t == CUT, bool),
        "start": column(np.isin(t, (0, CUT + 1, END + 1)), bool),
        **{name: np.stack(parts) for name, parts in kept.items()},
    }
    finals = Finals(np.array([CUT]), np.array([0]), {"obs": cut_to, **after_cut})
    batch = Batch(cols, made.initial_state(1), {"obs": obs[-1], **state}, finals)
    return batch, torch.cat(said), made._look({"obs": cut_to}, after_cut)[0][0]


def drawn(batch: Batch, burn_in: int, length: int) -> tuple[Batch, np.ndarray]:
    replay = SequenceReplay(100, length=length, burn_in=burn_in)
    replay.insert([batch])
    found = replay.sample(64, 0.9)
    return found.batch, found.ids


def table(made: SequenceQPolicy, batch: Batch, burn_in: int) -> tuple[torch.Tensor, torch.Tensor]:
    """What the network says of the rows `[T, N, actions]`, and of the observations beyond them."""
    loaded = Loaded(batch, made.device, True)
    with torch.no_grad():
        means = made.value.mean(made._table(made.model, loaded, targets(batch, burn_in, 0.9, 2), burn_in))
    rows = (batch.length - burn_in) * batch.width
    return means[:rows].unflatten(0, (-1, batch.width)), means[rows:]


@pytest.mark.parametrize("memory", ["lstm", "gru"])
@pytest.mark.parametrize("burn_in", [0, 3])
def test_unchanged_weights_say_of_every_row_what_they_said_when_it_was_played(memory: str, burn_in: int) -> None:
    """Wherever a sequence begins, also over ends of episodes, and of what a cut led to."""
    made = policy(memory=memory)
    batch, said, cut = played(made)
    sequences, ids = drawn(batch, burn_in, 6)
    rows, beyond = table(made, sequences, burn_in)
    assert set(ids.tolist()) == set(range(STEPS - burn_in - 6 + 1))
    for i, at in enumerate(ids.tolist()):
        first = at + burn_in
        torch.testing.assert_close(rows[:, i], said[first : first + 6], atol=1e-5, rtol=1e-4)
        if first + 6 < STEPS and first + 5 not in (CUT, END):
            torch.testing.assert_close(beyond[i], said[first + 6], atol=1e-5, rtol=1e-4)
    assert sequences.finals is not None
    cuts = np.flatnonzero(sequences.finals.t >= burn_in)
    assert len(cuts) and len(beyond) == len(ids) + len(cuts)
    for one in beyond[len(ids) :]:
        torch.testing.assert_close(one, cut, atol=1e-5, rtol=1e-4)
    forgetful, _ = table(made, zero_state(sequences), burn_in)
    inside = ids.tolist().index(3)
    assert (forgetful[:, inside] - said[3 + burn_in : 9 + burn_in]).abs().max() > 1e-4, "the stored state counts"


def zero_state(batch: Batch) -> Batch:
    return Batch(
        batch.cols, {name: np.zeros_like(part) for name, part in batch.first.items()}, batch.last, batch.finals
    )


def test_a_burn_in_over_an_episodes_start_needs_no_stored_state() -> None:
    made = policy()
    batch, said, _ = played(made)
    sequences, ids = drawn(batch, 4, 6)
    rows, _ = table(made, zero_state(sequences), 4)
    for at in (0, CUT - 2, CUT + 1):
        torch.testing.assert_close(rows[:, ids.tolist().index(at)], said[at + 4 : at + 10], atol=1e-5, rtol=1e-4)


def gradient(made: SequenceQPolicy, batch: Batch) -> np.ndarray:
    return made.gradients(batch, Sgd())[0]


def test_no_gradient_goes_through_the_burn_in() -> None:
    """It is that of sequences that begin behind it, with the state that stood there."""
    made, without = policy(burn_in=3), policy(burn_in=0)
    batch, _ = drawn(played(made)[0], 3, 6)
    behind = batch.slice(slice(3, None))
    np.testing.assert_allclose(gradient(made, batch), gradient(without, behind), rtol=1e-4, atol=1e-6)
    whole = batch.with_columns(learned=batch["valid"].copy())
    assert not np.allclose(gradient(made, batch), gradient(without, whole), rtol=1e-2)


def test_rows_that_are_not_learned_from_teach_nothing() -> None:
    made = policy(burn_in=3)
    batch, _ = drawn(played(made)[0], 3, 6)
    half = batch["learned"].copy()
    half[:, 32:] = False
    fewer = batch.slice(envs=slice(0, 32))
    np.testing.assert_allclose(
        gradient(made, batch.with_columns(learned=half)), gradient(made, fewer), rtol=1e-4, atol=1e-6
    )
    learned = made.learn(batch.with_columns(learned=half), Sgd())
    errors = learned.rows["error"]
    assert errors.shape == (6, 64) and (errors[:, :32] > 0).any() and not errors[:, 32:].any()
    before = made.get_weights().flat.copy()
    fresh = policy(burn_in=3)
    nothing = fresh.learn(batch.with_columns(learned=np.zeros_like(half)), Sgd())
    assert not nothing.rows["error"].any() and nothing.metrics["loss"] == 0
    assert np.array_equal(fresh.get_weights().flat, policy(burn_in=3).get_weights().flat)
    assert not np.array_equal(before, fresh.get_weights().flat)


def test_what_is_not_legal_next_is_not_the_best() -> None:
    """Masks follow the rows, also to behind the last; after a cut all is legal."""
    made = policy(burn_in=0, n_step=1)
    batch, _, _ = played(made)
    rng = np.random.default_rng(1)
    legal = rng.random((STEPS, 1, 4)) < 0.5
    legal[..., 0] |= ~legal.any(-1)
    sequences, ids = drawn(batch.with_columns(mask=legal), 0, 6)
    loaded, to = Loaded(sequences, made.device, True), targets(sequences, 0, 0.9, 1)
    masks = made._said(loaded, to, made._rows(loaded, to, 0), 0).next_mask
    assert masks is not None
    for row, mask in zip(to.rows.tolist(), masks, strict=True):
        at = ids[row % 64] + row // 64
        assert mask.tolist() == ([True] * 4 if at == CUT else legal[at + 1, 0].tolist()) or at == END


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_learns_fixed_sequences_and_goes_on_bit_for_bit(kind: str) -> None:
    made, other = policy(0, burn_in=3, **KINDS[kind]), policy(1, burn_in=3, **KINDS[kind])
    batch, _ = drawn(played(made)[0], 3, 6)
    first = made.learn(batch, Sgd())
    for _ in range(150):
        last = made.learn(batch, Sgd())
    assert last.metrics["td_error"] < 0.75 * first.metrics["td_error"]
    other.set_state(made.get_state(full=True))
    for _ in range(3):
        one, two = (each.learn(batch, Sgd()) for each in (made, other))
        np.testing.assert_array_equal(one.rows["error"], two.rows["error"])
    assert torch.equal(made._flat, other._flat) and torch.equal(made._target_flat, other._target_flat)
