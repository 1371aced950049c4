"""Asynchronous replay: who explores how, first priorities, the pace that is kept, bounds, whom feedback goes to, faults."""

from __future__ import annotations

import os
import signal
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import podium
from podium import algorithms
from podium.algorithms.common.base import Setup
from podium.cli import main
from podium.core import checkpoint
from podium.core.batch import Batch
from podium.core.errors import PodiumError
from podium.engine.base import Engine
from podium.engine.local import LocalEngine, LocalRef
from podium.envs.make import EnvSpec, spaces_of
from podium.evaluation.sharded import Experience
from podium.optimizers.async_replay import LEARNS, WAITING, AsyncReplay
from podium.optimizers.pace import Pace
from podium.policies.base import Sgd
from podium.policies.exploration import spread
from podium.replay.base import ERROR
from podium.replay.prioritized import LEAST, PrioritizedReplay
from podium.run.folder import RunFolder
from tests.conformance.conftest import ray_engine
from tests.processes import process

TINY: dict[str, Any] = {"seed": 2, "envs": 2, "fragment": 8, "hidden": (8,), "batch": 8, "learning_starts": 0}


@pytest.fixture
def strict() -> Iterator[LocalEngine]:
    engine = LocalEngine(strict=True)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def ray() -> Iterator[Engine]:
    yield from ray_engine()


def build(engine: Engine, algo: str = "apex", env: str = "CartPole-v1", **settings: Any) -> AsyncReplay:
    algorithm, spec = algorithms.get(algo), EnvSpec(env)
    config = algorithm.configure(None, {**TINY, **settings})
    optimizer = algorithm.build(config, Setup(engine, spec, *spaces_of(spec)))
    assert isinstance(optimizer, AsyncReplay)
    return optimizer


def shard_of(optimizer: AsyncReplay, index: int) -> Any:
    handle: Any = optimizer.shards.handle(index)
    return handle._target


def figures(optimizer: AsyncReplay, progress: float = 0.0) -> dict[str, float]:
    return optimizer.step(progress).metrics.values()


# --- exploration ---


def test_the_envs_of_all_workers_stand_on_one_ladder() -> None:
    """Two workers of two envs, to powers from 1 to 7: 1, 3, 5, 7. A ladder in each of them would be 1, 7 twice."""
    ladder = [spread(0.4, 2, 6.0, (worker, 2)).tolist() for worker in (1, 2)]
    assert ladder[0] == pytest.approx([0.4, 0.064]) and ladder[1] == pytest.approx([0.01024, 0.0016384])
    assert spread(0.4, 1, 7.0, (2, 2)).tolist() == pytest.approx([0.4**8])


@pytest.mark.parametrize("algo", ["apex", "dqn"])
def test_workers_know_their_place_on_it(strict: LocalEngine, algo: str) -> None:
    algorithm, spec = algorithms.get(algo), EnvSpec("CartPole-v1")
    optimizer: Any = algorithm.build(
        algorithm.configure(None, {**TINY, "workers": 3}), Setup(strict, spec, *spaces_of(spec))
    )
    players = [optimizer.samplers.handle(index)._target.policy.player for index in (1, 2, 3)]
    assert players == [(1, 3), (2, 3), (3, 3)]
    alone: Any = algorithms.get("dqn").build(
        algorithms.get("dqn").configure(None, TINY), Setup(strict, spec, *spaces_of(spec))
    )
    assert alone.learner()._target.policy.player == (1, 1)


# --- first priorities ---


