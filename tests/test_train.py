"""The driver: what it counts, writes, keeps and asks, that it repeats itself bit for bit, and how it fails."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import podium
from podium import driver
from podium.core import checkpoint
from podium.core.errors import EnvCheckError, EnvDataError, UsageError
from podium.engine.local import LocalEngine
from podium.run.folder import RunFolder
from tests.resume_tools import differences

QUICK: dict[str, Any] = {"epochs": 2, "fragment": 16, "lr": 1e-3, "progress": False}
RESULT_KEYS = {
    *("algo", "env", "engine", "optimizer", "seed", "env_steps", "frames", "episodes", "updates", "return_mean"),
    *("eval_return_mean", "best_return", "wall_s", "steps_per_s", "stopped_by", "status", "resumed_from"),
}


class Diary(podium.Callback):
    """Notes each hook as it is called, and what stood in the folder then; asks to stop after `updates`."""

    def __init__(self, updates: int = 10**9) -> None:
        self.updates = updates
        self.pages: list[tuple[str, Any]] = []

    def on_start(self, run: Any) -> None:
        assert (run.folder.path / "config.json").exists() and not run.folder.metrics.exists()
        self.pages.append(("start", None))

    def on_iteration(self, run: Any, row: Mapping[str, Any]) -> bool:
        assert run.folder.read_metrics()[-1]["env_steps"] == row["env_steps"]
        self.pages.append(("iteration", row["env_steps"]))
        return row["updates"] >= self.updates

    def on_evaluation(self, run: Any, row: Mapping[str, Any]) -> None:
        self.pages.append(("evaluation", row["eval_return_mean"]))

    def on_checkpoint(self, run: Any, path: Path) -> None:
        assert (run.folder.checkpoints / "latest").resolve() == path.resolve()
        self.pages.append(("checkpoint", checkpoint.load(path)[1]["env_steps"]))

    def on_end(self, run: Any, result: Mapping[str, Any]) -> None:
        assert run.folder.read_result() == result
        self.pages.append(("end", result["stopped_by"]))


class Evaluated(gymnasium.Env):
    """Pays 1 a step for 10 steps, and fails as it is told to when it has made `at` steps in all."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, fault: str = "", at: int = 10**9) -> None:
        self.fault, self.at, self.total = fault, at, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.t, self.total = self.t + 1, self.total + 1
        obs = np.zeros(2, np.float32)
        if self.total >= self.at:
            if self.fault == "raise":
                raise ZeroDivisionError("the motor broke")
            if self.fault == "exit":
                sys.exit("good night")
            obs[1] = {"nan": np.nan, "outside": 7}[self.fault]
        return obs, 1.0, self.t == 10, False, {}

    def get_state(self) -> dict[str, Any]:
        return {"t": self.t, "total": self.total}

    def set_state(self, state: dict[str, Any]) -> None:
        self.t, self.total = state["t"], state["total"]


def weights(folder: Path, name: str = "latest") -> dict[str, np.ndarray]:
    return checkpoint.load(folder / "checkpoints" / name)[0]["policy"]["model"]


