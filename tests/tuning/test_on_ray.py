"""Searches on Ray: trials are actors that spawn their own, several at once, with the results of the local engine."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ray.util.placement_group import placement_group_table

from podium.core.errors import UsageError
from podium.engine.ray import RayEngine
from podium.run.folder import RunFolder
from podium.tuning import command, search
from tests.tuning.tools import SEARCH, SMALL, lines, without_time

CORES = 4


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayEngine]:
    engine = RayEngine(num_cpus=CORES)
    yield engine
    engine.close()


def tune(out: Path, **words: Any) -> command.Found:
    given = {**SMALL, "search": SEARCH, "out": out, "trials": 3, "sampler": "random", "env_args": None, **words}
    return command.tune("ppo", "CartPole-v1", **given)


def in_order(folder: Path) -> list[dict[str, Any]]:
    return sorted(map(without_time, lines(folder)), key=lambda record: record["number"])


def test_trials_side_by_side_come_to_what_they_come_to_one_by_one(
    cluster: RayEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, write = list[dict[str, Any]](), RunFolder.write_processes
    monkeypatch.setattr(RunFolder, "write_processes", lambda self, found: (written.extend(found), write(self, found)))
    here = tune(tmp_path / "local", workers=1)
    there = tune(tmp_path / "ray", workers=1, engine="ray", parallel=2, cpus_per_worker=1.0)
    assert here["at_once"]["value"] == 1 and there["at_once"] == {
        "value": 2,
        "reason": "as --parallel says",
        "cores": None,
        "memory_bytes": None,
    }
    assert in_order(there.folder) == in_order(here.folder)
    roles = {process["role"] for process in written if process["pid"] != os.getpid()}
    assert {"trial", "learner", "worker"} <= roles, "also those that trials have made"
    assert lines(there.folder, "processes.json") == [[]]
    reserved = [group for group in placement_group_table().values() if group["state"] != "REMOVED"]
    assert reserved == [], "what a trial's workers reserved is given back"


def test_a_trial_whose_process_dies_fails_alone(
    cluster: RayEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its evaluators die with it, and its cause stands in the file."""
    going_on, killed = search.Search._go_on, list[int]()

    def go_on(self: search.Search, running: search.Running) -> None:
        if running.trial.number == 0 and not killed and running.spawned is not None:
            (own, *_) = self.stage.engine.get(running.spawned.handle.ready)  # type: ignore[attr-defined]
            killed.append(own["pid"])
            os.kill(own["pid"], signal.SIGKILL)
        going_on(self, running)

    monkeypatch.setattr(search.Search, "_go_on", go_on)
    found = tune(tmp_path / "a", engine="ray", trials=2, parallel=2)
    first, second = in_order(found.folder)
    assert killed and first["state"] == "failed" and "WorkerDied: trial-0 is gone" in first["cause"]
    assert second["state"] == "complete" and found["failed"] == 1


def test_a_population_descends_as_it_does_on_the_local_engine(cluster: RayEngine, tmp_path: Path) -> None:
    words: dict[str, Any] = {"scheduler": "population", "population": 3, "exploit_every": 128, "trials": None}
    words |= {"sampler": None, "steps": 256}
    here = tune(tmp_path / "local", **words)
    there = tune(tmp_path / "ray", engine="ray", parallel=3, **words)
    lineage = lines(there.folder, "lineage.jsonl")
    assert len(lineage) == 4 and lineage == lines(here.folder, "lineage.jsonl")
    assert in_order(there.folder) == in_order(here.folder)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"parallel": 64}, "--parallel is 64, and a trial takes 1 core and there are 4 cores: room for 4"),
        (
            {"parallel": 2, "workers": 2, "cpus_per_worker": 1.5},
            "--parallel is 2, and a trial takes 3 cores and there are 4 cores: room for 1",
        ),
    ],
)
def test_more_trials_at_once_than_there_is_room_for_are_refused(
    cluster: RayEngine, tmp_path: Path, words: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError, match=said) as refused:
        tune(tmp_path / "a", engine="ray", **words)
    assert refused.value.exit_code == 2 and not (tmp_path / "a").exists()


def test_the_plan_says_how_many_and_why(cluster: RayEngine) -> None:
    words = {name: value for name, value in SMALL.items() if name not in ("progress", "overwrite", "env_args")}
    planned = command.plan("ppo", "CartPole-v1", search=SEARCH, trials=30, engine="ray", **words)
    at_once = planned["at_once"]
    assert 2 <= at_once["value"] <= CORES and f"of {CORES} cores busy" in at_once["reason"]
    few = command.plan("ppo", "CartPole-v1", search=SEARCH, trials=1, engine="ray", **words)["at_once"]
    assert few["value"] == 1 and few["reason"] == "there are no more than 1"
    reserving = {"workers": 2, "cpus_per_worker": 1.0}
    narrow = command.plan("ppo", "CartPole-v1", search=SEARCH, engine="ray", **words, **reserving)["at_once"]
    assert narrow["value"] <= 2
