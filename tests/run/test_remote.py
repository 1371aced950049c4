"""Runs at fsspec addresses: what is there after a run is what a folder would hold, and goes on from there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import fsspec
import numpy as np
import pytest

import podium
from podium.cli import main
from podium.core import checkpoint
from podium.core.errors import UsageError
from podium.run import remote

SMALL = {"fragment": 16, "epochs": 1, "seed": 1, "progress": False}


@pytest.fixture(autouse=True)
def _stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(remote, "STAGE", tmp_path / "stage")
    yield
    memory = fsspec.filesystem("memory")
    if memory.exists("/bucket"):
        memory.rm("/bucket", recursive=True)


def address(tmp_path: Path, kind: str) -> str:
    return "memory://bucket/runs/one" if kind == "memory" else f"file://{tmp_path}/there/one"


@pytest.mark.parametrize("kind", ["memory", "file"])
def test_a_run_at_an_address_goes_on_from_there_alone(tmp_path: Path, kind: str) -> None:
    """The copy on this machine is thrown away in between; the run equals one in a folder, bit for bit."""
    place = address(tmp_path, kind)
    first = podium.train("ppo", "CartPole-v1", out=place, steps=600, checkpoint_every=256, keep=1, **SMALL)
    assert first.address == place
    there, root = fsspec.core.url_to_fs(place)
    names = {path[len(root.rstrip("/")) + 1 :] for path in there.find(root.rstrip("/"))}
    assert {"config.json", "metrics.jsonl", "result.json", "checkpoints/latest.link"} <= names
    steps = {name.split("/")[1] for name in names if name.startswith("checkpoints/step-")}
    assert len(steps) == 1, "what was pruned here is gone there"

    remote_copy = remote.staged(place)
    for path in sorted(remote_copy.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
    went_on = podium.resume(place, steps=1200, progress=False)
    assert went_on["resumed_from"] == first["env_steps"]
    folder = tmp_path / "here"
    podium.train("ppo", "CartPole-v1", out=folder, steps=600, checkpoint_every=256, keep=1, **SMALL)
    same = podium.resume(folder, steps=1200, progress=False)
    mine, theirs = (checkpoint.load(run.folder / "checkpoints" / "latest")[0] for run in (went_on, same))
    for name, part in theirs["policy"]["model"].items():
        np.testing.assert_array_equal(mine["policy"]["model"][name], part)
    action = podium.load(place).predict(np.zeros(4))
    assert action == podium.load(folder).predict(np.zeros(4))
    assert podium.evaluate(place, episodes=2)["episodes"] == 2


def test_the_commands_take_addresses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    place = address(tmp_path, "file")
    words = ["--steps", "600", "--fragment", "16", "--epochs", "1", "--quiet", "--json"]
    assert main(["train", "ppo", "CartPole-v1", "--out", place, *words]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["folder"] == place and result["plot"] == f"{place}/plot.png"
    assert Path(tmp_path, "there/one/plot.png").stat().st_size > 0
    assert main(["train", "ppo", "CartPole-v1", "--out", place, *words]) == 2
    assert "already holds a run: add --overwrite" in capsys.readouterr().err
    assert main(["train", "ppo", "CartPole-v1", "--out", place, "--overwrite", *words]) == 0
    assert main(["evaluate", place, "--episodes", "1", "--json"]) == 0
    assert main(["train", "--from", place, "--out", str(tmp_path / "finer"), *words]) == 0
    assert main(["plot", place, "--out", "two.png"]) == 0


@pytest.mark.parametrize(
    ("place", "part"),
    [
        ("memory://bucket/nothing", "holds no run"),
        ("no-such-kind://bucket/run", "Protocol not known: no-such-kind"),
    ],
)
def test_what_is_not_there_is_told_in_one_line(place: str, part: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match=part):
        podium.load(place)
    assert main(["resume", place]) == 2
    error = capsys.readouterr().err
    assert place in error and error.count("\n") == 1