@pytest.mark.parametrize("fragment", [1, 2, 8])
@pytest.mark.parametrize("env", ["CartPole-v1", "toy:constant", "toy:masked"])
def test_first_priorities_are_what_the_learner_would_say(strict: LocalEngine, env: str, fragment: int) -> None:
    """With the weights that were played with, and a target that is equal to them, whatever row it is."""
    optimizer = build(strict, env=env, fragment=fragment, lr=0.0, gamma=0.9, beta=0.0)
    player, learner = optimizer.samplers.handle(1), optimizer.learner()._target.policy  # type: ignore[attr-defined]
    replay = PrioritizedReplay(1000, n_step=3)
    for _ in range(48 // fragment):
        weights = strict.get(optimizer.learner().call("get_weights", 0.0))
        _, played = player.split(2, "play", fragment, weights, 0.9)
        replay.insert([strict.get(played).batch])
    first, end = replay.span(replay.rows.head)
    assert end - first >= 44
    drawn = replay.sample(400, 0.9)
    before = replay._weights.get(replay.rows.flat(drawn.ids // 2, drawn.ids % 2))
    errors = learner.learn(drawn.batch, Sgd()).rows["error"]
    known = drawn.ids // 2 >= first
    np.testing.assert_allclose(before[known], (errors[known] + LEAST) ** 0.6, rtol=1e-4)
    assert len(np.unique(before.round(4))) > (2 if env == "toy:constant" else 20), "not the greatest one for all"
    learner.config = learner.config.replace(n_step=1)
    shorter = PrioritizedReplay(1000, n_step=1)
    shorter.rows, shorter._tree, shorter._usable = replay.rows, replay._tree, replay._usable
    one_step = learner.priorities(shorter._transitions(drawn.ids // 2, drawn.ids % 2, np.ones(400, np.float32), 0.9))
    assert np.abs((one_step + LEAST) ** 0.6 - before).max() > 0.05, "errors of one step would be others"


def fragment(errors: list[list[float]], start: bool = False) -> Batch:
    """Rows of two envs, all alike but for what the policy is said to think of what they complete."""
    shape = (len(errors), 2)
    zeros = np.zeros(shape, bool)
    starts = zeros.copy()
    starts[0] = start
    cols = {"obs": np.zeros((*shape, 1), np.float32), "action": np.zeros(shape, np.int64)}
    cols |= {"reward": np.zeros(shape, np.float32), "terminated": zeros, "truncated": zeros, "start": starts}
    return Batch({**cols, ERROR: np.array(errors, np.float32)}, last={"obs": np.zeros((2, 1), np.float32)})


def weights(replay: PrioritizedReplay, rows: int) -> list[float]:
    """Of the first rows, those of all streams of each."""
    return replay._weights.get(replay._leaves(np.arange(rows))).tolist()


def test_errors_belong_to_the_rows_that_a_fragment_completes() -> None:
    """With two steps a fragment of two rows completes its first one and the last one of the fragment before."""
    replay = PrioritizedReplay(20, n_step=2, alpha=1.0)
    nan = float("nan")
    replay.insert([fragment([[nan, nan], [3.0, 4.0]], start=True)])
    assert weights(replay, 2) == pytest.approx([3.0, 4.0, 0.0, 0.0])
    replay.insert([fragment([[5.0, 0.0], [nan, float("inf")]])])
    found = weights(replay, 4)
    assert found == pytest.approx([3, 4, 5, LEAST, 4, 4, 0, 0]), "what nobody knows counts as the greatest"
    assert found[3] > 0, "a row that was right may still be drawn"
    assert "error" not in replay.rows.columns and replay.total == pytest.approx(20 + LEAST, abs=1e-4)


def test_a_source_without_a_fragment_has_no_errors() -> None:
    replay = PrioritizedReplay(40, n_step=1, alpha=1.0)
    replay.insert([fragment([[2.0, 3.0]], start=True), None])
    assert weights(replay, 1) == pytest.approx([2, 3, 0, 0])


# --- pace ---


def test_the_pace_by_hand() -> None:
    """Two samplers of 10 steps each, an update for each 4 beyond 100: 44 steps ahead at most."""
    pace = Pace(starts=100, every=4.0, fragment=10, samplers=2)
    assert [pace.due(seen) for seen in (0, 100, 103, 104, 140)] == [0, 0, 0, 1, 10]
    assert pace.may_play(130, 0, 0) and not pace.may_play(130, 1, 0) and not pace.may_play(140, 0, 0)
    assert pace.may_play(140, 0, 2) and pace.may_play(130, 1, 2), "two updates are worth 8 steps"
    free = replace(pace, learner_waits=False, samplers_wait=False)
    assert free.due(99) == 0 and free.due(100) > 1 << 50 and free.may_play(10_000, 9, 0)


@pytest.mark.parametrize("every", [0.5, 3.0, 40.0])
@pytest.mark.parametrize(("workers", "shards"), [(1, 1), (3, 2)])
def test_the_ratio_is_kept_on_both_sides(strict: LocalEngine, every: float, workers: int, shards: int) -> None:
    settings = {"workers": workers, "replay_shards": shards, "train_every": every, "learning_starts": 100}
    optimizer = build(strict, **settings)
    for step in range(16):
        optimizer.step(step / 100)
        due = max((optimizer.seen - 100) / every, 0)
        assert due - (2 * workers * 16 + every) / every - 1 <= optimizer.updates <= due
        assert optimizer._skipped == 0
    assert optimizer.updates > 0 and optimizer.updates == optimizer.learner()._target.policy.version  # type: ignore[attr-defined]


def test_without_it_nobody_waits(strict: LocalEngine) -> None:
    paced = {"train_every": 1000.0, "pacing": "samplers"}
    eager = build(strict, **paced)
    for _ in range(8):
        eager.step(0.0)
    assert eager.updates > 30, "the learner goes on beyond the one update in 1000 steps"
    slow = build(strict, train_every=0.01, pacing="learner")
    for _ in range(8):
        slow.step(0.0)
    assert slow.seen / 0.01 > 4 * slow.updates, "the samplers go on although 100 updates for each step are due"


def test_what_is_due_before_there_is_a_minibatch_is_not_made_later(strict: LocalEngine) -> None:
    optimizer = build(strict, workers=1, batch=64, train_every=1.0, buffer=1000)
    seen = []
    while not optimizer.updates:
        optimizer.step(0.0)
        seen.append(optimizer.seen)
    assert seen[-2] >= 64 and optimizer._skipped >= 48, "64 rows of 16 a fragment, of which the last ones have no next"
    assert optimizer.updates <= seen[-1] - optimizer._skipped


# --- shards ---


def test_feedback_goes_to_the_shard_that_drew_the_rows(strict: LocalEngine) -> None:
    optimizer = build(strict, workers=3, replay_shards=2, train_every=2.0)
    drawn: dict[int, deque[np.ndarray]] = {1: deque(), 2: deque()}
    told: dict[int, int] = {1: 0, 2: 0}
    for index in (1, 2):
        shard = shard_of(optimizer, index)

        def draw(*args: Any, index: int = index, plain: Any = shard.draw) -> Any:
            answer = plain(*args)
            drawn[index].append(answer[1].drawn.ids.copy())
            return answer

        def feedback(ids_and_errors: Any, index: int = index, plain: Any = shard.feedback) -> Any:
            np.testing.assert_array_equal(ids_and_errors[0], drawn[index].popleft())
            assert np.isfinite(ids_and_errors[1]).all() and ids_and_errors[1].any()
            told[index] += 1
            return plain(ids_and_errors)

        shard.draw, shard.feedback = draw, feedback
    for step in range(20):
        optimizer.step(step / 100)
    assert min(told.values()) >= 5 and sum(map(len, drawn.values())) <= 2


def test_streams_stay_in_one_shard_and_in_order(strict: LocalEngine) -> None:
    """An episode's rows follow each other, so that none has to be kept beside; the poles fall before anything is cut."""
    optimizer = build(strict, workers=3, replay_shards=2)
    assert (optimizer.sources(1), optimizer.sources(2)) == ([1, 3], [2])
    for step in range(20):
        optimizer.step(step / 100)
    for index in (1, 2):
        rows = shard_of(optimizer, index)._replay.rows
        assert rows.width == 2 * len(optimizer.sources(index)) and rows.head >= 18 * 8
        assert not (rows.beside.at >= 0).any()
        assert rows.capacity == 50_000 * len(optimizer.sources(index)) // 3


def test_a_shard_is_drawn_from_by_what_its_rows_weigh(strict: LocalEngine) -> None:
    """Rows of weight 30 and 10 in all: three draws of four."""
    optimizer = build(strict)
    for index, total in ((1, 30.0), (2, 10.0)):
        optimizer._shards[index].held = replace(optimizer._shards[index].held, size=100, total=total)
    chosen = [optimizer._next_shard([1, 2]) for _ in range(8)]
    assert chosen.count(1) == 6 and chosen[:4].count(1) == 3


def test_a_shard_waits_for_its_samplers_until_a_queue_is_full(strict: LocalEngine) -> None:
    optimizer = build(strict, replay_shards=1)
    weights = strict.get(optimizer.learner().call("get_weights", 0.0))

    def play(index: int) -> None:
        _, played = optimizer.samplers.handle(index).split(2, "play", 8, weights, 0.9)
        optimizer._played[index].append(played)

    for _ in range(WAITING - 1):
        play(1)
    optimizer._insert()
    assert len(optimizer._played[1]) == WAITING - 1, "the second sampler may still come"
    play(2)
    optimizer._insert()
    rows = shard_of(optimizer, 1)._replay.rows
    assert len(optimizer._played[1]) == WAITING - 2 and rows.head == 8
    play(1)
    play(1)
    optimizer._insert()
    assert len(optimizer._played[1]) == WAITING - 1 and rows.head == 16
    assert rows.usable[8:16, :2].sum() >= 12 and not rows.usable[8:16, 2:].any()


def test_what_waits_is_bounded_and_shown(strict: LocalEngine) -> None:
    optimizer = build(strict, workers=3, train_every=0.5, broadcast_every=7)
    lags = []
    for step in range(20):
        found = figures(optimizer, step / 100)
        assert found["queue_depth"] <= 3 * WAITING and found["draws_waiting"] <= 1
        assert found["calls_under_way"] <= 3 + 2 * 5 + LEARNS
        assert found["workers_up"] == 3 and found["shards_up"] == 2 and found["rows_lost"] == 0
        assert found["updates_per_step"] == pytest.approx(optimizer.updates / optimizer.seen)
        lags.append(found["weight_lag_max"])
    assert 7 <= max(lags) <= 100 and min(lags) >= 0
    assert found["replay_size"] == sum(shard_of(optimizer, i)._replay.size for i in (1, 2))


def test_the_filter_sees_what_was_played(strict: LocalEngine) -> None:
    optimizer = build(strict, normalize_obs=True)
    for step in range(10):
        optimizer.step(step / 100)
    learner: Any = optimizer.learner()
    count = learner._target.policy._moments["obs"].count
    assert 0.5 * optimizer.seen < count <= optimizer.seen


# --- state ---


def test_it_goes_on_from_its_state_and_that_of_its_shards(strict: LocalEngine) -> None:
    optimizer = build(strict, workers=3)
    for step in range(12):
        optimizer.step(step / 100)
    saved, (replay, pieces) = optimizer.get_state(restart=False), optimizer.get_replay(())
    assert saved["evaluators"][0]["exact"] is False and len(replay["shards"]) == 2
    other = build(strict, workers=3, seed=9)
    other.set_state(saved)
    other.set_replay(replay, pieces)
    assert (other.updates, other.seen) == (optimizer.updates, optimizer.seen)
    for index in (1, 2):
        mine, theirs = shard_of(optimizer, index)._replay, shard_of(other, index)._replay
        assert other._shards[index].held.size == theirs.size == mine.size > 100
        np.testing.assert_array_equal(mine.sample(32, 0.9).ids, theirs.sample(32, 0.9).ids)
    weights = [strict.get(one.learner().call("get_weights", 0.0)).flat for one in (optimizer, other)]
    np.testing.assert_array_equal(*weights)
    other.step(0.5)
    assert other.updates > optimizer.updates, "it learns from the rows that it has"


def test_it_begins_where_another_run_ended(strict: LocalEngine) -> None:
    source = build(strict, seed=7)
    source.step(0.0)
    optimizer = build(strict, lr=0.0)
    optimizer.adopt(strict.get(source.learner().call("policy_state")))
    optimizer.step(0.0)
    found = [strict.get(one.learner().call("get_weights", 0.0)).flat for one in (source, optimizer)]
    np.testing.assert_array_equal(*found)


def test_a_run_that_resumes_keeps_its_replay(tmp_path: Path) -> None:
    settings = {**TINY, "learning_starts": 200, "eval_every": None, "checkpoint_every": 400, "progress": False}
    folder = tmp_path / "run"
    podium.train("apex", "CartPole-v1", out=folder, steps=1000, **settings)
    parts, info = checkpoint.load(folder / "checkpoints" / "latest")
    assert info["exact"] is False and [shard["rows"] is not None for shard in parts["replay"]["shards"]] == [True] * 2
    result = podium.resume(folder, steps=1600, progress=False)
    rows = list(RunFolder.open(folder).read_metrics())
    again = next(number for number, row in enumerate(rows) if row["env_steps"] > info["env_steps"])
    assert rows[again]["replay_size"] > 0.9 * rows[again - 1]["replay_size"]
    assert result["env_steps"] >= 1600 and result["updates"] >= 0.9 * (1600 - 200 - 64) / 2


# --- faults ---


def test_a_shape_that_changes_is_an_error_not_a_lost_shard(strict: LocalEngine) -> None:
    optimizer = build(strict, workers=1)
    for _ in range(3):
        optimizer.step(0.0)
    weights = strict.get(optimizer.learner().call("get_weights", 0.0))
    played = strict.get(optimizer.samplers.handle(1).split(2, "play", 8, weights, 0.9)[1])
    other = played.batch.with_columns(obs=np.zeros((8, 2, 5), np.float32))
    optimizer._played[1].append(LocalRef(Experience(other, {})))
    with pytest.raises(PodiumError, match=r"'obs' is \[5\] float32 in a sample, and was \[4\] float32"):
        for _ in range(3):
            optimizer.step(0.0)
    assert optimizer.shards.replaced == 0


def test_a_shard_that_is_gone_is_replaced_and_what_it_held_is_counted(strict: LocalEngine) -> None:
    optimizer = build(strict, train_every=4.0)
    for _ in range(10):
        optimizer.step(0.0)
    lost, updates = optimizer._shards[1].held.size, optimizer.updates
    handle: Any = optimizer.shards.handle(1)
    handle.close()
    found = [figures(optimizer) for _ in range(12)][-1]
    assert found["shards_replaced"] == 1 and lost <= found["rows_lost"] <= lost + 32
    assert optimizer.updates > updates and optimizer._shards[1].held.size > 50
    due = optimizer.seen / 4
    assert due - optimizer._skipped - 20 <= optimizer.updates <= due, "what the shard was asked for was asked for again"


def pid_of(engine: Engine, role: str, index: int) -> int:
    return next(one["pid"] for one in engine.processes() if (one["role"], one["index"]) == (role, index))  # type: ignore[attr-defined]


def until(optimizer: AsyncReplay, reached: Any, seconds: float = 60.0) -> dict[str, float]:
    """Step until the figures are so; the queues are bounded all the while."""
    limit = time.monotonic() + seconds
    while True:
        found = figures(optimizer, 0.1)
        assert found["queue_depth"] <= 2 * WAITING and found["draws_waiting"] <= 3
        assert found["calls_under_way"] <= 2 + 2 * 8 + LEARNS
        if reached(found):
            return found
        assert time.monotonic() < limit, "the moment never came"


def test_on_ray_it_keeps_the_ratio_and_outlives_a_shard_and_a_worker(ray: Engine) -> None:
    optimizer = build(ray, train_every=4.0, fragment=16, learning_starts=200, buffer=4000)
    until(optimizer, lambda found: optimizer.seen > 3000)
    due = (optimizer.seen - 200) / 4
    assert 0.9 * due <= optimizer.updates <= due and optimizer._skipped == 0
    assert {("replay", 1), ("replay", 2)} <= {(one["role"], one["index"]) for one in ray.processes()}  # type: ignore[attr-defined]

    pid = pid_of(ray, "replay", 1)
    os.kill(pid, signal.SIGKILL)
    found = until(optimizer, lambda found: found["shards_replaced"] == 1 and found["shards_up"] == 2)
    assert found["rows_lost"] > 500 and process(pid) is None
    until(optimizer, lambda found: optimizer._shards[1].held.size > 300)
    os.kill(pid_of(ray, "worker", 2), signal.SIGKILL)
    found = until(optimizer, lambda found: found["workers_replaced"] == 1 and found["workers_up"] == 2)
    held = optimizer._shards[2].held.size
    until(optimizer, lambda found: optimizer._shards[2].held.size > min(held + 100, 1900))
    due = (optimizer.seen - 200) / 4 - optimizer._skipped
    assert 0.9 * due <= optimizer.updates <= due
    replay, pieces = optimizer.get_replay(())
    assert all(state is not None for state in replay["shards"]) and pieces
    optimizer.close()


# --- what is refused ---


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--buffer", "500", "--batch", "300"], "--buffer is 500, of which the smallest of 2 shards has 250, expected"),
        (["--workers", "0"], "--workers is 0, expected at least 1: with --optimizer async_replay"),
        (["--inference", "central"], "--inference central does not fit --optimizer async_replay"),
        (["--optimizer", "sync_replay", "--pacing", "none"], "--pacing none would not be read"),
        (["--optimizer", "async_samples"], "does not fit apex: it learns from a replay"),
        (["--pacing", "sampler"], "did you mean 'samplers'?"),
        (["--buffer", "1e12"], "takes 50291.4 GiB, 25145.7 GiB in each of 2 shards, 54 bytes for each transition"),
        (
            ["--buffer-memory", "7e-6", "--batch", "80", "--envs", "1"],
            "the smallest of 2 shards has 69, expected at least --batch",
        ),
    ],
)
def test_settings_without_a_meaning_are_refused(
    words: list[str], part: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for command in (["plan"], ["train", "--out", str(tmp_path / "run")]):
        assert main([command[0], "apex", "CartPole-v1", *words, *command[1:]]) == 2
        line = capsys.readouterr().err
        assert part in line and line.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_where_the_pace_leaves_room_for_one_the_samplers_take_turns(strict: LocalEngine) -> None:
    """A learner that is far behind lets one fragment begin at a time: it is not always the first sampler's."""
    optimizer = build(strict, workers=2, replay_shards=2, train_every=0.1, learning_starts=40)
    for _ in range(12):
        optimizer.step(0.0)
    held = [shard.held.size for shard in optimizer._shards.values()]
    assert min(held) > 0.7 * max(held) > 50


@pytest.mark.parametrize(
    ("algo", "env", "settings"),
    [
        ("sac", "Pendulum-v1", {"prioritized": True, "n_step": 2}),
        ("td3", "Pendulum-v1", {}),
        ("r2d2", "toy:cue", {"sequence": 10, "burn_in": 4, "sequence_every": 2, "n_step": 2, "memory_size": 8}),
    ],
)
def test_whoever_learns_from_a_replay_learns_from_shards(
    strict: LocalEngine, algo: str, env: str, settings: dict[str, Any]
) -> None:
    shared = {"optimizer": "async_replay", "workers": 2, "replay_shards": 2, "batch": 8, "learning_starts": 0}
    optimizer = build(strict, algo, env, **shared, train_every=16.0, **settings)
    reports = [optimizer.step(0.0) for _ in range(12)]
    assert optimizer.updates >= 5 and optimizer.rows_lost == 0
    assert all(np.isfinite(value) for value in reports[-1].metrics.values().values())
    assert optimizer.learner()._target.policy.version == optimizer.updates  # type: ignore[attr-defined]
