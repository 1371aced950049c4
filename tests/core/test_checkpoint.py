"""Checkpoints come back as they were, or not at all: whole, checked, and without running anything."""

from __future__ import annotations

import hashlib
import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from podium.core import checkpoint, seeding

PARTS = {
    "learner": {"weights": np.arange(6, dtype=np.float32), "adam": {"m": np.zeros((2, 3)), "step": 7}},
    "counters": {"episodes": 12, "rng": 2**127 + 1},
}

dtypes = st.sampled_from([np.dtype(name) for name in sorted(checkpoint.DTYPES)])
arrays = hnp.arrays(dtypes, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
plain = st.one_of(
    st.none(), st.booleans(), st.integers(), st.integers(-(2**140), 2**140), st.floats(), st.text(max_size=6)
)
keys = st.one_of(
    st.text(max_size=5), st.sampled_from(["$array", "$int", "$float", "$$array", "a/b", "__metadata__", "."])
)
trees = st.recursive(
    st.one_of(plain, arrays),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(keys, inner, max_size=3)),
    max_leaves=8,
)


def same(one: Any, other: Any) -> bool:
    """Equal in type, dtype, shape and every bit, but for which NaN it is."""
    if isinstance(one, np.ndarray):
        return (
            isinstance(other, np.ndarray)
            and (one.dtype, one.shape) == (other.dtype, other.shape)
            and one.tobytes() == other.tobytes()
        )
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float):
        return (math.isnan(one) and math.isnan(other)) or (one, math.copysign(1, one)) == (
            other,
            math.copysign(1, other),
        )
    return bool(one == other)


@settings(max_examples=80, deadline=None)
@given(st.dictionaries(st.sampled_from(["policy", "optimizer", "a_1", "Manifest"]), trees, max_size=3), plain)
def test_everything_comes_back(parts: dict[str, Any], note: Any) -> None:
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory) / "step-1"
        checkpoint.save(folder, parts, {"note": note, "list": [note, {"$int": note}]})
        loaded, info = checkpoint.load(folder)
        assert same(loaded, parts)
        assert same(info, {"note": note, "list": [note, {"$int": note}]})
        assert os.listdir(directory) == ["step-1"]


def test_arrays_of_every_layout_come_back(tmp_path: Path) -> None:
    base = np.arange(24, dtype=np.float32).reshape(4, 6)
    views = {"transposed": base.T, "strided": base[::2, ::-1], "big_endian": base.astype(">f4"), "row": base[1]}
    mapped = np.memmap(tmp_path / "mapped", np.int16, "w+", shape=(3,))
    checkpoint.save(tmp_path / "x", {"a": {**views, "mapped": mapped}}, {})
    loaded = checkpoint.load(tmp_path / "x")[0]["a"]
    for name, view in views.items():
        np.testing.assert_array_equal(loaded[name], view)
        loaded[name][...] = 0  # a loaded array is one's own to write
    assert loaded["big_endian"].dtype == np.float32 and loaded["mapped"].dtype == np.int16


def test_tuples_and_numpy_scalars_come_back_as_documented(tmp_path: Path) -> None:
    checkpoint.save(tmp_path / "x", {"a": {"pair": (1, (2.5, None)), "scalar": np.float64(0.1)}}, {"t": (1,)})
    parts, info = checkpoint.load(tmp_path / "x")
    assert parts["a"]["pair"] == [1, [2.5, None]] and info == {"t": [1]}
    assert same(parts["a"]["scalar"], np.array(0.1))


def test_a_generator_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    rng, other = seeding.generator(1, "a"), seeding.generator(2, "b")
    rng.random(3)
    checkpoint.save(tmp_path / "x", {"rng": seeding.get_state(rng)}, {})
    seeding.set_state(other, checkpoint.load(tmp_path / "x")[0]["rng"])
    np.testing.assert_array_equal(rng.random(9), other.random(9))


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({"a": [1, object()]}, "learner/a/1 is a object"),
        ({"a": {3: 1}}, "learner/a has the key 3"),
        ({"a": {1, 2}}, "learner/a is a set"),
        ({"a": b"bytes"}, "learner/a is a bytes"),
        ({"a": np.array(["text"])}, "learner/a has dtype <U4"),
        ({"a": np.array([None])}, "learner/a has dtype object"),
        ({"a": np.zeros(2, np.complex128)}, "learner/a has dtype complex128"),
        ({"a": np.ma.masked_array([1, 2], [True, False])}, "learner/a is a MaskedArray"),
    ],
)
def test_what_can_not_be_held_is_named_before_anything_is_written(tmp_path: Path, value: Any, says: str) -> None:
    with pytest.raises(TypeError, match=says):
        checkpoint.save(tmp_path / "run" / "x", {"learner": value}, {})
    assert not (tmp_path / "run").exists()


def test_info_and_names_are_checked(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="info/a is an array"):
        checkpoint.save(tmp_path / "x", {}, {"a": np.zeros(2)})
    for name in ("../up", "a/b", "", "manifest", "a.b"):
        with pytest.raises(ValueError, match="needs a name of letters"):
            checkpoint.save(tmp_path / "x", {name: 1}, {})
    assert not any(tmp_path.iterdir())


