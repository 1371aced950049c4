"""TensorBoard events, read back by TensorBoard's own reader."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from podium.core.errors import MissingExtra
from podium.run.tensorboard import TensorBoard


def read(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    reader = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    reader.Reload()
    return {tag: [(event.step, event.value) for event in reader.Scalars(tag)] for tag in reader.Tags()["scalars"]}


def write(folder: Path, steps: range, scale: float = 1.0, after: int = -1) -> None:
    board = TensorBoard(folder, after=after)
    for step in steps:
        board.write({"env_steps": step, "loss": step * scale}, step)
    board.close()


def test_numbers_are_read_back_at_their_steps(tmp_path: Path) -> None:
    board = TensorBoard(tmp_path / "tb")
    board.write({"loss": 0.5, "return_mean": None, "time": {"sample": np.float32(2.0)}, "note": "text"}, 256)
    board.write({"loss": math.nan, "return_mean": 231.5, "rows": np.zeros(3), "updates": 7}, 512)
    board.close()
    curves = read(tmp_path / "tb")
    assert sorted(curves) == ["loss", "return_mean", "time/sample", "updates"]
    assert curves["loss"][0] == (256, 0.5)
    assert curves["loss"][1][0] == 512 and math.isnan(curves["loss"][1][1])
    assert curves["return_mean"] == [(512, 231.5)]
    assert curves["time/sample"] == [(256, 2.0)] and curves["updates"] == [(512, 7.0)]


def test_a_resumed_run_voids_what_lies_beyond_its_checkpoint(tmp_path: Path) -> None:
    write(tmp_path, range(100, 1001, 100))
    write(tmp_path, range(500, 801, 100), scale=2.0, after=400)
    kept = [(step, step * 1.0) for step in range(100, 401, 100)]
    assert read(tmp_path)["loss"] == kept + [(step, step * 2.0) for step in range(500, 801, 100)]


def test_the_checkpoints_own_row_is_kept_and_the_next_is_not(tmp_path: Path) -> None:
    write(tmp_path, range(1, 11))
    write(tmp_path, range(0), after=5)
    assert [step for step, _ in read(tmp_path)["loss"]] == [1, 2, 3, 4, 5]


def test_files_stand_in_the_order_of_their_runs_also_after_ten(tmp_path: Path) -> None:
    for run in range(12):
        write(tmp_path, range(run + 1, run + 3), scale=run, after=run)
    assert read(tmp_path)["loss"] == [*((step, (step - 1.0) * step) for step in range(1, 13)), (13, 143.0)]


def test_a_killed_run_keeps_what_it_wrote_and_a_torn_event_does_not_stop_the_reader(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; from pathlib import Path\n"
        "from podium.run.tensorboard import TensorBoard\n"
        "board = TensorBoard(Path(sys.argv[1]))\n"
        "for step in range(1, 21): board.write({'loss': step}, step)\n"
        "print(sorted({'torch', 'tensorflow'} & set(sys.modules)), flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert done.returncode == -9 and done.stdout == "[]\n"
    (first,) = tmp_path.iterdir()
    whole = first.read_bytes()
    first.write_bytes(whole[:-5])
    assert [step for step, _ in read(tmp_path)["loss"]] == list(range(1, 20))
    write(tmp_path, range(11, 13), after=10)
    assert [step for step, _ in read(tmp_path)["loss"]] == list(range(1, 13))


def test_closing_twice_is_no_error(tmp_path: Path) -> None:
    board = TensorBoard(tmp_path)
    board.close()
    board.close()


def test_without_the_package_the_error_names_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard.summary.writer.record_writer", None)
    with pytest.raises(MissingExtra, match=r"TensorBoard events needs .*pip install"):
        TensorBoard(tmp_path / "tb")
    assert not (tmp_path / "tb").exists()
