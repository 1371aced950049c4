"""Checkpoints that were damaged, forged or cut off by a dying process: found, refused, or whole all the same."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from podium.core import checkpoint
from podium.core.errors import CheckpointError, UsageError

PARTS = {
    "learner": {"weights": np.arange(6, dtype=np.float32), "adam": {"m": np.zeros((2, 3)), "step": 7}},
    "counters": {"episodes": 12, "rng": 2**127 + 1},
}


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_flipped_byte_is_found(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory) / "x"
        checkpoint.save(folder, PARTS, {"exact": True})
        path = data.draw(st.sampled_from(sorted(folder.glob("[!m]*"))))
        content = bytearray(path.read_bytes())
        content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match=f"part '{path.stem}' is damaged: the checksum of {path.name}"):
            checkpoint.load(folder)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_flipped_byte_in_the_manifest_changes_nothing_unseen(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory) / "x"
        checkpoint.save(folder, PARTS, {"exact": True, "env_steps": 12345})
        before = checkpoint.load(folder)
        path = folder / "manifest.json"
        content = bytearray(path.read_bytes())
        content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
        path.write_bytes(content)
        try:
            after = checkpoint.load(folder)
        except CheckpointError:
            return
        # the byte stood between the words, where it says nothing
        assert repr(after) == repr(before)


def test_a_damaged_part_is_named(tmp_path: Path) -> None:
    checkpoint.save(tmp_path / "x", PARTS, {})
    path = tmp_path / "x" / "learner.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=r"'learner' is damaged: the checksum of learner.safetensors") as caught:
        checkpoint.load(tmp_path / "x")
    assert caught.value.exit_code == 1 and "\n" not in str(caught.value)
    path.unlink()
    with pytest.raises(CheckpointError, match=r"'learner' is damaged: learner.safetensors is missing"):
        checkpoint.load(tmp_path / "x")


def test_what_is_no_checkpoint_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    (tmp_path / "dangling").symlink_to("gone")
    for name in ("missing", "file", "empty", "dangling"):
        with pytest.raises(UsageError, match=f"no checkpoint at .*{name}.*manifest.json, expected a folder") as caught:
            checkpoint.load(tmp_path / name)
        assert caught.value.exit_code == 2 and not isinstance(caught.value, CheckpointError)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "manifest.json is damaged"),
        ("{", "manifest.json is damaged"),
        ("\xff", "manifest.json is damaged"),
        ("[" * 100_000, "manifest.json is damaged"),
        ("[]", "names no schema version"),
        ("{}", "names no schema version"),
        ('{"schema": 999}', "schema version is 999, this Podium reads 1"),
        ('{"schema": "1"}', "schema version is '1', this Podium reads 1"),
        ('{"schema": 1, "info": {}, "parts": {}}', "does not have the checksum"),
    ],
)
def test_a_broken_manifest(tmp_path: Path, content: str, says: str) -> None:
    checkpoint.save(tmp_path / "x", PARTS, {})
    (tmp_path / "x" / "manifest.json").write_text(content, encoding="latin-1")
    with pytest.raises(CheckpointError, match=says):
        checkpoint.load(tmp_path / "x")


def forge(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change a manifest as someone would who knows how its checksums are made."""
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    del manifest["sha256"]
    change(manifest)
    canonical = json.dumps(manifest, sort_keys=True).encode()
    path.write_text(json.dumps({**manifest, "sha256": hashlib.sha256(canonical).hexdigest()}))


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "a/../b", "..", ".hidden", "x\x00", "C:\\x"])
def test_a_part_outside_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "secret.json").write_text("1")
    digest = hashlib.sha256(b"1").hexdigest()
    checkpoint.save(tmp_path / "x", {"a": 1}, {})
    forge(tmp_path / "x", lambda manifest: manifest["parts"].update({name: {"json": digest}}))
    with pytest.raises(CheckpointError, match=r"manifest.json names a part"):
        checkpoint.load(tmp_path / "x")


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.update(parts=[]),
        lambda m: m.pop("info"),
        lambda m: m.update(info={"a": {"$array": "learner/weights"}}),
        lambda m: m["parts"].update(learner="json"),
        lambda m: m["parts"].update(learner={}),
        lambda m: m["parts"].update(learner={"json": "0", "pickle": "0"}),
        lambda m: m["parts"]["learner"].pop("safetensors"),
    ],
)
def test_a_forged_manifest_ends_in_one_error(tmp_path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    checkpoint.save(tmp_path / "x", PARTS, {})
    forge(tmp_path / "x", change)
    with pytest.raises(CheckpointError):
        checkpoint.load(tmp_path / "x")


@pytest.mark.parametrize(
    ("suffix", "content"),
    [
        ("json", b"{"),
        ("json", b'{"$array": "nowhere"}'),
        ("json", b'{"$array": 3}'),
        ("json", b'{"$array": "learner/weights", "more": 1}'),
        ("json", b'[{"$array": "learner/weights"}, {"$array": "learner/weights"}]'),
        ("json", b'{"$int": "twelve"}'),
        ("json", b'{"$float": "1.5"}'),
        ("json", b"[" * 100_000),
        ("safetensors", b""),
        ("safetensors", b"\x80\x04."),
        ("safetensors", b"\xff" * 64),
        ("safetensors", b"\x3a" + bytes(7) + b'{"a":{"dtype":"F8_E4M3","shape":[2],"data_offsets":[0,2]}}' + bytes(2)),
    ],
)
def test_a_forged_part_ends_in_one_error(tmp_path: Path, suffix: str, content: bytes) -> None:
    checkpoint.save(tmp_path / "x", PARTS, {})
    (tmp_path / "x" / f"learner.{suffix}").write_bytes(content)
    digest = hashlib.sha256(content).hexdigest()
    forge(tmp_path / "x", lambda manifest: manifest["parts"]["learner"].update({suffix: digest}))
    with pytest.raises(CheckpointError, match="part 'learner'"):
        checkpoint.load(tmp_path / "x")


@pytest.mark.parametrize("dies_at", range(1, 26))
def test_at_no_moment_is_there_less_than_a_whole_checkpoint(tmp_path: Path, dies_at: int) -> None:
    """The process stops dead before its n-th change to the disk; what stands then is the old or the new, and a later
    save goes on from there."""
    folder = tmp_path / "best"
    checkpoint.save(folder, {"a": 1, "old": np.zeros(3)}, {"value": 1})
    code = f"""
import os, sys
from pathlib import Path
import numpy as np
from podium.core import checkpoint
left = {dies_at}
def watch(event, args):
    global left
    if event in ("os.rename", "os.remove", "os.rmdir", "os.mkdir") or event == "open" and ".tmp-" in str(args[0]):
        left -= 1
        if not left:
            os._exit(9)
import safetensors.numpy
sys.addaudithook(watch)
checkpoint.save(Path({str(folder)!r}), {{"a": 2, "new": np.ones(3)}}, {{"value": 2}})
"""
    died = subprocess.run([sys.executable, "-c", code], check=False).returncode
    parts, info = checkpoint.load(folder)
    assert (info["value"], parts["a"]) in ((1, 1), (2, 2)) and len(parts) == 2
    assert died == 9 or info["value"] == 2
    checkpoint.save(tmp_path / "step-2", {"a": 3}, {})
    assert sorted(os.listdir(tmp_path)) == ["best", "step-2"]
    assert checkpoint.load(folder)[1] == info


def dead_process() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_leftovers_of_killed_runs_go_and_those_of_live_ones_stay(tmp_path: Path) -> None:
    for name in (f".tmp-step-1-{dead_process()}", f".tmp-step-1-{os.getppid()}", ".tmp-mine", "other"):
        (tmp_path / name).mkdir()
    (tmp_path / f".tmp-latest-{dead_process()}").symlink_to("other")
    checkpoint.save(tmp_path / "step-2", {}, {})
    assert sorted(os.listdir(tmp_path)) == [".tmp-mine", f".tmp-step-1-{os.getppid()}", "other", "step-2"]


def test_a_save_that_fails_leaves_nothing(tmp_path: Path) -> None:
    checkpoint.save(tmp_path / "x", {"a": 1}, {})
    with pytest.raises(OSError, match="File name too long"):
        checkpoint.save(tmp_path / "x", {"n" * 300: 1}, {})
    assert os.listdir(tmp_path) == ["x"] and checkpoint.load(tmp_path / "x")[0] == {"a": 1}
