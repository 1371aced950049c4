"""Strategies that divide the work learn what one learner learns on all of it; without the reduction they don't."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest

from podium import algorithms
from podium.core.batch import Batch
from podium.core.sgd import Reduce
from podium.engine.local import LocalEngine
from podium.envs.make import EnvSpec, make, spaces_of
from podium.evaluation.evaluator import Evaluator
from podium.evaluation.sample import ONLY, Report, Sample, concat_samples
from podium.optimizers.parameter_server import Shard
from podium.policies.base import Sgd

CARTPOLE, PENDULUM = EnvSpec("CartPole-v1"), EnvSpec("Pendulum-v1")
WHOLE = Sgd(seed=3, epochs=3)
PLAIN: dict[str, Any] = {"seed": 5, "envs": 4, "hidden": (16,), "normalize_advantage": False, "lr": 0.01}


@pytest.fixture
def engine() -> Iterator[LocalEngine]:
    engine = LocalEngine()
    yield engine
    engine.close()


def evaluator(name: str, spec: EnvSpec, index: int = 0, **settings: Any) -> Evaluator:
    algorithm = algorithms.get(name)
    config = algorithm.configure(None, {**PLAIN, **settings})
    make_policy = partial(algorithm.policy, config, *spaces_of(spec), config.seed)
    return Evaluator(make_policy, partial(make, spec, config.envs), seed=config.seed, index=index)


def fixed_samples(name: str, spec: EnvSpec, widths: Sequence[int], **settings: Any) -> list[Sample]:
    """One fragment of each of several workers with the same weights."""
    made = []
    for index, envs in enumerate(widths, 1):
        worker = evaluator(name, spec, index, **{**settings, "envs": envs})
        made.append(worker.sample(24))
        worker.close()
    return made


def weights(one: Evaluator) -> np.ndarray:
    return one.policy.get_weights().flat


class Alone:
    """What a member would have if nobody reduced: its own array."""

    size = 2

    def __call__(self, values: np.ndarray) -> np.ndarray:
        return values


class Ranked(Evaluator):
    """A member that learns on a sample that it is given."""

    def learn_given(self, sample: Sample, sgd: Sgd, alone: bool = False, *, reduce: Reduce) -> Report:
        return self.learn([sample], sgd, Alone() if alone else reduce)


def divided(engine: LocalEngine, name: str, spec: EnvSpec, parts: list[Sample], alone: bool, **settings: Any) -> list:
    """The weights of members that learned together, each on its own part."""
    algorithm = algorithms.get(name)
    config = algorithm.configure(None, {**PLAIN, **settings})
    make_policy = partial(algorithm.policy, config, *spaces_of(spec), config.seed)
    handles = [engine.spawn(Ranked, make_policy, None, seed=5, index=index) for index in range(len(parts))]
    group = engine.group(handles)
    engine.get(group.call("learn_given", [(part, WHOLE, alone) for part in parts]))
    return [engine.get(handle.call("get_weights", 0.0)).flat for handle in handles]


@pytest.mark.parametrize("widths", [(4, 4), (6, 2), (3, 3, 2)], ids=str)
@pytest.mark.parametrize(
    ("name", "spec", "settings"),
    [
        ("ppo", CARTPOLE, {}),
        ("a2c", CARTPOLE, {"normalize_obs": True}),
        ("ppo", PENDULUM, {"normalize_obs": True}),
        ("impala", CARTPOLE, {}),
        ("ppo", CARTPOLE, {"memory": "gru"}),
    ],
    ids=["ppo", "a2c filtered", "ppo pendulum filtered", "impala", "ppo recurrent"],
)
def test_members_learn_what_one_learner_learns_on_the_concatenation(
    engine: LocalEngine, name: str, spec: EnvSpec, settings: dict[str, Any], widths: tuple[int, ...]
) -> None:
    """Also where they hold unequal shares: rows count alike, not members."""
    parts = fixed_samples(name, spec, widths, **settings)
    alone = evaluator(name, spec, **settings)
    alone.learn([concat_samples(parts)], WHOLE)
    together = divided(engine, name, spec, parts, alone=False, **settings)
    for theirs in together:
        np.testing.assert_array_equal(theirs, together[0])
        np.testing.assert_allclose(theirs, weights(alone), atol=1e-5)
    apart = divided(engine, name, spec, parts, alone=True, **settings)
    assert np.abs(apart[0] - weights(alone)).max() > 1e-3
    assert np.abs(apart[0] - apart[1]).max() > 1e-3


def with_reset_rows(sample: Sample, rows: int) -> Sample:
    """The same sample of which some rows teach nothing, as those of an env that resets late."""
    batch = sample.batches[ONLY]
    valid = batch["valid"].copy()
    valid[:rows, 0] = False
    return Sample({ONLY: batch.with_columns(valid=valid)}, sample.version, sample.report)


def test_members_with_fewer_valid_rows_take_as_many_steps(engine: LocalEngine) -> None:
    """Were minibatches counted by valid rows, one of the two would wait for the other forever."""
    whole, holed = fixed_samples("ppo", CARTPOLE, (4, 4))
    algorithm = algorithms.get("ppo")
    config = algorithm.configure(None, PLAIN)
    make_policy = partial(algorithm.policy, config, *spaces_of(CARTPOLE), config.seed)
    handles = [engine.spawn(Ranked, make_policy, None, seed=5) for _ in range(2)]
    sgd = Sgd(seed=1, epochs=2, minibatch=16)
    calls = [(whole, sgd), (with_reset_rows(holed, 20), sgd)]
    reports = engine.get(engine.group(handles).call("learn_given", calls))
    assert [report.metrics.values()["gradient_steps"] for report in reports] == [12, 12]
    one, other = (engine.get(handle.call("get_weights", 0.0)).flat for handle in handles)
    np.testing.assert_array_equal(one, other)


def loaded(engine: LocalEngine, samples: list[Sample], learners: int, alone: bool = False) -> list[np.ndarray]:
    """The weights of learners that divide samples among their memories."""
    handles = learners_of(engine, learners)
    for part, handle in enumerate(handles):
        engine.get(handle.call("load", samples, part, learners))
    engine.get(engine.group(handles).call("learn_in_memory", [(WHOLE, alone)] * learners))
    return [engine.get(handle.call("get_weights", 0.0)).flat for handle in handles]


def learners_of(engine: LocalEngine, count: int, **settings: Any) -> list[Any]:
    algorithm = algorithms.get("ppo")
    config = algorithm.configure(None, {**PLAIN, **settings})
    make_policy = partial(algorithm.policy, config, *spaces_of(CARTPOLE), config.seed)
    return [engine.spawn(Loads, make_policy, None, seed=5) for _ in range(count)]


class Loads(Evaluator):
    """A learner whose reduction can be taken out."""

    def learn_in_memory(self, sgd: Sgd, alone: bool, *, reduce: Reduce) -> Report:
        return self.learn_loaded(sgd, reduce=Alone() if alone else reduce)


@pytest.mark.parametrize("settings", [{}, {"memory": "lstm"}], ids=["plain", "recurrent"])
def test_devices_with_unequal_shares_take_equally_many_steps(engine: LocalEngine, settings: dict[str, Any]) -> None:
    """Of 9 envs one has 4 and the other 5; were steps counted by one's own, they would not meet."""
    samples = fixed_samples("ppo", CARTPOLE, (9,), **settings)
    handles = learners_of(engine, 2, **settings)
    for part, handle in enumerate(handles):
        engine.get(handle.call("load", samples, part, 2))
    sgd = Sgd(seed=1, epochs=2, minibatch=24, stop_above=("kl", 1e9))
    reports = engine.get(engine.group(handles).call("learn_loaded", [(sgd,)] * 2))
    steps = [report.metrics.values()["gradient_steps"] for report in reports]
    assert steps[0] == steps[1] >= 8
    one, other = (engine.get(handle.call("get_weights", 0.0)).flat for handle in handles)
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("learners", [1, 2, 3])
def test_devices_learn_what_one_learner_learns_on_the_concatenation(engine: LocalEngine, learners: int) -> None:
    samples = fixed_samples("ppo", CARTPOLE, (4, 4))
    alone = evaluator("ppo", CARTPOLE)
    alone.learn([concat_samples(samples)], WHOLE)
    for theirs in loaded(engine, samples, learners):
        np.testing.assert_allclose(theirs, weights(alone), atol=1e-5)
    if learners > 1:
        assert np.abs(loaded(engine, samples, learners, alone=True)[0] - weights(alone)).max() > 1e-3


