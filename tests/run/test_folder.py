"""The run folder: what is refused, what survives a kill, and what reads back as it was written."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from podium.core.errors import PodiumError, UsageError
from podium.run.folder import RunFolder, default_path, to_json, write_atomically

CONFIG = {"algo": "ppo", "env": "CartPole-v1", "seed": 1, "hidden": (64, 64)}


def new(path: Path) -> RunFolder:
    return RunFolder.create(path, CONFIG)


def filled(path: Path) -> RunFolder:
    """A run with every file that one can have."""
    run = new(path)
    run.append_metrics({"env_steps": 256})
    run.write_result({"status": "finished"})
    run.write_processes([{"role": "learner", "index": 0, "pid": 1}])
    for folder in (run.checkpoints / "step-256", run.path / "tb"):
        folder.mkdir(parents=True)
        (folder / "part").write_text("x")
    (run.checkpoints / "latest").symlink_to("step-256")
    for name in ("plot.png", "trials.jsonl", "wandb.json"):
        (run.path / name).write_text("x")
    return run


def test_create_writes_the_config_and_open_reads_it(tmp_path: Path) -> None:
    new(tmp_path / "deep" / "run")
    assert RunFolder.open(tmp_path / "deep" / "run").config == {**CONFIG, "hidden": [64, 64]}
    assert [entry.name for entry in (tmp_path / "deep" / "run").iterdir()] == ["config.json"]


def test_create_refuses_a_folder_that_holds_a_run_and_changes_nothing(tmp_path: Path) -> None:
    run = filled(tmp_path / "run")
    before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    with pytest.raises(UsageError) as raised:
        RunFolder.create(run.path, {**CONFIG, "seed": 2})
    said = str(raised.value)
    assert str(run.path) in said and "--overwrite" in said and f"podium resume {run.path}" in said
    assert "\n" not in said and raised.value.exit_code == 2
    assert {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()} == before


def test_overwrite_removes_the_runs_own_files_alone(tmp_path: Path) -> None:
    run = filled(tmp_path / "run")
    (run.path / "notes.txt").write_text("mine")
    (run.path / "videos").mkdir()
    (run.path / "videos" / "a.mp4").write_text("mine")
    RunFolder.create(run.path, {**CONFIG, "seed": 2}, overwrite=True)
    assert sorted(entry.name for entry in run.path.iterdir()) == ["config.json", "notes.txt", "videos"]
    assert (run.path / "videos" / "a.mp4").read_text() == "mine"
    assert RunFolder.open(run.path).config["seed"] == 2


def test_overwrite_does_not_follow_a_link_out_of_the_folder(tmp_path: Path) -> None:
    run = new(tmp_path / "run")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "weights").write_text("keep")
    run.checkpoints.symlink_to(elsewhere)
    RunFolder.create(run.path, CONFIG, overwrite=True)
    assert not run.checkpoints.exists() and (elsewhere / "weights").read_text() == "keep"


def test_a_strangers_folder_is_used_beside_its_files_but_never_emptied(tmp_path: Path) -> None:
    beside = tmp_path / "beside"
    beside.mkdir()
    (beside / "readme.md").write_text("mine")
    new(beside)
    assert (beside / "readme.md").read_text() == "mine"

    other = tmp_path / "other"
    (other / "checkpoints").mkdir(parents=True)
    (other / "checkpoints" / "model").write_text("mine")
    (other / "config.json").write_text('{"model_type": "something else"}')
    for overwrite in (False, True):
        with pytest.raises(UsageError, match="no run's folder but already holds a checkpoints"):
            RunFolder.create(other, CONFIG, overwrite=overwrite)
    assert (other / "checkpoints" / "model").read_text() == "mine"


def test_a_failed_overwrite_leaves_the_old_run(tmp_path: Path) -> None:
    run = filled(tmp_path / "run")
    (run.path / "config.json.tmp").mkdir()  # the new config can't be written beside
    with pytest.raises(UsageError, match="can't write a run to"):
        RunFolder.create(run.path, CONFIG, overwrite=True)
    assert RunFolder.open(run.path).read_metrics() == [{"env_steps": 256}]
    assert (run.checkpoints / "latest" / "part").read_text() == "x"


def test_create_refuses_a_file_and_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="is a file, expected a folder"):
        new(tmp_path / "file")
    with pytest.raises(UsageError, match="can't write a run to"):
        new(tmp_path / "file" / "run")
    with pytest.raises(UsageError, match="can't write a run to"):
        new(Path("/proc/podium-run"))


def test_a_config_without_what_marks_a_run_is_a_programming_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no 'env'"):
        RunFolder.create(tmp_path / "run", {"algo": "ppo"})
    assert not (tmp_path / "run").exists()


def test_one_process_at_a_time_trains_in_a_folder(tmp_path: Path) -> None:
    run = filled(tmp_path / "run")
    with run.in_use():
        for use in (RunFolder.open(run.path).in_use().__enter__, partial(run.check_free, overwrite=True)):
            with pytest.raises(UsageError, match="run is in use: process 1 trains in it"):
                use()
        run.write_processes([])
        with pytest.raises(UsageError, match="another process trains in it"):
            run.check_free(overwrite=True)
    run.check_free(overwrite=True)


def test_update_config_replaces_the_settings(tmp_path: Path) -> None:
    run = new(tmp_path / "run")
    run.update_config({**CONFIG, "steps": 200_000})
    assert RunFolder.open(run.path).config["steps"] == 200_000


def test_open_names_the_nearest_run(tmp_path: Path) -> None:
    new(tmp_path / "ppo-cartpole")
    new(tmp_path / "a2c-pendulum")
    (tmp_path / "ppo-cartpolf").mkdir()  # nearer by name, but no run
    with pytest.raises(UsageError, match="does not exist; did you mean 'ppo-cartpole'") as raised:
        RunFolder.open(tmp_path / "ppo-cartpol")
    assert raised.value.exit_code == 2
    with pytest.raises(UsageError, match=r"holds no run .*did you mean 'ppo-cartpole'"):
        RunFolder.open(tmp_path / "ppo-cartpolf")
    with pytest.raises(UsageError, match=r"it holds runs: .*a2c-pendulum"):
        RunFolder.open(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="is a file, expected a run's folder"):
        RunFolder.open(tmp_path / "file")
    with pytest.raises(UsageError, match=r"does not exist$"):
        RunFolder.open(tmp_path / "nowhere" / "run")


def test_metrics_keep_every_digit_and_write_what_is_no_number_as_null(tmp_path: Path) -> None:
    run = new(tmp_path / "run")
    third = 1 / 3
    run.append_metrics({"env_steps": 1, "a": third, "b": math.nan, "c": -math.inf, "d": {"e": [math.inf, 1e-300]}})
    run.append_metrics({"env_steps": np.int64(2), "f": np.float32(0.1), "g": np.float64(third), "h": np.bool_(True)})
    first, second = run.read_metrics()
    assert first == {"env_steps": 1, "a": third, "b": None, "c": None, "d": {"e": [None, 1e-300]}}
    assert second == {"env_steps": 2, "f": 0.10000000149011612, "g": third, "h": True}
    assert [json.loads(line)["env_steps"] for line in run.metrics.read_text().splitlines()] == [1, 2]


def test_json_refuses_what_it_cannot_hold() -> None:
    assert (
        to_json({"path": Path("a") / "b", "none": np.array([math.nan, 1.0])}) == '{"path": "a/b", "none": [null, 1.0]}'
    )
    with pytest.raises(TypeError, match="can't write object"):
        to_json({"thing": object()})


def test_a_row_is_on_disk_when_append_returns(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys\n"
        "from podium.run.folder import RunFolder\n"
        "run = RunFolder(sys.argv[1])\n"
        "for steps in range(1, 51): run.append_metrics({'env_steps': steps})\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    run = new(tmp_path / "run")
    assert subprocess.run([sys.executable, "-c", code, str(run.path)]).returncode == -9
    assert [row["env_steps"] for row in run.read_metrics()] == list(range(1, 51))


def test_cut_keeps_the_rows_up_to_the_checkpoint_byte_for_byte(tmp_path: Path) -> None:
    run = new(tmp_path / "run")
    lines = ['{"env_steps": 256, "loss": 0.10}\n', '{"env_steps":512}\n', '{"env_steps": 513}\n', '{"env_steps": 76']
    run.metrics.write_text("".join(lines))
    run.cut_metrics(512)
    assert run.metrics.read_text() == "".join(lines[:2])
    run.append_metrics({"env_steps": 768})
    assert [row["env_steps"] for row in run.read_metrics()] == [256, 512, 768]
    run.cut_metrics(-1)
    assert run.read_metrics() == [] and run.metrics.read_text() == ""


def test_cut_before_the_first_row_makes_no_file(tmp_path: Path) -> None:
    run = new(tmp_path / "run")
    run.cut_metrics(100)
    assert run.read_metrics() == [] and not run.metrics.exists()


@pytest.mark.parametrize(
    "torn", [b'{"env_st', b'{"env_steps": 2', b"\xc3", b"\0\0\0", b"7", b'{"env_steps": 2, "x": "\xe2']
)
def test_a_torn_last_line_is_left_out(tmp_path: Path, torn: bytes) -> None:
    run = new(tmp_path / "run")
    run.metrics.write_bytes(b'{"env_steps": 1}\n' + torn)
    assert run.read_metrics() == [{"env_steps": 1}]
    run.cut_metrics(10)
    assert run.metrics.read_bytes() == b'{"env_steps": 1}\n'


def test_a_last_line_that_lacks_its_newline_alone_is_kept(tmp_path: Path) -> None:
    run = new(tmp_path / "run")
    run.metrics.write_bytes(b'{"env_steps": 1}\n{"env_steps": 2}')
    run.cut_metrics(10)
    run.append_metrics({"env_steps": 3})
    assert [row["env_steps"] for row in run.read_metrics()] == [1, 2, 3]


def test_damage_before_the_last_line_is_told_not_hidden(tmp_path: Path) -> None:
    run = new(tmp_path / "run")
    run.metrics.write_text('{"env_steps": 1}\n{"env_st\n{"env_steps": 3}\n')
    with pytest.raises(PodiumError, match=r"metrics\.jsonl line 2 is damaged") as raised:
        run.read_metrics()
    assert raised.value.exit_code == 1
    with pytest.raises(PodiumError, match="line 2"):
        run.cut_metrics(1)


def test_result_and_processes_read_back(tmp_path: Path) -> None:
    run = new(tmp_path / "run")
    assert run.read_result() is None
    run.write_result({"return_mean": 231.4, "best_return": math.nan})
    assert run.read_result() == {"return_mean": 231.4, "best_return": None}
    run.write_processes([{"role": "worker", "index": 1, "pid": 77}])
    assert json.loads((run.path / "processes.json").read_text()) == [{"role": "worker", "index": 1, "pid": 77}]
    assert run.checkpoints == run.path / "checkpoints"


def test_a_write_that_dies_before_its_rename_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "result.json"
    write_atomically(target, "old")

    def die(source: Path, destination: Path) -> None:
        raise InterruptedError(f"between {source.name} and {destination.name}")

    with monkeypatch.context() as patched, pytest.raises(InterruptedError, match=r"result\.json\.tmp and result\.json"):
        patched.setattr("podium.run.folder.os.replace", die)
        write_atomically(target, "new")
    assert target.read_text() == "old"
    write_atomically(target, "new")
    assert target.read_text() == "new"
    assert [entry.name for entry in tmp_path.iterdir()] == ["result.json"]


def test_default_path_is_clean_and_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("podium.run.folder.time.strftime", lambda form: "20250131-120000")
    first = default_path("ppo", "CartPole-v1", 3, root=tmp_path)
    assert first == tmp_path / "ppo-CartPole-v1-s3-20250131-120000"
    first.mkdir()
    second = default_path("ppo", "CartPole-v1", 3, root=tmp_path)
    assert second == tmp_path / "ppo-CartPole-v1-s3-20250131-120000-2"
    odd = default_path("ppo", "envpool:../Pong v5/é", 1, root=tmp_path)
    assert odd == tmp_path / "ppo-envpool-..-Pong-v5-s1-20250131-120000"
    assert len(default_path("ppo", "x" * 500, 1).name) < 200
    assert default_path("ppo", "CartPole-v1", 3).parent == Path("runs")


def test_importing_the_folder_is_cheap() -> None:
    code = (
        "import sys, podium, time; begin = time.perf_counter(); import podium.run.folder;"
        "print(time.perf_counter() - begin);"
        "print(sorted({'numpy', 'rich', 'matplotlib', 'torch', 'tensorboard', 'gymnasium'} & set(sys.modules)))"
    )
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True) for _ in range(3)]
    printed = [run.stdout.splitlines() for run in runs]
    assert min(float(lines[0]) for lines in printed) < 0.1
    assert printed[0][1] == "[]"
