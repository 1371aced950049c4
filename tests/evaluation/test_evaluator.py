"""The evaluator: samples that are counted from data, and state that goes on bit for bit in the middle of episodes."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from counting import Counting, Forgetful

from podium.algorithms import ppo
from podium.core import checkpoint
from podium.envs.base import VectorEnv
from podium.envs.make import EnvSpec, make
from podium.evaluation.evaluator import Evaluator
from podium.evaluation.sample import ONLY, Sample, concat_samples
from podium.policies.base import Sgd


def evaluator(
    env: VectorEnv | None, seed: int = 0, index: int = 0, like: VectorEnv | None = None, **settings: Any
) -> Evaluator:
    spaces = like or env
    assert spaces is not None
    config = ppo.PPOConfig.build({"hidden": (8,), "lr": 1e-3, **settings})
    make_policy = partial(ppo.ALGORITHM.policy, config, spaces.observation_space, spaces.action_space, seed)
    return Evaluator(make_policy, None if env is None else lambda: env, seed=seed, index=index)


def named(name: str, n: int = 3, **args: Any) -> VectorEnv:
    return make(EnvSpec(name, args), n)


def saved(state: dict[str, Any], folder: Path) -> dict[str, Any]:
    """What comes back from a checkpoint's files."""
    checkpoint.save(folder / "state", {"state": state}, {})
    return checkpoint.load(folder / "state")[0]["state"]


def same(one: Sample, other: Sample) -> None:
    mine, theirs = one.batches[ONLY], other.batches[ONLY]
    for a, b in ((mine.cols, theirs.cols), (mine.first, theirs.first), (mine.last, theirs.last)):
        assert a.keys() == b.keys()
        assert all(np.array_equal(a[name], b[name]) for name in a)
    assert one.report.episodes == other.report.episodes and one.report.env_steps == other.report.env_steps


# --- samples ---


def test_a_sample_is_finished_and_counted_from_its_rows() -> None:
    worker = evaluator(Counting(4, "next"))
    sample = worker.sample(9)
    batch = sample.batches[ONLY]
    assert {"advantage", "return", "logp", "value", "action"} <= batch.cols.keys()
    assert sample.report.env_steps == int(batch["valid"].sum()) < 36
    assert len(sample.report.episodes) == int((batch["terminated"] | batch["truncated"]).sum())
    assert sample.report.timers.keys() == {"env", "inference", "postprocess"}
    assert sample.report.slowest_s == sum(sample.report.timers.values())
    assert (sample.report.samplers, sample.report.learners) == (1, 0)
    assert sample.version == 0
    worker.learn([sample], Sgd())
    assert worker.sample(2).version == 1


def test_samples_stand_side_by_side_in_their_order() -> None:
    samples = [evaluator(Counting(n), index=n).sample(4) for n in (1, 2, 3)]
    whole = concat_samples(samples)
    batch = whole.batches[ONLY]
    assert batch.width == 6 and whole.report.env_steps == 24 == batch.steps
    assert whole.report.episodes == [episode for sample in samples for episode in sample.report.episodes]
    at = 0
    for sample in samples:
        part = sample.batches[ONLY]
        assert np.array_equal(batch["advantage"][:, at : at + part.width], part["advantage"])
        at += part.width
    assert whole.report.timers["env"] == pytest.approx(sum(sample.report.timers["env"] for sample in samples))
    assert whole.report.slowest_s == max(sample.report.slowest_s for sample in samples)
    assert whole.report.samplers == 3


def test_a_worker_whose_episodes_go_on_stands_beside_one_whose_end() -> None:
    """A random walk to the end of a chain: in some fragment of one step one worker arrives and the other doesn't."""
    workers = [evaluator(named("toy:chain", 1, length=4), seed=index, index=index) for index in (1, 2)]
    ended = []
    for _ in range(60):
        samples = [worker.sample(1) for worker in workers]
        assert concat_samples(samples).report.env_steps == 2
        ended.append(sum(len(sample.report.episodes) for sample in samples))
    assert 1 in ended and 0 in ended


def test_every_env_of_every_worker_has_a_seed_of_its_own() -> None:
    first, again, other, second = (
        evaluator(named("toy:masked"), seed, index).sample(1).batches[ONLY]["obs"]
        for seed, index in ((0, 0), (0, 0), (1, 0), (0, 1))
    )
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other) and not np.array_equal(first, second)
    assert len(np.unique(first[0, :, 0])) == 3


def test_an_evaluator_without_an_env_learns_what_another_sampled() -> None:
    env = Counting(3)
    worker, learner = evaluator(env, index=1), evaluator(None, like=env)
    worker.set_weights(learner.get_weights(0.25))
    assert worker.policy.get_weights().progress == 0.25
    metrics = learner.learn([worker.sample(8)], Sgd(progress=0.25)).metrics.values()
    assert metrics["gradient_steps"] == 1 and metrics["kl"] == pytest.approx(0, abs=1e-9)
    assert learner.get_weights(0.5).version == 1
    with pytest.raises(AssertionError, match="this evaluator has no env"):
        learner.sample(1)