def test_the_shares_of_devices_are_all_rows_once() -> None:
    (sample,) = fixed_samples("ppo", CARTPOLE, (5,))
    batch: Batch = sample.batches[ONLY]
    shares = [batch.slice(envs=slice(part * 5 // 3, (part + 1) * 5 // 3)) for part in range(3)]
    np.testing.assert_array_equal(np.concatenate([share["reward"] for share in shares], 1), batch["reward"])


@pytest.mark.parametrize("shards", [1, 8])
@pytest.mark.parametrize("max_grad_norm", [None, 0.05])
def test_shards_step_as_the_policy_itself_would(shards: int, max_grad_norm: float | None) -> None:
    """Three synchronous updates by the mean of two gradients; the length that clips is that of the whole."""
    settings = {"max_grad_norm": max_grad_norm}
    samples = fixed_samples("a2c", CARTPOLE, (4, 4), **settings)
    alone = evaluator("a2c", CARTPOLE, **settings)
    owners = [Shard(1e-5) for _ in range(shards)]
    for owner, part in zip(owners, alone.parameters(shards), strict=True):
        owner.begin(part)
    for update in range(3):
        sgd = Sgd(progress=0.0, seed=update)
        gradients = [alone.policy.gradients(sample.batches[ONLY], sgd)[0] for sample in samples]
        rows = [sample.batches[ONLY].steps for sample in samples]
        split = [np.array_split(gradient, shards) for gradient in gradients]
        lengths = [
            owner.gather(list(parts), [n / sum(rows) for n in rows])
            for owner, *parts in zip(owners, *split, strict=True)
        ]
        norm = float(np.sqrt(sum(lengths)))
        scale = 1.0 if max_grad_norm is None or norm < max_grad_norm else max_grad_norm / norm
        pulled = [owner.step(scale, 0.01) for owner in owners]
        mean = sum(gradient * (n / sum(rows)) for gradient, n in zip(gradients, rows, strict=True))
        assert norm == pytest.approx(float(np.linalg.norm(mean)), rel=1e-5)
        alone.policy.apply(mean, sgd)
        np.testing.assert_allclose(np.concatenate(pulled), weights(alone), atol=1e-5)
    if shards > 1:
        assert float(np.sqrt(lengths[0])) < 0.9 * norm, "a shard that clipped by its own length would step otherwise"
