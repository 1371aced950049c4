"""A search on the local engine: what it leaves, that it repeats itself, schedulers, samplers, faults and mistakes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import optuna
import pytest

import podium
from podium.core.errors import PodiumError, UsageError
from podium.run.folder import RunFolder
from podium.tuning import command
from tests.tuning.tools import SEARCH, SMALL, lines, without_time

TOY = "toy:constant"


def tune(out: Path, env: str = TOY, algo: str = "ppo", **words: Any) -> command.Found:
    words = {"search": SEARCH, "out": out, "trials": 4, **words}
    searched = {text.partition("=")[0] for text in words["search"]}
    small = {name: value for name, value in SMALL.items() if name not in searched}
    return command.tune(algo, env, **{**small, **words})


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A search of CartPole with enough trials that the median stops some."""
    folder = tmp_path_factory.mktemp("search") / "run"
    tune(folder, "CartPole-v1", trials=12, steps=1500, fragment=64, env_args=None, epochs=4, report_every=300)
    return folder


def test_it_leaves_a_line_and_a_run_for_each_trial(searched: Path) -> None:
    records = lines(searched)
    assert sorted(record["number"] for record in records) == list(range(12))
    assert {record["state"] for record in records} == {"complete", "pruned"}, "the median stops some of twelve"
    for record in records:
        run = searched / "trials" / f"{record['number']:04d}"
        config, rows = RunFolder.open(run).config, RunFolder(run).read_metrics()
        assert {name: config[name] for name in record["params"]} == record["params"]
        assert rows[-1]["env_steps"] == record["env_steps"] and rows[-1]["return_mean"] == record["value"]
        assert (record["env_steps"] >= 1500) == (record["state"] == "complete")
    for name in ("history", "importance", "parallel"):
        assert (searched / "plots" / f"{name}.png").stat().st_size > 5000


def test_the_best_settings_train_to_the_same_value(searched: Path, tmp_path: Path) -> None:
    result = json.loads((searched / "result.json").read_text())
    complete = [record for record in lines(searched) if record["state"] == "complete"]
    assert result["best"]["value"] == max(record["value"] for record in complete)
    assert result["status"] == "finished" and result["complete"] == len(complete)
    from podium.cli import main

    assert main(["train", "--config", result["config"], "--out", str(tmp_path / "again"), "--quiet"]) == 0
    assert json.loads((tmp_path / "again" / "result.json").read_text())["return_mean"] == result["best"]["value"]
    assert podium.evaluate(result["best"]["run"], episodes=2)["episodes"] == 2
    with pytest.raises(UsageError, match="holds a search, whose runs are in"):
        podium.load(searched)


def test_the_same_seed_searches_the_same_way(tmp_path: Path) -> None:
    once, again = (tune(tmp_path / name, sampler="random").folder for name in ("a", "b"))
    assert list(map(without_time, lines(once))) == list(map(without_time, lines(again)))
    other = tune(tmp_path / "c", sampler="random", seed=1).folder
    assert [record["params"] for record in lines(once)] != [record["params"] for record in lines(other)]
    drawn = [record["params"]["lr"] for record in lines(once)]
    assert len(set(drawn)) == len(drawn), "each trial draws anew"


def test_more_trials_go_on_where_it_ended(tmp_path: Path) -> None:
    tune(tmp_path / "a", trials=3)
    before = lines(tmp_path / "a")
    assert command.resume(tmp_path / "a", progress=False)["trials"] == 3, "it is finished"
    assert command.resume(tmp_path / "a", 5, progress=False)["trials"] == 5
    assert lines(tmp_path / "a")[:3] == before and [one["number"] for one in lines(tmp_path / "a")] == [0, 1, 2, 3, 4]
    tune(tmp_path / "b", trials=5)
    assert list(map(without_time, lines(tmp_path / "a"))) == list(map(without_time, lines(tmp_path / "b")))


def test_a_grid_tries_every_combination_once(tmp_path: Path) -> None:
    found = tune(tmp_path / "a", sampler="grid", search=["clip=0.1,0.2", "epochs=int:1:2"], trials=30)
    assert found["trials"] == 4
    params = [record["params"] for record in lines(found.folder)]
    assert params == [{"clip": c, "epochs": e} for c in (0.1, 0.2) for e in (1, 2)]


@pytest.mark.parametrize("scheduler", ["halving", "hyperband"])
def test_schedulers_stop_trials_early(tmp_path: Path, scheduler: str) -> None:
    found = tune(
        tmp_path / "a", "CartPole-v1", scheduler=scheduler, trials=9, env_args=None, steps=640, report_every=64
    )
    assert found["pruned"] >= 2 and found["complete"] >= 1
    assert found["env_steps"] < 9 * 640


