"""The uniform replay: what is drawn equals what a plain list of the stream says, known answers, bounds, its state."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from podium.core.batch import Batch, Finals
from podium.core.errors import PodiumError, UsageError
from podium.core.spaces import Box, Discrete, Frames
from podium.replay.base import row_bytes
from podium.replay.prioritized import PrioritizedReplay
from podium.replay.uniform import UniformReplay
from tests.replay.streams import World

GAMMA = 0.9


def fragment(rewards: list[float], ends: str, last: float, finals: dict[int, float] | None = None) -> Batch:
    """One env's rows: `ends` has a letter for each, t(erminated), c(ut) or -; observations count from 0."""
    steps = len(rewards)
    marks = np.array([list(ends)]).T
    done = marks != "-"
    start = np.concatenate([[[True]], done[:-1]])
    sparse = finals or {}
    return Batch(
        {
            "obs": np.arange(steps, dtype=np.float32)[:, None, None],
            "reward": np.array(rewards, np.float32)[:, None],
            "terminated": marks == "t",
            "truncated": marks == "c",
            "start": start,
        },
        {},
        {"obs": np.full((1, 1), last, np.float32)},
        Finals(
            np.array(list(sparse), np.int64),
            np.zeros(len(sparse), np.int64),
            {"obs": np.array(list(sparse.values()), np.float32).reshape(-1, 1)},
        ),
    )


def drawn(replay: UniformReplay, count: int = 400, gamma: float = GAMMA) -> dict[int, tuple[float, ...]]:
    """By row: observation, return, discount and next observation (the last with a discount alone)."""
    sampled = replay.sample(count, gamma)
    cols = {name: column[0] for name, column in sampled.batch.cols.items()}
    found = {}
    for i, row in enumerate(sampled.ids.tolist()):
        after = float(cols["next/obs"][i, 0]) if cols["discount"][i] else float("nan")
        found[row] = (float(cols["obs"][i, 0]), float(cols["return"][i]), float(cols["discount"][i]), after)
    return found


def test_three_steps_over_a_cut_and_a_termination_by_hand() -> None:
    """Rows 0 to 7 pay 1, 2, 4 ...; row 2 is cut (its end was shown as 70), row 5 terminates."""
    replay = UniformReplay(100, n_step=3)
    replay.insert([fragment([1, 2, 4, 8, 16, 32, 64, 128], "--c--t--", 8, {2: 70, 5: 71})])
    found = drawn(replay)
    assert set(found) == {0, 1, 2, 3, 4, 5}, "rows 6 and 7 wait for what follows them"
    nan = float("nan")
    for row, expected in {
        0: (0, 1 + 0.9 * 2 + 0.81 * 4, 0.729, 70),
        1: (1, 2 + 0.9 * 4, 0.81, 70),
        2: (2, 4, 0.9, 70),
        3: (3, 8 + 0.9 * 16 + 0.81 * 32, 0.0, nan),
        4: (4, 16 + 0.9 * 32, 0.0, nan),
        5: (5, 32, 0.0, nan),
    }.items():
        assert found[row] == pytest.approx(expected, nan_ok=True), row


def test_one_step_by_hand_and_the_newest_row_with_its_next_observation() -> None:
    replay = UniformReplay(100)
    replay.insert([fragment([1, 2, 4], "-c-", 9, {1: 70})])
    found = drawn(replay)
    assert found[0] == pytest.approx((0, 1, 0.9, 1))
    assert found[1] == pytest.approx((1, 2, 0.9, 70)), "not row 2, which is another episode's"
    assert found[2] == pytest.approx((2, 4, 0.9, 9))


def test_the_ring_goes_round() -> None:
    """Of 5 rows at most; after 7 the rows 2 to 6 are left, and rows 0 and 1 of the next fragment follow them."""
    replay = UniformReplay(5)
    for _ in range(2):
        replay.insert([fragment([1, 2, 4, 8], "----", 0)])
    assert replay.size == 5 and set(drawn(replay)) == {3, 4, 5, 6, 7}
    found = drawn(replay)
    assert found[3] == pytest.approx((3, 8, 0.9, 0)), "broken off: the second fragment starts anew, this end is kept"
    assert found[7] == pytest.approx((3, 8, 0.9, 0))