def test_the_manifest_can_be_read_by_anyone(tmp_path: Path) -> None:
    checkpoint.save(tmp_path / "x", PARTS, {"exact": False, "env_steps": 12345})
    manifest = json.loads((tmp_path / "x" / "manifest.json").read_text())
    assert manifest["schema"] == checkpoint.SCHEMA and manifest["info"] == {"exact": False, "env_steps": 12345}
    for part, sums in manifest["parts"].items():
        for suffix, digest in sums.items():
            assert hashlib.sha256((tmp_path / "x" / f"{part}.{suffix}").read_bytes()).hexdigest() == digest
    assert manifest["parts"].keys() == PARTS.keys() and "safetensors" not in manifest["parts"]["counters"]


def test_saving_again_replaces(tmp_path: Path) -> None:
    for value in (1, 2):
        checkpoint.save(tmp_path / "deep" / "x", {f"part{value}": value}, {"value": value})
    assert checkpoint.load(tmp_path / "deep" / "x") == ({"part2": 2}, {"value": 2})
    assert os.listdir(tmp_path / "deep") == ["x"]


def test_links_move_and_are_followed(tmp_path: Path) -> None:
    for value in (1, 2):
        checkpoint.save(tmp_path / f"step-{value}", {"a": value}, {})
        checkpoint.link(tmp_path, "latest", f"step-{value}")
        assert checkpoint.load(tmp_path / "latest")[0] == {"a": value}
    assert os.readlink(tmp_path / "latest") == "step-2"
    with pytest.raises(FileNotFoundError, match="'step-3': there is no such folder"):
        checkpoint.link(tmp_path, "latest", "step-3")
    moved = tmp_path.rename(tmp_path.with_name("moved"))
    assert checkpoint.load(moved / "latest")[0] == {"a": 2}


def test_pruning_keeps_the_newest_and_the_linked(tmp_path: Path) -> None:
    names = [checkpoint.step_name(steps) for steps in (5, 40, 300, 2000, 10**13)]
    for name in (*names, "best-return"):
        checkpoint.save(tmp_path / name, {}, {})
    (tmp_path / checkpoint.step_name(1)).mkdir()
    checkpoint.link(tmp_path, "best", names[1])
    checkpoint.link(tmp_path, "latest", names[4])
    checkpoint.prune(tmp_path, 2)
    others = ["best", "best-return", "latest", checkpoint.step_name(1)]
    assert sorted(os.listdir(tmp_path)) == sorted([names[1], names[3], names[4], *others])
    checkpoint.prune(tmp_path, 0)
    assert sorted(os.listdir(tmp_path)) == sorted([names[1], names[4], *others])
    with pytest.raises(ValueError, match="keep is -1"):
        checkpoint.prune(tmp_path, -1)


def test_step_names_sort_as_steps_do() -> None:
    assert checkpoint.step_name(12345) == "step-000000012345"
    steps = [0, 9, 10, 99_999, 10**11]
    assert sorted(map(checkpoint.step_name, reversed(steps))) == [checkpoint.step_name(s) for s in steps]


def test_importing_does_not_load_safetensors() -> None:
    code = "import sys, podium.core.checkpoint; sys.exit('safetensors' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_linked_part_is_another_checkpoints_and_stays_when_that_one_goes(tmp_path: Path) -> None:
    piece = {"rows": np.arange(1000), "first": 3}
    checkpoint.save(tmp_path / checkpoint.step_name(1), {**PARTS, "piece": piece}, {})
    checkpoint.link(tmp_path, "latest", checkpoint.step_name(1))
    assert checkpoint.part_names(tmp_path / "latest") == [*PARTS, "piece"]
    second = tmp_path / checkpoint.step_name(2)
    checkpoint.save(second, {"learner": PARTS["learner"]}, {"n": 2}, {"piece": tmp_path / "latest"})
    mine, theirs = (folder / "piece.safetensors" for folder in (second, tmp_path / checkpoint.step_name(1)))
    assert mine.stat().st_ino == theirs.stat().st_ino and mine.stat().st_nlink == 2
    checkpoint.link(tmp_path, "latest", second.name)
    checkpoint.prune(tmp_path, 1)
    parts, info = checkpoint.load(tmp_path / "latest")
    assert same(parts, {"learner": PARTS["learner"], "piece": piece}) and info == {"n": 2}
    assert list(checkpoint.load(second, only=("piece",))[0]) == ["piece"]
    assert checkpoint.part_names(tmp_path / "none") == []


def test_where_there_are_no_links_the_part_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OSError("no links here")

    checkpoint.save(tmp_path / "one", PARTS, {})
    monkeypatch.setattr(os, "link", refuse)
    checkpoint.save(tmp_path / "two", {}, {}, dict.fromkeys(PARTS, tmp_path / "one"))
    assert same(checkpoint.load(tmp_path / "two")[0], PARTS)