def test_no_scheduler_stops_none_and_cmaes_searches(tmp_path: Path) -> None:
    found = tune(
        tmp_path / "a", scheduler="none", sampler="cmaes", trials=8, search=["lr=log:1e-4:1e-1", "gamma=0.9:1"]
    )
    assert found["complete"] == 8
    journal = [json.loads(line) for line in (found.folder / "journal.log").read_text().splitlines()]
    assert any("cma:generation" in line.get("system_attr", {}) for line in journal), (
        "later trials are of its generations"
    )


def test_how_soon_a_return_is_reached(tmp_path: Path) -> None:
    """On `constant` every episode returns 5: 100 of them are over after 500 env steps."""
    found = tune(tmp_path / "a", metric="env_steps", stop_return=5, steps=800)
    assert found["direction"] == "minimize" and found["complete"] == 4 and found["best"]["value"] == 512
    missed = tune(tmp_path / "b", metric="env_steps", stop_return=6)
    assert missed["missed"] == 4 and missed["best"] is None and missed["config"] is None
    assert {(record["state"], record["value"]) for record in lines(missed.folder)} == {("missed", None)}


def test_several_seeds_make_one_value(tmp_path: Path) -> None:
    found = tune(tmp_path / "a", "CartPole-v1", env_args=None, seeds=[1, 2], trials=2)
    for record in lines(found.folder):
        runs = [RunFolder(found.folder / "trials" / f"{record['number']:04d}" / f"seed-{seed}") for seed in (1, 2)]
        ends = [run.read_metrics()[-1]["return_mean"] for run in runs]
        assert ends[0] != ends[1] and record["value"] == pytest.approx(sum(ends) / 2)