def compare(world: World, replay: UniformReplay, n_step: int, newest: int) -> None:
    """Every row that can be drawn is as the list says, and all that can be drawn are drawn."""
    expected = {
        at * world.width + i: (obs, total, discount, after)
        for i, at, obs, total, discount, after in world.transitions(n_step, GAMMA)
    }
    head = len(world.rows[0])
    first = max(0, head - newest)
    expected = {row: values for row, values in expected.items() if row // world.width >= first}
    assert replay.size == len(expected)
    if not expected:
        return
    sampled = replay.sample(64, GAMMA)
    cols = {name: column[0] for name, column in sampled.batch.cols.items()}
    for i, row in enumerate(sampled.ids.tolist()):
        obs, total, discount, after = expected[row]
        assert cols["obs"][i].tolist() == obs
        assert cols["action"][i] == obs[-1]
        assert cols["return"][i] == pytest.approx(total, rel=1e-5)
        assert cols["discount"][i] == pytest.approx(discount, rel=1e-6)
        if discount:
            assert cols["next/obs"][i].tolist() == after


@given(
    seed=st.integers(0, 10_000),
    width=st.integers(1, 3),
    stack=st.sampled_from([1, 3, 4]),
    autoreset=st.sampled_from(["same", "next"]),
    n_step=st.sampled_from([1, 2, 3]),
    prioritized=st.booleans(),
    steps=st.lists(st.integers(1, 7), min_size=1, max_size=8),
    breaks=st.integers(0, 255),
)
def test_what_is_drawn_equals_the_plain_list(
    seed: int, width: int, stack: int, autoreset: str, n_step: int, prioritized: bool, steps: list[int], breaks: int
) -> None:
    world = World(width, np.random.default_rng(seed), stack, autoreset)
    kind: Any = PrioritizedReplay if prioritized else UniformReplay
    frames = {"obs": Frames(stack, 0)} if stack > 1 else {}
    replay = kind(12 * width, seed=seed, n_step=n_step, frames=frames)
    for i, count in enumerate(steps):
        if breaks >> i & 1 and i:
            world.restart()
        replay.insert([world.fragment(count)])
        overwritten = len(world.rows[0]) > replay.rows.length - 1
        compare(world, replay, n_step, 12 if overwritten else 10**9)


def test_frames_stand_once() -> None:
    world = World(4, np.random.default_rng(0), 4)
    replay = UniformReplay(400, frames={"obs": Frames(4, 0)})
    replay.insert([world.fragment(50)])
    assert replay.rows.columns["obs"].shape == (104, 4, 1)


@pytest.mark.parametrize(
    ("shape", "axis", "frame"), [((8, 3, 3), 0, (2, 3, 3)), ((3, 3, 8), 2, (3, 3, 2)), ((8,), 0, (2,))]
)
def test_frames_of_any_layout_come_back(shape: tuple[int, ...], axis: int, frame: tuple[int, ...]) -> None:
    """Four frames of the numbers 0, 1, 2 ...: row t shows t-3 to t, the first frame in the places before it."""
    stack, steps = Frames(4, axis), 9
    rows = np.stack([stacked([max(t - j, 0) for j in (3, 2, 1, 0)], frame, axis) for t in range(steps + 1)])
    replay = UniformReplay(20, frames={"obs": stack})
    flags = {name: np.zeros((steps, 1), bool) for name in ("terminated", "truncated", "start")}
    flags["start"][0] = True
    batch = Batch({"obs": rows[:-1, None], "reward": np.zeros((steps, 1), np.float32), **flags}, {}, {"obs": rows[-1:]})
    replay.insert([batch])
    assert replay.rows.columns["obs"].shape[2:] == frame
    sampled = replay.sample(64, GAMMA)
    assert sampled.batch["obs"].shape == (1, 64, *shape)
    for i, row in enumerate(sampled.ids):
        np.testing.assert_array_equal(sampled.batch["obs"][0, i], rows[row])
        np.testing.assert_array_equal(sampled.batch["next/obs"][0, i], rows[row + 1])


def stacked(numbers: list[int], frame: tuple[int, ...], axis: int) -> np.ndarray:
    return np.concatenate([np.full(frame, number, np.uint8) for number in numbers], axis=axis)


def test_every_row_is_drawn_equally_often() -> None:
    replay = UniformReplay(100, seed=1)
    replay.insert([fragment([0.0] * 20, "-" * 20, 0)])
    counts = Counter(replay.sample(20_000, GAMMA).ids.tolist())
    assert len(counts) == 20 and all(850 < count < 1150 for count in counts.values())


def test_a_source_that_has_nothing_breaks_its_streams_alone() -> None:
    """Two workers; the second is away for a fragment."""
    ones, twos = (World(2, np.random.default_rng(seed), end_chance=0.0) for seed in (0, 1))
    replay = UniformReplay(400)
    replay.insert([ones.fragment(3), twos.fragment(3)])
    lost = twos.rows[0][-1].next_obs
    replay.insert([ones.fragment(3), None])
    twos.restart()
    replay.insert([ones.fragment(3), twos.fragment(3)])
    assert replay.size == 2 * 9 + 2 * 6
    sampled = replay.sample(600, GAMMA)
    by_row = {row: i for i, row in enumerate(sampled.ids.tolist())}
    assert not {3 * 4 + 2, 4 * 4 + 3} & set(by_row)
    assert sampled.batch["next/obs"][0, by_row[2 * 4 + 2]].tolist() == lost, "what followed is kept beside the ring"
    assert sampled.batch["next/obs"][0, by_row[2 * 4 + 0]].tolist() == ones.rows[0][2].next_obs


def test_next_masks_are_those_of_the_next_row() -> None:
    batch = fragment([1, 1, 1, 1], "-c--", 9, {1: 70})
    batch = batch.with_columns(mask=np.array([[[t == 0, True]] for t in range(4)]))
    replay = UniformReplay(20)
    replay.insert([batch])
    assert set(drawn(replay)) == {0, 1, 2}, "nobody has said yet what is legal after the newest row"
    sampled = replay.sample(64, GAMMA)
    legal = {row: sampled.batch["next/mask"][0, i].tolist() for i, row in enumerate(sampled.ids.tolist())}
    assert legal == {0: [False, True], 1: [True, True], 2: [False, True]}


def test_what_is_not_like_the_rows_before_is_refused() -> None:
    replay = UniformReplay(50)
    replay.insert([fragment([1, 2], "--", 2)])
    other = fragment([1, 2], "--", 2)
    with pytest.raises(PodiumError, match=r"'obs' is \[3\] float32 in a sample, and was \[1\] float32 when"):
        replay.insert([other.with_columns(obs=np.zeros((2, 1, 3), np.float32))])
    with pytest.raises(UsageError, match="--buffer 50 holds 50 steps of each of 1 envs, and a sample has 60"):
        replay.insert([fragment([1.0] * 60, "-" * 60, 2)])
    with pytest.raises(PodiumError, match="nothing can be drawn"):
        UniformReplay(5).sample(1, GAMMA)


@pytest.mark.parametrize("kind", [UniformReplay, PrioritizedReplay])
@pytest.mark.parametrize("stack", [1, 3])
@pytest.mark.parametrize(("linked", "seed"), [(False, 3), (True, 3), (False, 4), (False, 5), (False, 6)])
def test_its_state_goes_on_bit_for_bit(kind: Any, stack: int, linked: bool, seed: int) -> None:
    world = World(3, np.random.default_rng(seed), stack)
    how: dict[str, Any] = {"n_step": 2, "frames": {"obs": Frames(stack, 0)} if stack > 1 else {}}
    replay, other = kind(120, seed=1, **how), kind(120, seed=2, **how)
    known: dict[str, Any] = {}
    for i in range(14):
        replay.insert([world.fragment(7)])
        drawn_now = replay.sample(16, GAMMA, 0.5)
        replay.feedback(drawn_now.ids, np.arange(16.0) + i)
        if linked and i % 3 == 0:
            known |= copied({name: piece for name, piece in replay.get_state(known)[1].items() if piece is not None})
    state, pieces = replay.get_state(known)
    assert (None in pieces.values()) == linked
    assert all(piece is not None for name, piece in pieces.items() if name not in known)
    other.set_state(copied(state), {name: known[name] if piece is None else piece for name, piece in pieces.items()})
    assert other.size == replay.size
    for _ in range(12):
        more = world.fragment(5)
        for one in (replay, other):
            one.insert([more])
        mine, theirs = (one.sample(16, GAMMA, 0.5) for one in (replay, other))
        np.testing.assert_array_equal(mine.ids, theirs.ids)
        for name, column in mine.batch.cols.items():
            np.testing.assert_array_equal(column, theirs.batch[name])
        for one in (replay, other):
            one.feedback(mine.ids, np.linspace(0, 3, 16))


def copied(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {name: copied(part) for name, part in tree.items()}
    if isinstance(tree, list):
        return [copied(part) for part in tree]
    return tree.copy() if isinstance(tree, np.ndarray) else tree


def test_bytes_are_counted_before_and_after() -> None:
    space, frames = Box.of(0, 255, (4, 84, 84), np.uint8), {"obs": Frames(4, 0)}
    each = row_bytes(space, Discrete(6), frames, prioritized=True)
    assert 84 * 84 < each < 1.01 * 84 * 84
    replay = PrioritizedReplay(2000, frames=frames)
    steps, n = 20, 4
    flags = {name: np.zeros((steps, n), bool) for name in ("terminated", "truncated", "start")}
    cols = {"obs": np.zeros((steps, n, 4, 84, 84), np.uint8), "action": np.zeros((steps, n), np.int64)}
    batch = Batch({**cols, "reward": np.zeros((steps, n), np.float32), **flags}, {}, {"obs": cols["obs"][0]})
    replay.insert([batch])
    assert replay.nbytes < 1.1 * 2000 * 84 * 84
    assert replay.nbytes == pytest.approx(2000 * each, rel=0.05)


def test_after_a_lost_fragment_stacks_that_miss_a_frame_are_not_drawn() -> None:
    """Fragments of 5 rows, of which the second never came: the third's first two stacks reach back into it."""
    world = World(1, np.random.default_rng(0), 3, end_chance=0.0)
    replay = UniformReplay(40, frames={"obs": Frames(3, 0)})
    replay.insert([world.fragment(5)])
    world.fragment(5)
    replay.insert([world.fragment(5)])
    sampled = replay.sample(200, GAMMA)
    assert replay.size == 8 and set(sampled.ids.tolist()) == {0, 1, 2, 3, 4, 7, 8, 9}
    for i, row in enumerate(sampled.ids.tolist()):
        played = world.rows[0][row if row < 5 else row + 5]
        assert sampled.batch["obs"][0, i].tolist() == played.obs
        assert sampled.batch["next/obs"][0, i].tolist() == played.next_obs
        assert sampled.batch["return"][0, i] == played.reward


def test_pieces_never_change_under_their_name() -> None:
    """Also not when a stream breaks off right after a piece's last row."""
    world = World(2, np.random.default_rng(0), end_chance=0.1)
    replay = UniformReplay(2 * 47)
    seen: dict[str, Any] = {}
    for i in range(120):
        if i % 3 == 2:
            world.restart()
        replay.insert([world.fragment(1)])
        for name, piece in replay.get_state()[1].items():
            known = seen.setdefault(name, copied(piece))
            for flag, column in piece["flags"].items():
                np.testing.assert_array_equal(column, known["flags"][flag], name)
    assert len(seen) == 120 // 3 - 1