def test_gradients_and_apply_reach_the_policy() -> None:
    env = Counting(3)
    one, worker, learner = evaluator(env), evaluator(Counting(3)), evaluator(None, like=env)
    gradients = worker.compute_gradients(8, Sgd(), learner.get_weights(0))
    assert (gradients.rows, gradients.version, gradients.report.env_steps) == (24, 0, 24)
    assert gradients.report.timers.keys() == {"env", "inference", "postprocess", "gradients"}
    report = learner.apply(gradients, Sgd())
    sample = one.sample(8)
    one.learn([sample], Sgd())
    assert report.episodes == sample.report.episodes and report.env_steps == 24
    assert np.array_equal(one.get_weights(0).flat, learner.get_weights(0).flat)
    assert report.metrics.values()["gradient_norm"] > 0


def test_the_filter_of_the_learner_sees_what_its_workers_saw() -> None:
    env = Counting(3)
    one, worker, learner = (evaluator(e, like=env, normalize_obs=True) for e in (Counting(3), Counting(3), None))
    for _ in range(2):
        one.learn([one.sample(8)], Sgd())
        learner.apply(worker.compute_gradients(8, Sgd(), learner.get_weights(0)), Sgd())
    mine, theirs = (e.policy.get_state(full=True) for e in (one, learner))
    assert theirs["filter"]["obs"]["count"] == 48
    for name in ("mean", "squares"):
        np.testing.assert_array_equal(mine["filter"]["obs"][name], theirs["filter"]["obs"][name])
    assert np.array_equal(one.get_weights(0).flat, learner.get_weights(0).flat)


def test_gradients_are_pushed_in_parts_and_pulled_parts_make_the_weights_again() -> None:
    """Three shards of a vector that three does not divide, with a filter behind the parameters."""
    env = Counting(3)
    whole, parted, learner = (evaluator(e, like=env, normalize_obs=True) for e in (Counting(3), Counting(3), None))
    learner.learn([evaluator(Counting(3)).sample(4)], Sgd())
    weights = learner.get_weights(0.5)
    gradients = whole.compute_gradients(8, Sgd(progress=0.5), weights)
    parts, filters = learner.parameters(3), learner.filters(0.5)
    assert len({len(part) for part in parts}) == 2 and len(filters.flat) == 6
    assert np.array_equal(np.concatenate([*parts, filters.flat]), weights.flat)
    report, observed, *pushed = parted.push_gradients(8, Sgd(progress=0.5), parts, filters, 3)
    assert [len(part) for part in pushed] == [len(part) for part in parts]
    assert np.array_equal(np.concatenate(pushed), gradients.flat) and gradients.flat.any()
    assert report.episodes == gradients.report.episodes and report.env_steps == 24
    assert report.metrics.values() == gradients.report.metrics.values()
    count, mean, squares = observed["obs"]
    assert count == 24
    np.testing.assert_array_equal(mean, gradients.observed["obs"][1])
    np.testing.assert_array_equal(squares, gradients.observed["obs"][2])
    learner.set_parameters([part + np.float32(1) for part in parts], version=7)
    after = learner.get_weights(0.5)
    assert after.version == 7 and np.array_equal(after.flat[-6:], filters.flat)
    assert np.array_equal(after.flat[:-6], weights.flat[:-6] + np.float32(1))


def test_the_weight_lag_is_counted_in_updates() -> None:
    env = Counting(3)
    worker, learner = evaluator(env, index=1), evaluator(None, like=env)
    samples = [worker.sample(4, learner.get_weights(0))]
    for _ in range(3):
        learner.learn([evaluator(Counting(3)).sample(4)], Sgd())
    samples.append(worker.sample(4, learner.get_weights(0)))
    assert [sample.version for sample in samples] == [0, 3]
    learner.learn([evaluator(Counting(3)).sample(4)], Sgd())
    figures = learner.learn(samples, Sgd()).metrics.values()
    assert (figures["weight_lag"], figures["weight_lag_max"]) == ((4 + 1) / 2, 4)
    late = worker.compute_gradients(4, Sgd(), learner.get_weights(0))
    learner.learn([evaluator(Counting(3)).sample(4)], Sgd())
    assert learner.apply(late, Sgd()).metrics.values()["weight_lag"] == 1


def test_a_loaded_sample_is_divided_by_its_envs() -> None:
    """Two learners of five envs take two and three; the first share's report is that of the samples."""
    env = Counting(2)
    samples = [evaluator(Counting(n), index=n).sample(6) for n in (2, 3)]
    learners = [evaluator(None, like=env) for _ in range(2)]
    reports = [learner.load(samples, part, 2) for part, learner in enumerate(learners)]
    assert [report.env_steps for report in reports] == [30, 0]
    assert reports[0].episodes == [episode for sample in samples for episode in sample.report.episodes]
    assert [learner._loaded.batch.width for learner in learners] == [2, 3]
    whole = concat_samples(samples).batches[ONLY]["advantage"]
    parts = [learner._loaded.batch["advantage"] for learner in learners]
    assert np.array_equal(np.concatenate(parts, 1), whole)