class Faulty(gymnasium.Env):
    """Its motor breaks after `at` steps."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, at: int = 10**9, length: int = 5) -> None:
        self.at, self.length, self.total = at, length, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.t = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: int) -> Any:
        self.t, self.total = self.t + 1, self.total + 1
        if self.total > self.at:
            raise ZeroDivisionError("the motor broke")
        return np.zeros(2, np.float32), 1.0, self.t == self.length, False, {}


FAULTY = f"{__name__}:Faulty"


def test_a_trial_that_fails_leaves_its_cause_and_the_search_goes_on(tmp_path: Path) -> None:
    """An env breaks after 100 steps of its own: with 2 of them that is before the end, with 8 it is after."""
    found = tune(tmp_path / "a", FAULTY, env_args={"at": 100}, search=["envs=2,8"], sampler="grid", trials=2)
    first, second = lines(found.folder)
    assert (first["state"], second["state"]) == ("failed", "complete")
    assert first["value"] is None and "ZeroDivisionError: the motor broke" in first["cause"]
    assert found["failed"] == 1 and found["best"]["number"] == 1


def test_settings_that_make_no_run_together_fail_alone(tmp_path: Path) -> None:
    search = ["env_processes=0,2", "envs=1,2"]
    found = tune(tmp_path / "a", "CartPole-v1", env_args=None, search=search, sampler="grid", scheduler="none")
    states = {(one["params"]["env_processes"], one["params"]["envs"]): one for one in lines(found.folder)}
    assert states[2, 1]["state"] == "failed" and "--env-processes is 2" in states[2, 1]["cause"]
    assert {one["state"] for key, one in states.items() if key != (2, 1)} == {"complete"}


def test_too_many_failures_end_the_search(tmp_path: Path) -> None:
    with pytest.raises(
        PodiumError, match=r"3 trials failed, --max-failed-trials is 2; the first was trial 0: ZeroDivisionE"
    ):
        tune(tmp_path / "a", FAULTY, env_args={"at": 60}, max_failed_trials=2, trials=9)
    assert [record["state"] for record in lines(tmp_path / "a")] == ["failed"] * 3
    assert json.loads((tmp_path / "a" / "result.json").read_text())["status"] == "failed"


def test_a_metric_that_no_run_reports_ends_it_at_once(tmp_path: Path) -> None:
    with pytest.raises(PodiumError, match="no run reports --metric 'kll'; did you mean 'kl'"):
        tune(tmp_path / "a", metric="kll")
    assert [record["state"] for record in lines(tmp_path / "a")] == ["failed"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"search": ["clp=0.1,0.2"]}, "unknown setting --clp; did you mean '--clip'?"),
        ({"lr": 0.1}, "--lr is given and searched"),
        ({"scheduler": "hyperbant"}, "--scheduler is 'hyperbant'; did you mean 'hyperband'?"),
        ({"sampler": "tpee"}, "--sampler is 'tpee'; did you mean 'tpe'?"),
        ({"sampler": "grid"}, "--sampler grid tries every value"),
        ({"sampler": "cmaes", "storage": "sqlite:///x.db"}, "--sampler cmaes keeps pickled state"),
        ({"sampler": "cmaes", "search": ["clip=0.1,0.2"]}, "--sampler cmaes searches ranges"),
        ({"parallel": 2}, "--parallel 2 needs --engine ray"),
        ({"parallel": 0}, "--parallel is 0, expected at least 1"),
        ({"report_every": 1000}, "--report-every is 1000, expected at most --steps, which is 320"),
        ({"population": 4}, "--population would not be read with --scheduler median"),
        ({"scheduler": "population", "trials": 3}, "--trials would not be read with --scheduler population"),
        (
            {"scheduler": "population", "search": ["envs=2,4"]},
            "take over each other's states, which --envs is a part of",
        ),
        ({"scheduler": "population", "search": ["hidden=8|16"]}, "each other's weights, and these would not fit"),
        ({"scheduler": "population", "metric": "env_steps", "stop_return": 5}, "a population is compared on the way"),
        ({"metric": "env_steps"}, "add --stop-return R"),
        ({"seeds": [1, 2], "seed": 3}, "--seed and --seeds can't go together"),
        ({"search": ["memory_size=8,16"]}, "nothing that --search names makes a run"),
        ({"storage": "redis://x"}, "--storage redis://x"),
        ({"storage": "nosuch://x:secret@y/z"}, "--storage nosuch://x:***@y/z"),
        ({"workers": 9999}, "--workers is '9999'"),
    ],
)
def test_a_mistake_is_named_before_anything_is_made(tmp_path: Path, words: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)) as refused:
        tune(tmp_path / "a", **{"trials": None, **words})
    assert refused.value.exit_code == 2 and not lines(tmp_path / "a")


def test_a_folder_that_holds_a_search_is_not_overwritten_unasked(tmp_path: Path) -> None:
    tune(tmp_path / "a", trials=1)
    with pytest.raises(UsageError, match="already holds a run"):
        tune(tmp_path / "a", trials=1, overwrite=False)
    (tmp_path / "a" / "mine.txt").write_text("kept")
    tune(tmp_path / "a", trials=2)
    assert len(lines(tmp_path / "a")) == 2 and (tmp_path / "a" / "mine.txt").exists()


def test_a_journal_that_others_may_have_written_is_not_unpickled(tmp_path: Path) -> None:
    tune(tmp_path / "a", sampler="cmaes", trials=2, search=["lr=log:1e-4:1e-1"])
    (tmp_path / "a" / "journal.log").chmod(0o666)
    with pytest.raises(UsageError, match="expected a journal of your own alone"):
        command.resume(tmp_path / "a", 4, progress=False)


def test_a_population_is_trained_and_leaves_its_lineage(tmp_path: Path) -> None:
    words = {"scheduler": "population", "population": 4, "exploit_every": 256, "trials": None, "steps": 1280}
    found = tune(tmp_path / "a", "CartPole-v1", env_args=None, **words)
    lineage, records = lines(found.folder, "lineage.jsonl"), lines(found.folder)
    assert [record["number"] for record in records] == [0, 1, 2, 3]
    assert [row["parent"] for row in lineage[:4]] == [None] * 4 and len(lineage) == 4 + 4, (
        "one of four in each interval"
    )
    last = {row["member"]: row["after"] for row in lineage}
    assert {record["number"]: record["params"] for record in records} == last
    assert (found.folder / "plots" / "lineage.png").stat().st_size > 5000
    assert podium.evaluate(found["best"]["run"], episodes=1)["episodes"] == 1
    again = tune(tmp_path / "b", "CartPole-v1", env_args=None, **words)
    assert lines(again.folder, "lineage.jsonl") == lineage and lines(again.folder) == records
    assert command.resume(found.folder, progress=False).figures == found.figures, "it is finished"


def test_no_search_unpickles_or_samples_at_random_in_the_study(tmp_path: Path) -> None:
    """The journal is Optuna's: whoever knows Optuna can open it."""
    found = tune(tmp_path / "a", trials=2)
    storage = optuna.storages.JournalStorage(
        optuna.storages.journal.JournalFileBackend(str(found.folder / "journal.log"))
    )
    study = optuna.load_study(study_name=f"ppo-{TOY}", storage=storage)
    assert study.best_trial.number == found["best"]["number"] and len(study.trials) == 2
