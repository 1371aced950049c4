"""Callbacks: hooks that do nothing by themselves, and what W&B has on disk after an offline run."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from podium.core.errors import MissingExtra, UsageError
from podium.run.callbacks import Callback, WandB
from podium.run.folder import RunFolder

CONFIG = {"algo": "ppo", "env": "CartPole-v1", "seed": 1, "lr": 3e-4}

OFFLINE_RUN = """
import sys
from types import SimpleNamespace
from podium.run.callbacks import WandB
from podium.run.folder import RunFolder

run = SimpleNamespace(folder=RunFolder.open(sys.argv[1]))
first = int(sys.argv[2])
callback = WandB(project="testing", mode="offline")
callback.on_start(run)
for steps in range(first, first + 3 * 256, 256):
    callback.on_iteration(run, {"env_steps": steps, "return_mean": steps / 2, "eval_return_mean": None})
callback.on_end(run, {"status": sys.argv[3], "best_return": 99.5})
"""


def wandb_records(file: Path) -> Iterator[Any]:
    """The protobuf records of a .wandb file: 32 KiB blocks of chunks, each with checksum, length and kind before it."""
    from wandb.proto import wandb_internal_pb2

    messages: Any = wandb_internal_pb2
    data, at, parts = file.read_bytes(), 7, b""
    while at + 7 <= len(data):
        room = 32768 - at % 32768
        if room < 7:
            at += room
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        parts += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield messages.Record.FromString(parts)
            parts = b""


def play_offline(folder: Path, first: int = 256, status: str = "finished") -> None:
    code = [sys.executable, "-c", OFFLINE_RUN, str(folder), str(first), status]
    done = subprocess.run(code, capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "", "stdout belongs to --json"


def recorded(folder: Path) -> list[list[Any]]:
    return [list(wandb_records(file)) for file in sorted(folder.glob("wandb/offline-run-*/*.wandb"))]


def test_a_subclass_overrides_the_hooks_that_it_needs(tmp_path: Path) -> None:
    class StopsAt(Callback):
        def on_iteration(self, run: Any, row: Mapping[str, Any]) -> bool:
            return bool(row["env_steps"] >= 512)

    callback, run = StopsAt(), object()
    callback.on_start(run)
    assert [callback.on_iteration(run, {"env_steps": steps}) for steps in (256, 512)] == [False, True]
    callback.on_checkpoint(run, tmp_path)
    callback.on_evaluation(run, {})
    callback.on_end(run, {})
    assert Callback().on_iteration(run, {"env_steps": 512}) is None


def test_wandb_writes_every_row_at_its_env_step(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "my-run", CONFIG)
    play_offline(folder.path)
    (records,) = recorded(folder.path)
    history = [
        {(item.key or item.nested_key[0]): json.loads(item.value_json) for item in record.history.item}
        for record in records
        if record.WhichOneof("record_type") == "history"
    ]
    assert [(row["_step"], row["env_steps"], row["return_mean"]) for row in history] == [
        (256, 256, 128.0),
        (512, 512, 256.0),
        (768, 768, 384.0),
    ]
    (begun,) = (record.run for record in records if record.WhichOneof("record_type") == "run")
    assert (begun.project, begun.display_name) == ("testing", "my-run")
    assert {item.key: json.loads(item.value_json) for item in begun.config.update}.items() >= CONFIG.items()
    summary = [item for record in records for item in record.summary.update]
    assert json.loads(next(item.value_json for item in summary if item.key == "best_return")) == 99.5
    assert [record.exit.exit_code for record in records if record.WhichOneof("record_type") == "exit"] == [0]


def test_a_resumed_run_goes_on_under_the_same_id_and_a_failed_one_is_marked(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", CONFIG)
    play_offline(folder.path)
    stored = json.loads((folder.path / "wandb.json").read_text())["id"]
    play_offline(folder.path, first=1024, status="failed")
    runs = recorded(folder.path)
    ids = [record.run.run_id for records in runs for record in records if record.WhichOneof("record_type") == "run"]
    assert len(runs) == 2 and set(ids) == {stored}
    assert {record.exit.exit_code for records in runs for record in records if record.HasField("exit")} == {0, 1}


def test_wandb_refuses_an_unknown_mode() -> None:
    with pytest.raises(UsageError, match=r"W&B mode is 'ofline', expected one of .*did you mean 'offline'"):
        WandB(mode="ofline")


def test_wandbs_own_refusal_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    run = SimpleNamespace(folder=RunFolder.create(tmp_path / "run", CONFIG))
    with pytest.raises(UsageError, match=r"W&B refused to start the run: .*project") as raised:
        WandB(project="a/b", mode="offline").on_start(run)
    assert "\n" not in str(raised.value)


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(MissingExtra, match=r"podium\[wandb\]"):
        WandB()
