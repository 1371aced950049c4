"""Evolution over its workers: the same step whoever plays, little sent back, late and lost results by their rules."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from podium import algorithms
from podium.algorithms.common.base import Setup
from podium.cli import main
from podium.core.errors import ConfigError, EnvDataError, PodiumError, UsageError
from podium.core.noise import Noises, offsets, table
from podium.engine.local import LocalEngine
from podium.engine.pool import Finished, Pool
from podium.envs.make import EnvSpec, spaces_of
from podium.evaluation.search import Part
from podium.optimizers.evolution import Evolution

TINY: dict[str, Any] = {"seed": 2, "envs": 4, "hidden": (8,), "noise_table": 5000}
SMALL = {
    "es": {**TINY, "population": 16},
    "ars": {**TINY, "directions": 7, "top": 3},  # the last part is not full
    "cem": {**TINY, "population": 10, "elites": 3},
}


@pytest.fixture
def strict() -> Iterator[LocalEngine]:
    engine = LocalEngine(strict=True)
    yield engine
    engine.close()


def build(
    engine: LocalEngine, algo: str, env: str = "CartPole-v1", args: Mapping[str, Any] = {}, **settings: Any
) -> Evolution:
    algorithm = algorithms.get(algo)
    spec = EnvSpec(env, dict(args))
    config = algorithm.configure(None, {**SMALL[algo], **settings})
    optimizer = algorithm.build(config, Setup(engine, spec, *spaces_of(spec)))
    assert isinstance(optimizer, Evolution)
    return optimizer


def flat(optimizer: Evolution) -> np.ndarray:
    return optimizer.engine.get(optimizer.learner().call("get_weights", 0.0)).flat


def steps(optimizer: Evolution, count: int) -> tuple[bytes, list[Any]]:
    """The weights after some steps, and what was counted on the way."""
    counted = []
    for step in range(count):
        report = optimizer.step(step / 10)
        counted.append((report.env_steps, report.episodes))
    return flat(optimizer).tobytes(), counted


@pytest.mark.parametrize("algo", SMALL)
@pytest.mark.parametrize(
    "settings", [{}, {"normalize_obs": True, "sample_actions": True, "rollouts": 2}], ids=["", "all"]
)
def test_the_same_step_whoever_plays_and_however_many(algo: str, settings: dict[str, Any], strict: LocalEngine) -> None:
    alone = steps(build(LocalEngine(), algo, **settings), 4)
    for workers in (1, 2, 5):
        assert steps(build(strict, algo, workers=workers, **settings), 4) == alone
    assert steps(build(LocalEngine(), algo, **settings, seed=3), 4)[0] != alone[0]


@pytest.mark.parametrize("algo", SMALL)
@pytest.mark.parametrize("workers", [0, 2])
def test_it_goes_on_from_its_state(algo: str, workers: int, strict: LocalEngine) -> None:
    settings = {"workers": workers, "normalize_obs": True}
    optimizer = build(strict, algo, **settings)
    steps(optimizer, 3)
    saved = optimizer.get_state(restart=False)
    assert [state["exact"] for state in saved["evaluators"]] == [True]
    other = build(strict, algo, **settings)
    other.set_state(saved)
    assert steps(other, 3) == steps(optimizer, 3) and other.updates == 6


def test_steps_and_episodes_are_counted_from_the_data(strict: LocalEngine) -> None:
    """toy:match has episodes of 32; 7 directions both ways play two each, in whichever manner episodes begin anew."""
    for autoreset in ("same", "next"):
        report = build(strict, "ars", "toy:match", {"autoreset": autoreset}, workers=2, rollouts=2).step(0.0)
        assert report.env_steps == 7 * 2 * 2 * 32 and len(report.episodes) == 28
        assert {length for _, length in report.episodes} == {32}
        assert (report.samplers, report.learners) == (2, 1)


def test_episodes_of_all_lengths_count_to_their_ends_alone() -> None:
    report = build(LocalEngine(), "es").step(0.0)
    assert report.env_steps == sum(length for _, length in report.episodes) and len(report.episodes) == 16
    assert all(ret == length for ret, length in report.episodes)
    assert 0 < report.metrics.values()["idle_rows"] < 1


def test_a_perturbation_is_its_noise_to_both_sides_of_the_centre() -> None:
    optimizer = build(LocalEngine(), "es", "toy:match", sigma=0.5)
    learner: Any = optimizer.learner()
    centre = optimizer.engine.get(learner.call("centre", 0.0))
    vectors = learner._target._perturbed(centre, Noises(table(2, 5000), np.array([7]), len(flat(optimizer))), 4)
    noise = table(2, 5000)[7 : 7 + vectors.shape[1]]
    np.testing.assert_allclose(vectors[0] - flat(optimizer), 0.5 * noise, atol=1e-6)
    np.testing.assert_allclose(vectors[1] - flat(optimizer), -0.5 * noise, atol=1e-6)
    assert np.array_equal(vectors[2], flat(optimizer)), "rows that are left over"


def test_the_filter_sees_every_row_that_counts_once() -> None:
    optimizer = build(LocalEngine(), "ars", "toy:match", {"autoreset": "next"}, workers=3)
    played = sum(optimizer.step(0.0).env_steps for _ in range(2))
    state = optimizer.engine.get(optimizer.learner().call("policy_state"))
    assert state["filter"]["obs"]["count"] == played == 2 * 7 * 2 * 32
    assert state["filter"]["obs"]["mean"] == pytest.approx([0.25] * 4, abs=0.05)


def test_workers_send_less_than_a_hundredth_of_a_million_parameters(strict: LocalEngine) -> None:
    """What all workers send back in an update, pickled as it would travel, and nothing but the part on the way there."""
    optimizer = build(
        strict, "es", "toy:match", workers=2, hidden=(996, 1000), envs=2, population=4, noise_table=2_000_000
    )
    parameters = len(flat(optimizer))
    assert parameters > 1_000_000
    sent: list[int] = []
    asked: list[int] = []
    watched = optimizer.workers.call

    def call(index: int, method: str, part: Part, centre: Any, noise: Any) -> None:
        asked.append(len(pickle.dumps(part, protocol=5)))
        assert hasattr(centre, "value") and hasattr(noise, "value"), "by reference"
        watched(index, method, part, centre, noise)

    optimizer.workers.call = call  # type: ignore[method-assign]
    got = strict.get

    def get(refs: Any, timeout: float | None = None) -> Any:
        value = got(refs, timeout)
        if hasattr(value, "returns"):
            sent.append(len(pickle.dumps(value, protocol=5)))
        return value

    strict.get = get  # type: ignore[method-assign]
    optimizer.step(0.0)
    assert len(sent) == len(asked) == 2
    assert sum(sent) < 0.01 * 4 * parameters and sum(asked) < 0.01 * 4 * parameters
    assert sum(sent) < 10_000


class Slow(Pool):
    """Holds the results of the second worker back for some waits; the worker is busy meanwhile."""

    def __init__(self, *args: Any, holds: int, **kwargs: Any) -> None:
        self.holds, self._held, self._since = holds, list[Finished](), 0
        super().__init__(*args, **kwargs)

    @property
    def free(self) -> list[int]:
        return [index for index in super().free if not (index == 2 and self._held)]

    def wait(self, until: Any = None) -> list[Finished]:
        found = super().wait(until)
        if not self._held:
            self._held = [one for one in found if one.index == 2]
            self._since = 0
            found = [one for one in found if one.index != 2]
        self._since += 1
        if self._since > self.holds:
            found, self._held = [*found, *self._held], []
        return found


def slow(engine: LocalEngine, holds: int, **settings: Any) -> Evolution:
    """One of three workers is slow."""
    optimizer = build(engine, "es", "toy:match", workers=3, envs=2, **settings)
    spawn = optimizer.workers._spawn
    optimizer.workers.close()
    optimizer.workers = Slow(engine, spawn, 3, holds=holds)
    return optimizer


def test_late_results_are_dropped_or_used_and_counted() -> None:
    """Parts of one pair, 8 in an update of which 7 are waited for. One result is always late."""
    for late in ("drop", "use"):
        optimizer = slow(LocalEngine(), 6, wait_for=0.8, late=late)
        seen = [optimizer.step(0.0) for _ in range(6)]
        figures = seen[-1].metrics.values()
        used, dropped = figures["late_used"], figures["late_dropped"]
        assert (used > 0 and dropped == 0) if late == "use" else (used == 0 and dropped > 0)
        assert 7 * 2 * 32 <= min(one.env_steps for one in seen) and seen[0].env_steps < 8 * 2 * 32
        assert sum(one.env_steps for one in seen) >= 6 * 7 * 2 * 32, "what is dropped was played all the same"


def test_with_everybody_waited_for_slowness_changes_nothing() -> None:
    quick = build(LocalEngine(), "es", "toy:match", envs=2)
    assert steps(slow(LocalEngine(), 3), 4) == steps(quick, 4)


def test_on_one_engine_nothing_is_late() -> None:
    whole, hasty = (build(LocalEngine(), "es", workers=2, wait_for=share) for share in (1.0, 0.5))
    assert steps(whole, 3) == steps(hasty, 3)


def test_what_a_lost_worker_played_is_played_again() -> None:
    whole = steps(build(LocalEngine(), "es"), 4)
    engine = LocalEngine()
    optimizer = build(engine, "es", workers=2)
    counted = []
    for step in range(4):
        engine.kill(optimizer.workers.handle(1 + step % 2))
        report = optimizer.step(step / 10)
        counted.append((report.env_steps, report.episodes))
    figures = report.metrics.values()
    assert figures["played_again"] == 4 * 2 and figures["workers_replaced"] == 4
    assert flat(optimizer).tobytes() == whole[0]
    assert counted == whole[1]


def test_another_runs_policy_is_taken_over(strict: LocalEngine) -> None:
    source = build(strict, "es", seed=7)
    source.step(0.0)
    optimizer = build(strict, "es", lr=0.0)
    optimizer.adopt(strict.get(source.learner().call("policy_state")))
    optimizer.step(0.0)
    assert np.array_equal(flat(optimizer), flat(source))


def test_another_kind_of_policy_is_refused(strict: LocalEngine) -> None:
    with pytest.raises(UsageError, match="has no 'flat': it is of another kind of algorithm"):
        build(strict, "es").adopt({"model": {}, "filter": {}, "version": 0, "progress": 0.0})


def test_an_episode_without_end_is_an_error(strict: LocalEngine) -> None:
    with pytest.raises(EnvDataError, match="has not ended after 1[0-9][0-9] steps.*give --time-limit"):
        build(strict, "es", "toy:constant", {"length": 100_000}, longest=100).step(0.0)


def test_a_table_shorter_than_the_policy_is_refused(strict: LocalEngine) -> None:
    with pytest.raises(ConfigError, match="--noise-table is 30, expected at least the policy's 58 parameters"):
        build(strict, "es", noise_table=30)
    build(strict, "es", noise_table=58).step(0.0)
    assert set(offsets(2, 0, 8, 58, 58)) == {0}


def test_weights_that_are_not_finite_end_the_run(strict: LocalEngine) -> None:
    optimizer = build(strict, "es", lr=1.0)
    optimizer.adopt({"flat": np.full(58, 3e38, np.float32), "filter": {}, "version": 0, "progress": 0.0})
    with pytest.raises(PodiumError, match="update 2: weights are not finite"), np.errstate(all="ignore"):
        for _ in range(20):
            optimizer.step(0.0)


REFUSED = [
    (["es", "--population", "7"], "--population is 7, expected an even number: perturbations come in pairs"),
    (["es", "--population", "0"], "--population is '0', expected a whole number from 2"),
    (["es", "--sigma", "0"], "--sigma is '0', expected a number above 0"),
    (["es", "--envs", "3"], "--envs is 3, expected an even number"),
    (["es", "--population", "16"], "--envs is 32, expected at most 16"),
    (["ars", "--top", "17"], "--top is 17, expected at most --directions, which is 16"),
    (["ars", "--directions", "0"], "--directions is '0', expected a whole number from 1"),
    (["ars", "--population", "8"], "unknown setting --population"),
    (["cem", "--elites", "65"], "--elites is 65, expected at most --population, which is 64"),
    (["cem", "--sigma", "0"], "--sigma is '0', expected a number above 0"),
    (["cem", "--lr", "0.1"], "unknown setting --lr"),
    (["es", "--wait-for", "0"], "--wait-for is '0', expected a number above 0 to 1"),
    (["es", "--late", "use"], "--late use would not be read: --wait-for is 1"),
    (["es", "--fragment", "16"], "--fragment 16 would not be read: --optimizer is evolution"),
    (["es", "--optimizer", "sync_samples"], "does not fit es: it compares the returns of whole episodes"),
    (["ppo", "--optimizer", "evolution"], "does not fit ppo: it has a loss to go down"),
    (["es", "--inference", "central", "--workers", "2"], "--inference central does not fit --optimizer evolution"),
    (["es", "--device", "cuda"], "--device is 'cuda', expected one of cpu"),
    (["es", "--noise-table", "20"], "--noise-table is 20, expected at least the policy's 1282 parameters"),
    (["es", "--squash"], "--squash true would not be read"),
    (["es", "--hiden", "8"], "did you mean '--hidden'"),
]


@pytest.mark.parametrize(("words", "part"), REFUSED, ids=[" ".join(words) for words, _ in REFUSED])
def test_wrong_settings_are_one_line(words: list[str], part: str, capsys: Any, tmp_path: Path) -> None:
    algo, *flags = words
    assert main(["train", algo, "CartPole-v1", *flags, "--out", str(tmp_path / "run"), "--quiet"]) == 2
    line = capsys.readouterr().err
    assert part in line and line.count("\n") == 1
