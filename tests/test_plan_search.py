"""The plan of a search: its arithmetic from given figures, and what is said to people."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from podium import algorithms
from podium.core.batch import Batch
from podium.engine.plan import GIB, Machine
from podium.planning import figures, layout, page, suggest
from podium.planning.measure import Measured
from podium.planning.plan import described
from podium.planning.search import episode_steps

MACHINE = Machine(4, 16 * GIB)
MEASURED = Measured(
    env_s=0.001,
    inference_s=0.0005,
    act_s=0.0005,
    wide_act_s=0.001,
    learn_row_s=1e-7,
    env_busy=1.0,
    waits=False,
    gives_state=False,
    parameters=1000,
    weight_bytes=4000,
    optimizer_bytes=8000,
    row_bytes=100,
    edge_bytes=0,
    asked_bytes=0,
    process_bytes=100 << 20,
    table_bytes=40_000_000,
    episode_steps=50,
)


def es(**settings: Any) -> Any:
    """128 perturbations of two episodes in 8 calls of 16 rows: 800 steps of 50 * 2 * 16 rows."""
    return algorithms.get("es").configure(None, {"population": 128, "envs": 16, "rollouts": 2, **settings})


def test_an_update_plays_its_parts_one_after_the_other_or_side_by_side() -> None:
    here = figures.predict(es(), MEASURED, MACHINE)
    assert here.env_steps == 8 * 16 * 100
    assert here.parts["env"] == pytest.approx(8 * 100 * 0.001) and here.parts["transport"] == 0
    assert here.parts["learning"] == pytest.approx(8 * 16 * 100 * 1e-7)
    for workers, rounds in ((1, 8), (2, 4), (3, 3), (4, 2)):
        there = figures.predict(es(engine="ray", workers=workers), MEASURED, MACHINE)
        assert there.parts["env"] == pytest.approx(rounds * 100 * 0.001) and there.env_steps == here.env_steps


def test_what_travels_are_numbers_and_returns() -> None:
    found = figures.traffic(es(engine="ray", workers=2), MEASURED)
    assert (found.weights, found.samples) == (4000, 64 * 8 * 3 + 8 * 1000)
    assert figures.traffic(es(), MEASURED).stored == 0


def test_the_noise_table_takes_its_place_once() -> None:
    config = es(engine="ray", workers=2)
    with_it, without = (figures.memory(config, replace(MEASURED, table_bytes=size)) for size in (40_000_000, 0))
    assert with_it.total - without.total == with_it.table == 40_000_000
    assert with_it.sample == 16 * 4 * 1000
    filtered = figures.memory(es(normalize_obs=True), MEASURED)
    assert filtered.sample == 16 * (4 * 1000 + 128 * 100)
    assert figures.checkpoint_bytes(config, MEASURED) == 4000 + 8000


def test_waiting_for_everybody_is_an_order() -> None:
    assert layout.ordered(es(engine="ray", workers=2)) and layout.ordered(es(wait_for=0.5))
    assert not layout.ordered(es(engine="ray", workers=2, wait_for=0.5))


def test_workers_are_suggested_by_cores_and_parts() -> None:
    assert suggest.workers(es(engine="ray"), MEASURED, MACHINE).value == 4
    few = suggest.workers(es(engine="ray", envs=64), MEASURED, MACHINE)
    assert few.value == 2 and "2 calls" in few.reason
    assert suggest.envs(es(), MEASURED, MACHINE).value == 16


def test_workers_without_anything_to_do_are_told() -> None:
    (line,) = layout.warnings(es(engine="ray", workers=3, envs=64), MACHINE)
    assert line == "--workers 3: an update is played in 2 calls of --envs 64, and the others do nothing"
    assert layout.warnings(es(engine="ray", workers=2, envs=64), MACHINE) == []


def test_a_page_says_what_there_is() -> None:
    config = es(engine="ray", workers="auto")
    found = described("es", "some:env", config, MEASURED, MACHINE)
    text = "\n".join(page.lines(found))
    assert "optimizer evolution, 4 workers, 16 envs each, episodes of 100 steps or more" in text
    assert "the noise table 38.1 MiB" in text
    assert "exact: every perturbation begins its episodes anew" in text and not found["checkpoints"]["restart_episodes"]
    late = described("es", "some:env", es(engine="ray", workers=2, wait_for=0.9), MEASURED, MACHINE)
    assert not late["resume"]["exact"] and "--wait-for 0.9" in late["resume"]["reason"]


def test_the_length_of_episodes_is_that_of_those_that_ended() -> None:
    ends = np.zeros((6, 2), bool)
    ends[2, 0] = ends[5, 1] = True
    nothing = np.zeros((6, 2), bool)
    assert episode_steps(Batch({"terminated": ends, "truncated": nothing})) == 6
    assert episode_steps(Batch({"terminated": nothing, "truncated": nothing})) == 6
    ends[5, 0] = ends[0, 0] = True
    assert episode_steps(Batch({"terminated": nothing, "truncated": ends})) == 3