def equal(mine: dict[str, np.ndarray], theirs: dict[str, np.ndarray]) -> bool:
    return mine.keys() == theirs.keys() and all(mine[name].tobytes() == theirs[name].tobytes() for name in mine)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small run with evaluations, checkpoints and a schedule."""
    folder = tmp_path_factory.mktemp("train") / "run"
    settings = {**QUICK, "lr": "1e-3->0", "steps": 5000, "checkpoint_every": 1000, "keep": 2, "seed": 7}
    podium.train("ppo", "CartPole-v1", out=folder, eval_every=2000, eval_episodes=3, **settings)
    return folder


def test_the_folder_holds_what_it_should(run: Path) -> None:
    assert sorted(path.name for path in run.iterdir()) == [
        *("checkpoints", "config.json", "metrics.jsonl", "processes.json", "result.json", "tb")
    ]
    assert json.loads((run / "processes.json").read_text()) == [], "nothing runs any more"
    config = json.loads((run / "config.json").read_text())
    assert (config["algo"], config["env"], config["from"], config["seed"]) == ("ppo", "CartPole-v1", None, 7)
    assert (config["gamma"], config["clip"], config["lr"]) == (0.99, 0.2, "0.001->0"), "the defaults stand there too"


def test_the_result_says_what_the_rows_do(run: Path) -> None:
    folder = RunFolder.open(run)
    result, rows = folder.read_result(), folder.read_metrics()
    assert result is not None and result.keys() == RESULT_KEYS
    for name in ("env_steps", "frames", "episodes", "updates", "return_mean"):
        assert result[name] == rows[-1][name]
    assert (result["algo"], result["env"], result["engine"], result["seed"]) == ("ppo", "CartPole-v1", "local", 7)
    assert (result["stopped_by"], result["status"], result["resumed_from"]) == ("steps", "finished", None)
    assert result["updates"] == len(rows)
    assert result["steps_per_s"] == pytest.approx(result["env_steps"] / result["wall_s"])


def test_steps_are_counted_from_the_data(run: Path) -> None:
    """CartPole's own vector class begins episodes with a step of its own, which is none of the agent's."""
    rows = RunFolder.open(run).read_metrics()
    assert np.cumsum([row["sampled_steps"] for row in rows]).tolist() == [row["env_steps"] for row in rows]
    assert all(row["sampled_steps"] <= 8 * 16 for row in rows)
    assert rows[-1]["env_steps"] < len(rows) * 8 * 16, "counted from the settings it would be this"
    assert rows[-2]["env_steps"] < 5000 <= rows[-1]["env_steps"], "it ends after the first iteration that gets there"


def test_a_schedule_follows_the_progress_of_the_run(run: Path) -> None:
    rows = RunFolder.open(run).read_metrics()
    before = [0, *(row["env_steps"] for row in rows)]
    assert rows[0]["lr"] == 1e-3
    for row, steps in zip(rows, before, strict=False):
        assert row["lr"] == pytest.approx(1e-3 * (1 - steps / 5000))


def test_evaluations_fall_on_env_steps(run: Path) -> None:
    folder = RunFolder.open(run)
    rows, result = folder.read_metrics(), folder.read_result()
    passed = [row["env_steps"] // 2000 for row in rows]
    expected = [i for i, (a, b) in enumerate(zip([0, *passed], passed, strict=False)) if b > a]
    evaluated = [i for i, row in enumerate(rows) if "eval_return_mean" in row]
    assert evaluated == expected and len(evaluated) == 2
    returns = [rows[i]["eval_return_mean"] for i in evaluated]
    assert result is not None and result["eval_return_mean"] == returns[-1] and result["best_return"] == max(returns)
    assert all("eval_return_std" in rows[i] for i in evaluated)


def test_checkpoints_fall_on_env_steps_and_old_ones_go(run: Path) -> None:
    rows = RunFolder.open(run).read_metrics()
    ends = [row["env_steps"] for row in rows]
    first = [next(end for end in ends if end >= 1000 * k) for k in (1, 2, 3, 4)]
    kept = sorted({first[-1], ends[-1]})
    found = sorted(path.name for path in (run / "checkpoints").iterdir())
    assert found == ["best", "latest", *(checkpoint.step_name(steps) for steps in kept)]
    assert (run / "checkpoints" / "latest").is_symlink()
    assert os.readlink(run / "checkpoints" / "latest") == checkpoint.step_name(ends[-1])


def test_best_is_the_policy_alone_at_its_best_evaluation(run: Path) -> None:
    parts, info = checkpoint.load(run / "checkpoints" / "best")
    assert parts.keys() == {"policy"} and parts["policy"].keys().isdisjoint({"optimizer", "rng"})
    rows = [row for row in RunFolder.open(run).read_metrics() if "eval_return_mean" in row]
    best = max(rows, key=lambda row: row["eval_return_mean"])
    assert info["return"] == best["eval_return_mean"] and parts["policy"]["version"] == best["updates"]
    whole, _ = checkpoint.load(run / "checkpoints" / "latest")
    assert whole.keys() == {"policy", "optimizer", "counters"} and "optimizer" in whole["policy"]


def test_hooks_come_in_order(tmp_path: Path) -> None:
    diary = Diary()
    settings = {**QUICK, "checkpoint_every": 256, "eval_every": 384, "eval_episodes": 2}
    podium.train("ppo", Evaluated, out=tmp_path / "run", steps=512, callbacks=[diary], **settings)
    assert diary.pages == [
        ("start", None),
        ("iteration", 128),
        ("iteration", 256),
        ("checkpoint", 256),
        ("evaluation", 10.0),
        ("iteration", 384),
        ("iteration", 512),
        ("checkpoint", 512),
        ("end", "steps"),
    ]


def test_a_callback_can_stop_a_run(tmp_path: Path) -> None:
    diary = Diary(updates=3)
    result = podium.train("a2c", "CartPole-v1", out=tmp_path / "run", steps=10**6, callbacks=[diary], progress=False)
    assert (result["updates"], result["stopped_by"], result["status"]) == (3, "callback", "finished")
    assert diary.pages[-2:] == [("checkpoint", result["env_steps"]), ("end", "callback")]


def test_it_stops_at_the_return_of_full_hundred_episodes(tmp_path: Path) -> None:
    settings = {**QUICK, "steps": 10**6, "stop_return": 10}
    result = podium.train("ppo", Evaluated, out=tmp_path / "run", **settings)
    assert result["stopped_by"] == "stop_return"
    assert 100 <= result["episodes"] < 100 + 16, "a mean over fewer would stop it at the first episode"
    assert result["best_return"] == 10


def test_where_there_is_an_evaluation_it_decides(tmp_path: Path) -> None:
    settings = {**QUICK, "steps": 2000, "stop_return": 10, "eval_every": 384, "eval_episodes": 2}
    result = podium.train("ppo", Evaluated, out=tmp_path / "run", **settings)
    assert (result["stopped_by"], result["env_steps"], result["eval_return_mean"]) == ("stop_return", 384, 10)
    settings = {**settings, "stop_return": 3.0, "env_args": {"length": 4}, "eval_every": 1500}
    result = podium.train("ppo", "toy:constant", out=tmp_path / "late", **settings)
    assert result["episodes"] > 300 and 1500 <= result["env_steps"] < 1500 + 128


def test_the_same_seed_gives_the_same_weights_and_another_one_others(tmp_path: Path) -> None:
    for name, seed in (("one", 5), ("two", 5), ("other", 6)):
        podium.train("ppo", "Pendulum-v1", out=tmp_path / name, steps=800, seed=seed, normalize_obs=True, **QUICK)
    assert differences(tmp_path / "one", tmp_path / "two") == []
    assert not equal(weights(tmp_path / "one"), weights(tmp_path / "other"))


@pytest.mark.parametrize(
    ("algo", "env", "settings"),
    [
        ("ppo", "CartPole-v1", {"workers": 2, "envs": 4, "normalize_obs": True}),
        ("ppo", "toy:masked", {"memory": "gru", "memory_size": 8}),
        ("pg", "toy:chain", {"fragment": 64}),
    ],
    ids=["workers", "recurrent", "pg"],
)
def test_nothing_rests_on_sharing_objects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, algo: str, env: str, settings: dict[str, Any]
) -> None:
    """An engine that copies every argument and result gives the same run."""
    settings = {"steps": 700, "lr": 1e-3, "progress": False, "fragment": 16, "checkpoint_every": 300, **settings}
    podium.train(algo, env, out=tmp_path / "plain", **settings)
    monkeypatch.setattr(driver, "start", lambda name, address: LocalEngine(strict=True))
    podium.train(algo, env, out=tmp_path / "strict", **settings)
    assert differences(tmp_path / "plain", tmp_path / "strict") == []


def test_evaluating_does_not_change_what_is_learned(tmp_path: Path) -> None:
    settings = {**QUICK, "steps": 1500, "memory": "lstm", "memory_size": 8, "normalize_obs": True}
    podium.train("ppo", "CartPole-v1", out=tmp_path / "without", **settings)
    podium.train("ppo", "CartPole-v1", out=tmp_path / "with", eval_every=300, eval_episodes=3, **settings)
    assert equal(weights(tmp_path / "without"), weights(tmp_path / "with"))
    returns = [[row["return_mean"] for row in RunFolder(tmp_path / n).read_metrics()] for n in ("with", "without")]
    assert returns[0] == returns[1]


def test_runs_in_one_process_do_not_disturb_each_other(tmp_path: Path) -> None:
    """Not one inside the other, and not in another thread than the main one."""
    settings = {**QUICK, "steps": 600, "env_args": {"gap": 2}}

    class Nested(podium.Callback):
        def on_iteration(self, run: Any, row: Mapping[str, Any]) -> None:
            if row["updates"] == 2:
                podium.train("a2c", "CartPole-v1", out=tmp_path / "inner", steps=100, progress=False)
                np.random.seed(1)

    podium.train("ppo", "toy:cue", out=tmp_path / "alone", **settings)
    podium.train("ppo", "toy:cue", out=tmp_path / "around", callbacks=[Nested()], **settings)
    thread = threading.Thread(
        target=podium.train, args=("ppo", "toy:cue"), kwargs={"out": tmp_path / "aside", **settings}
    )
    thread.start()
    thread.join()
    assert (tmp_path / "inner" / "result.json").exists()
    assert differences(tmp_path / "alone", tmp_path / "around") == []
    assert differences(tmp_path / "alone", tmp_path / "aside") == []


@pytest.mark.parametrize("processes", [0, 2])
def test_an_env_that_raises_in_training_is_told_as_it_is(tmp_path: Path, processes: int) -> None:
    folder = tmp_path / "run"
    settings = {**QUICK, "env_args": {"fault": "raise", "at": 100}, "checkpoint_every": 256, "env_processes": processes}
    with pytest.raises(ZeroDivisionError, match="the motor broke") as raised:
        podium.train("ppo", Evaluated, out=folder, steps=10_000, **settings)
    assert raised.value.__notes__ == ["env 0, step 100"]
    result = RunFolder.open(folder).read_result()
    assert result is not None and (result["status"], result["stopped_by"]) == ("failed", "error")
    assert (result["error"], result["where"]) == ("ZeroDivisionError: the motor broke", "env 0, step 100")
    assert (result["env_steps"], checkpoint.load(folder / "checkpoints" / "latest")[1]["env_steps"]) == (768, 768)
    assert json.loads((folder / "processes.json").read_text()) == []


def test_an_env_that_leaves_the_process_fails_the_run(tmp_path: Path) -> None:
    leaving = {"fault": "exit", "at": 100}
    with pytest.raises(RuntimeError, match="called sys.exit.'good night'"):
        podium.train("ppo", Evaluated, out=tmp_path / "run", env_args=leaving, **QUICK)
    result = RunFolder.open(tmp_path / "run").read_result()
    assert result is not None and result["status"] == "failed"
    with pytest.raises(EnvCheckError, match="step.. called sys.exit.'good night'"):
        podium.train("ppo", Evaluated, out=tmp_path / "other", env_args={**leaving, "at": 2}, **QUICK)


@pytest.mark.parametrize(
    ("fault", "message"), [("nan", "obs is NaN in env 0 at step 100"), ("outside", "obs is 7 in env")]
)
def test_data_that_an_env_must_not_give_ends_the_run(tmp_path: Path, fault: str, message: str) -> None:
    with pytest.raises(EnvDataError, match=message) as raised:
        podium.train("ppo", Evaluated, out=tmp_path / "run", env_args={"fault": fault, "at": 100}, **QUICK)
    assert raised.value.exit_code == 1


def test_an_env_that_fails_in_the_check_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError) as raised:
        podium.train("ppo", Evaluated, out=tmp_path / "run", env_args={"fault": "raise", "at": 5}, **QUICK)
    assert raised.value.__notes__ == ["env 0, step 5, in the check before training"]
    with pytest.raises(UsageError, match="NaN") as wrong:
        podium.train("ppo", Evaluated, out=tmp_path / "run", env_args={"fault": "nan", "at": 5}, **QUICK)
    assert wrong.value.exit_code == 2
    assert list(tmp_path.iterdir()) == []


def test_a_state_that_was_kept_in_memory_is_saved_when_an_iteration_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be `KEEP_EVERY_S` old, and what it goes on to is what would have been."""
    monkeypatch.setattr(driver, "KEEP_EVERY_S", 0.0)
    monkeypatch.setattr(driver, "KEEP_SHARE", 0.0)

    class Broken(podium.Callback):
        def on_iteration(self, run: Any, row: Mapping[str, Any]) -> None:
            if row["updates"] == 5:
                raise LookupError

    settings, diary = {**QUICK, "steps": 1024}, Diary()
    with pytest.raises(LookupError):
        podium.train("ppo", Evaluated, out=tmp_path / "run", callbacks=[diary, Broken()], **settings)
    assert diary.pages[-1] == ("end", "error")
    assert checkpoint.load(tmp_path / "run" / "checkpoints" / "latest")[1]["env_steps"] == 4 * 128
    assert podium.resume(tmp_path / "run", progress=False)["resumed_from"] == 512
    podium.train("ppo", Evaluated, out=tmp_path / "whole", **settings)
    found = differences(tmp_path / "whole", tmp_path / "run")
    assert [what for what in found if not what.startswith("checkpoints: ")] == []


def test_keeping_a_state_in_memory_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also for envs that cannot give theirs: how often it happens is the clock's affair."""
    settings = {**QUICK, "steps": 1000, "checkpoint_every": 300}
    monkeypatch.setattr(driver, "KEEP_SHARE", 0.0)
    for env in ("CartPole-v1", "envpool:CartPole-v1"):
        folders = [tmp_path / f"{env[:3]}{keep}" for keep in (1000.0, 0.0)]
        for folder, keep in zip(folders, (1000.0, 0.0), strict=True):
            monkeypatch.setattr(driver, "KEEP_EVERY_S", keep)
            podium.train("ppo", env, out=folder, **settings)
        assert differences(*folders) == []