# --- evaluation beside training ---


def test_evaluating_leaves_training_as_it_was() -> None:
    left, asked = (evaluator(named("toy:match")) for _ in range(2))
    for worker in (left, asked):
        worker.sample(5)
    first, second = (asked.evaluate(EnvSpec("toy:match"), 5, seed=3) for _ in range(2))
    assert first.returns.shape == (5,) and np.array_equal(first.returns, second.returns)
    same(left.sample(40), asked.sample(40))
    for worker in (left, asked):
        worker.close()


def test_starting_from_another_runs_policy_leaves_its_optimizer_and_counts_behind() -> None:
    trained, fresh = (evaluator(named("toy:continuous"), seed, normalize_obs=True) for seed in (1, 2))
    trained.learn([trained.sample(16)], Sgd(progress=0.5))
    given = trained.policy.get_state(full=True)
    fresh.start_from(given)
    mine, theirs = fresh.policy.get_state(full=True), trained.policy.get_state(full=True)
    assert np.array_equal(fresh.policy.get_weights().flat, trained.policy.get_weights().flat)
    assert mine["filter"]["obs"]["count"] == 48
    assert (mine["version"], mine["progress"]) == (0, 0.0)
    assert (mine["optimizer"]["steps"], theirs["optimizer"]["steps"]) == (0, 1)
    assert not mine["optimizer"]["mean"].any() and theirs["optimizer"]["mean"].any()
    assert not np.array_equal(mine["rng"], theirs["rng"])


# --- state ---


@pytest.mark.parametrize(
    ("env", "settings"),
    [
        ("toy:match", {}),
        ("toy:cue", {"memory": "lstm"}),
        ("toy:masked", {}),
        ("toy:continuous", {"normalize_obs": True}),
        ("CartPole-v1", {"memory": "gru"}),
        ("Pendulum-v1", {"squash": True}),
    ],
)
@pytest.mark.parametrize("before", [3, 7])
def test_a_restored_evaluator_goes_on_bit_for_bit_in_the_middle_of_episodes(
    env: str, settings: dict[str, Any], before: int, tmp_path: Path
) -> None:
    original = evaluator(named(env), seed=1, **settings)
    original.learn([original.sample(before)], Sgd(epochs=2))
    state = original.get_state(restart=True)
    assert state["exact"]
    other = evaluator(named(env), seed=1, **settings)
    other.set_state(saved(state, tmp_path))
    for _ in range(3):
        samples = [worker.sample(11) for worker in (original, other)]
        same(*samples)
        metrics = [worker.learn(samples[:1], Sgd(epochs=2)).metrics.values() for worker in (original, other)]
        assert metrics[0] == metrics[1]
    original.close()
    other.close()


def test_an_env_that_cannot_give_its_state_begins_anew_at_scheduled_checkpoints(tmp_path: Path) -> None:
    envs = Forgetful(2), Forgetful(2)
    original, other = (evaluator(env, seed=1) for env in envs)
    for checkpoints in (1, 2):
        original.sample(5)
        state = original.get_state(restart=True)
        assert state["exact"] and len(envs[0].resets) == 1 + checkpoints
    other.set_state(saved(state, tmp_path))
    same(original.sample(9), other.sample(9))
    assert envs[1].resets[-1] == envs[0].resets[-1]
    assert len({tuple(seeds) for seeds in envs[0].resets}) == 3


def test_a_state_taken_at_another_moment_restarts_nothing_and_says_that_it_is_not_exact() -> None:
    env = Forgetful(2)
    worker = evaluator(env)
    worker.sample(5)
    state = worker.get_state(restart=False)
    assert not state["exact"] and len(env.resets) == 1
    assert worker.sample(1).batches[ONLY]["obs"][0, 0].tolist() == [0, 2, 0]
    resumed_env = Forgetful(2)
    resumed = evaluator(resumed_env)
    resumed.set_state(state)
    resumed.sample(1)
    assert resumed_env.resets[-1] != env.resets[0], "the resumed run would play its first episodes again"


def test_looking_at_the_state_changes_no_later_seed() -> None:
    """How often a state is taken for a signal that may come depends on the clock; the seeds must not."""
    envs = Forgetful(2), Forgetful(2)
    looked_at, left = (evaluator(env) for env in envs)
    for worker in (looked_at, left):
        worker.sample(3)
        for _ in range(2 if worker is looked_at else 0):
            worker.get_state(restart=False)
        worker.get_state(restart=True)
        worker.sample(3)
    assert envs[0].resets == envs[1].resets
