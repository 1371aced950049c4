"""The collector: every column against the schedule of an env in which each number tells its place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from counting import Counting, length_of, return_of, reward_of, truncated_at_its_end

from podium.core.batch import Batch
from podium.core.metrics import Timers
from podium.core.spaces import Columns
from podium.envs.base import Stepped, VectorEnv
from podium.envs.toys import Masked
from podium.envs.wrappers import Wrapper
from podium.evaluation.collector import Collector
from podium.policies.base import Acted

AUTORESETS = ("same", "next")


class Metronome:
    """An actor that remembers how many steps it has acted, and says so as its value."""

    def initial_state(self, n: int) -> Columns:
        return {"state/h": np.zeros((n, 1), np.float32)}

    def act(self, obs: Columns, state: Columns, mask: np.ndarray | None = None, explore: bool = True) -> Acted:
        before = state["state/h"]
        action = np.zeros(len(before), np.int64) if mask is None else mask.argmax(1)
        return Acted(action, {"state/h": before + 1}, {"value": before[:, 0].copy()})


class Reusing(Wrapper):
    """Gives the same arrays at every step, overwritten, as some vector envs do."""

    def reset(self, seeds: Any) -> Columns:
        self._obs = {name: part.copy() for name, part in self.env.reset(seeds).items()}
        self._rest: list[np.ndarray] = []
        return self._obs

    def step(self, actions: np.ndarray) -> Stepped:
        stepped = self.env.step(actions)
        rest = [stepped.reward, stepped.terminated, stepped.truncated]
        self._rest = self._rest or [part.copy() for part in rest]
        for kept, part in zip([*self._obs.values(), *self._rest], [*stepped.obs.values(), *rest], strict=True):
            kept[:] = part
        reward, terminated, truncated = self._rest
        return Stepped(self._obs, reward, terminated, truncated, stepped.final_rows, stepped.finals)


def collect(env: VectorEnv, *fragments: int) -> list[Batch]:
    collector = Collector(env, Metronome(), Timers(), list(range(env.n)))
    return [collector.collect(steps) for steps in fragments]


def joined(batches: list[Batch], name: str) -> np.ndarray:
    return np.concatenate([batch[name] for batch in batches])


def schedule(n: int, steps: int, autoreset: str) -> list[dict[str, Any]]:
    """What the rows of one env must say."""
    rows: list[dict[str, Any]] = []
    episode = 0
    while len(rows) < steps:
        length, cut = length_of(n, episode), truncated_at_its_end(n, episode)
        for t in range(length):
            over = t == length - 1
            row = {"obs": [n, episode, t], "reward": reward_of(n, episode, t), "value": t, "valid": True}
            rows.append({**row, "start": t == 0, "terminated": over and not cut, "truncated": over and cut})
        if autoreset == "next":
            row = {"obs": [n, episode, length], "reward": 0.0, "value": length, "valid": False}
            rows.append({**row, "start": False, "terminated": False, "truncated": False})
        episode += 1
    return rows[:steps]


@pytest.mark.parametrize("autoreset", AUTORESETS)
@pytest.mark.parametrize("fragments", [(23,), (5, 1, 7, 10), (1,) * 23], ids=str)
@pytest.mark.parametrize("reusing", [False, True])
def test_every_row_says_what_the_schedule_says(autoreset: Any, fragments: tuple[int, ...], reusing: bool) -> None:
    env: VectorEnv = Counting(4, autoreset)
    batches = collect(Reusing(env) if reusing else env, *fragments)
    for n in range(4):
        expected = schedule(n, sum(fragments), autoreset)
        for name in expected[0]:
            found = joined(batches, name)[:, n].tolist()
            assert found == [row[name] for row in expected], (n, name)
    assert [batch.length for batch in batches] == list(fragments)
    assert sum(batch.steps for batch in batches) == int(joined(batches, "valid").sum())


@pytest.mark.parametrize("reusing", [False, True])
def test_finals_are_what_ended_the_episodes_with_the_state_after_them(reusing: bool) -> None:
    env: VectorEnv = Counting(4, "same")
    for batch in collect(Reusing(env) if reusing else env, 6, 5):
        finals = batch.finals
        assert finals is not None
        ends = np.argwhere(batch["terminated"] | batch["truncated"])
        assert sorted(zip(finals.t.tolist(), finals.n.tolist(), strict=True)) == sorted(map(tuple, ends.tolist()))
        for i, (t, n) in enumerate(zip(finals.t, finals.n, strict=True)):
            _, episode, last = batch["obs"][t, n]
            assert finals.cols["obs"][i].tolist() == [n, episode, last + 1]
            assert finals.cols["state/h"][i].tolist() == [last + 1]


def test_a_fragment_in_which_nothing_ends_has_finals_too_though_none() -> None:
    """So that it can stand beside one in which something did."""
    (batch,) = collect(Counting(4, "same"), 1)
    assert not (batch["terminated"] | batch["truncated"]).any()
    assert batch.finals is not None and batch.finals.cols["obs"].shape == (0, 3)
    assert batch.finals.cols["state/h"].shape == (0, 1)


@pytest.mark.parametrize("autoreset", AUTORESETS)
def test_the_ends_of_a_fragment_lead_into_the_next(autoreset: Any) -> None:
    batches = collect(Counting(4, autoreset), *[1] * 12)
    for batch, following in zip(batches, batches[1:], strict=False):
        assert np.array_equal(batch.last["obs"], following["obs"][0])
        assert np.array_equal(batch.last["state/h"][:, 0], following["value"][0])
        kept = np.where(following["start"][0], 0, following.first["state/h"][:, 0])
        assert np.array_equal(kept, following["value"][0])
    assert batches[0].finals is None or autoreset == "same"


@pytest.mark.parametrize("autoreset", AUTORESETS)
@pytest.mark.parametrize("fragments", [(40,), (1,) * 40, (3, 4, 11, 22)], ids=str)
def test_returns_and_lengths_are_exact_over_the_fragments_borders(autoreset: Any, fragments: tuple[int, ...]) -> None:
    env = Counting(3, autoreset)
    collector = Collector(env, Metronome(), Timers(), [0, 1, 2])
    finished, order = [], []
    for steps in fragments:
        batch = collector.collect(steps)
        finished += collector.take_finished()
        ends = np.argwhere(batch["terminated"] | batch["truncated"])
        order += [(int(n), int(batch["obs"][t, n, 1])) for t, n in ends]
    assert len(order) > 24
    assert finished == [(return_of(*place), length_of(*place)) for place in order]
    assert collector.take_finished() == []


@pytest.mark.parametrize("autoreset", AUTORESETS)
def test_masks_reach_the_actor_and_stay_out_of_the_ends(autoreset: Any) -> None:
    env = Masked(5, length=3, autoreset=autoreset)
    (batch,) = collect(env, 20)
    assert env.illegal.sum() == 0
    legal = np.take_along_axis(batch["mask"], batch["action"][..., None], 2)[..., 0]
    assert batch["mask"].dtype == bool and legal.all() and not batch["mask"].all()
    assert "mask" not in batch.last and (batch.finals is None or "mask" not in batch.finals.cols)


def test_time_is_told_apart() -> None:
    timers = Timers()
    Collector(Counting(2), Metronome(), timers, [0, 1]).collect(5)
    taken = timers.take()
    assert taken.keys() == {"env", "inference"} and all(seconds > 0 for seconds in taken.values())


@pytest.mark.parametrize("autoreset", AUTORESETS)
@pytest.mark.parametrize("before", range(1, 7))
def test_a_restored_stream_goes_on_where_it_was(autoreset: Any, before: int) -> None:
    original = Collector(Counting(3, autoreset), Metronome(), Timers(), [0, 1, 2])
    original.collect(before)
    original.take_finished()
    state = original.get_state()
    assert state is not None
    other = Collector(Counting(3, autoreset), Metronome(), Timers(), [7, 8, 9])
    other.collect(2)
    other.take_finished()
    other.set_state(state)
    for _ in range(2):
        mine, theirs = original.collect(5), other.collect(5)
        for name in mine.cols:
            assert np.array_equal(mine[name], theirs[name]), name
        for name in mine.last:
            assert np.array_equal(mine.last[name], theirs.last[name]), name
        assert original.take_finished() == other.take_finished()
