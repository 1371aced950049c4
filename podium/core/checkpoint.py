"""Checkpoints as folders: a manifest with checksums, arrays as safetensors, the rest as JSON. Reading executes nothing.

A folder holds `manifest.json` and, for each part, `NAME.json` with the part's structure and `NAME.safetensors` with
its arrays. It is written beside its place, synced to disk and renamed, so that no half checkpoint ever has its name.
Where a folder of that name stands already, a rename can't replace it in one move: it steps aside as `.old-NAME` first,
and `load` falls back on that one while nothing stands under the name. A killed run may leave `.tmp-` and `.old-`
folders; the next save in the directory clears them (one writer to a directory).
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from podium.core.errors import CheckpointError, UsageError

Tree = Any

SCHEMA = 1
MANIFEST = "manifest.json"
DTYPES = {
    "bool",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "int8",
    "int16",
    "int32",
    "int64",
    "float16",
    "float32",
    "float64",
}
NOT_FINITE = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}
PART_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*")
STEP_NAME = re.compile(r"step-(\d{12,})")
TEMPORARY = re.compile(r"\.tmp-.+-(\d+)")


def save(folder: Path, parts: Mapping[str, Tree], info: Mapping[str, Any], linked: Mapping[str, Path] = {}) -> None:
    """Write a checkpoint; an older one under the same name is replaced. Parts that are `linked` are those of the same
    name in another checkpoint, whose files then belong to both.

    A part is a tree of dicts with text keys, lists, tuples (which come back as lists), numpy arrays and plain values; a
    numpy scalar comes back as an array without dimensions. `info` is plain values, kept readable in the manifest.
    """
    for name in (*parts, *linked):
        if not PART_NAME.fullmatch(name) or f"{name}.json" == MANIFEST:
            raise ValueError(f"part {name!r} needs a name of letters, digits, '-' and '_', other than 'manifest'")
    encoded = {name: _encode_part(name, tree) for name, tree in parts.items()}
    in_info: dict[str, np.ndarray] = {}
    readable = _encode(dict(info), ("info",), in_info)
    if in_info:
        raise TypeError(f"{next(iter(in_info))} is an array, and the info of a checkpoint holds plain values only")

    folder.parent.mkdir(parents=True, exist_ok=True)
    _clear_leftovers(folder.parent)
    beside = _temporary(folder)
    beside.mkdir()
    try:
        sums = {name: _write_part(beside, name, *part) for name, part in encoded.items()}
        sums |= {name: _link_part(beside, name, source) for name, source in linked.items()}
        body = {"schema": SCHEMA, "info": readable, "parts": sums}
        _write(beside / MANIFEST, json.dumps({**body, "sha256": _digest(body)}, indent=1, allow_nan=False).encode())
        _sync(beside)
        _put_in_place(beside, folder)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise


def load(folder: Path, only: Collection[str] | None = None) -> tuple[dict[str, Tree], dict[str, Any]]:
    """The parts (or only some of them) and the info of a checkpoint, after their checksums were found right."""
    place = _find(folder)
    manifest = _read_manifest(place)
    wanted = {name: sums for name, sums in manifest["parts"].items() if only is None or name in only}
    parts = {name: _read_part(place, name, sums) for name, sums in wanted.items()}
    return parts, _decoded(place, MANIFEST, manifest["info"], {})


def part_names(folder: Path) -> list[str]:
    """The names of a checkpoint's parts; none where there is no checkpoint."""
    return list(_read_manifest(_find(folder))["parts"]) if os.path.lexists(folder) else []


def link(directory: Path, name: str, target: str) -> None:
    """Point `directory/name` at the checkpoint `target` beside it, in one move."""
    if not (directory / target).is_dir():
        raise FileNotFoundError(f"{directory / name} can't point at {target!r}: there is no such folder")
    beside = _temporary(directory / name)
    beside.unlink(missing_ok=True)
    beside.symlink_to(target)
    os.replace(beside, directory / name)
    _sync(directory)


def prune(directory: Path, keep: int) -> None:
    """Remove the `step-...` checkpoints but for the newest `keep`, and but for those that a link points to."""
    if keep < 0:
        raise ValueError(f"keep is {keep}, expected 0 or more")
    entries = list(directory.iterdir())
    linked = {entry.resolve() for entry in entries if entry.is_symlink()}
    steps = [e for e in entries if STEP_NAME.fullmatch(e.name) and not e.is_symlink() and (e / MANIFEST).is_file()]
    steps.sort(key=lambda entry: int(entry.name.removeprefix("step-")))
    for old in steps[: max(len(steps) - keep, 0)]:
        if old.resolve() not in linked:
            aside = _temporary(old)
            os.rename(old, aside)
            shutil.rmtree(aside)
    _sync(directory)


def step_name(env_steps: int) -> str:
    """The folder name of a checkpoint, such as `step-000000012345`; names sort as their steps do."""
    return f"step-{env_steps:012d}"


def _encode_part(name: str, tree: Tree) -> tuple[bytes, dict[str, np.ndarray]]:
    arrays: dict[str, np.ndarray] = {}
    structure = _encode(tree, (name,), arrays)
    return json.dumps(structure, allow_nan=False).encode(), arrays


def _encode(value: Tree, path: tuple[str, ...], arrays: dict[str, np.ndarray]) -> Any:
    """A tree as JSON. What JSON has no word for becomes `{"$kind": text}`; a key that begins with `$` gets one more."""
    if isinstance(value, np.generic) or type(value) in (np.ndarray, np.memmap):
        return {"$array": _keep_array(np.asarray(value), path, arrays)}
    if value is None or type(value) in (bool, str):
        return value
    if type(value) is int:
        return value if abs(value) < 2**63 else {"$int": hex(value)}
    if type(value) is float:
        return value if math.isfinite(value) else {"$float": str(value)}
    if isinstance(value, list | tuple):
        return [_encode(item, (*path, str(i)), arrays) for i, item in enumerate(value)]
    if isinstance(value, dict):
        for key in value:
            if type(key) is not str:
                raise TypeError(f"{'/'.join(path)} has the key {key!r}, and a checkpoint's keys are text")
        return {"$" * key.startswith("$") + key: _encode(item, (*path, key), arrays) for key, item in value.items()}
    raise TypeError(
        f"{'/'.join(path)} is a {type(value).__name__}, and a checkpoint holds arrays, dicts, lists and plain values"
    )


def _keep_array(array: np.ndarray, path: tuple[str, ...], arrays: dict[str, np.ndarray]) -> str:
    """Put an array among the arrays; returns its name there, which is its path as far as that is unique."""
    if array.dtype.name not in DTYPES:
        raise TypeError(f"{'/'.join(path)} has dtype {array.dtype}, which a checkpoint can't hold")
    name = re.sub(r"[^A-Za-z0-9_./-]", "_", "/".join(path))
    if name in arrays or name == "__metadata__":
        name += f"#{len(arrays)}"
    arrays[name] = np.ascontiguousarray(array.astype(array.dtype.newbyteorder("="), copy=False)).reshape(array.shape)
    return name


def _decode(value: Any, arrays: dict[str, np.ndarray]) -> Tree:
    """The tree that `_encode` wrote; what it could not have written raises ValueError, KeyError or TypeError."""
    if isinstance(value, list):
        return [_decode(item, arrays) for item in value]
    if not isinstance(value, dict):
        return value
    if "$array" in value:
        return arrays.pop(_marked(value))
    if "$int" in value:
        return int(_marked(value), 16)
    if "$float" in value:
        return NOT_FINITE[_marked(value)]
    return {key.removeprefix("$"): _decode(item, arrays) for key, item in value.items()}


def _marked(value: dict[str, Any]) -> str:
    (text,) = value.values()
    if not isinstance(text, str):
        raise TypeError(f"{text!r} is not text")
    return text


def _decoded(place: Path, name: str, value: Any, arrays: dict[str, np.ndarray]) -> Tree:
    try:
        return _decode(value, arrays)
    except (ValueError, KeyError, TypeError, RecursionError):
        raise CheckpointError(f"{place}: {name} is not what a checkpoint holds") from None


def _write_part(beside: Path, name: str, structure: bytes, arrays: dict[str, np.ndarray]) -> dict[str, str]:
    """Write the files of a part and return the checksum of each by its suffix."""
    from safetensors.numpy import save_file

    files = {"json": beside / f"{name}.json"}
    _write(files["json"], structure)
    if arrays:
        files["safetensors"] = beside / f"{name}.safetensors"
        save_file(arrays, files["safetensors"])
        _sync(files["safetensors"])
    return {suffix: _checksum(path) for suffix, path in files.items()}


def _link_part(beside: Path, name: str, source: Path) -> dict[str, str]:
    """Take a part of another checkpoint over, with the checksums that are written there."""
    place = _find(source)
    sums = _read_manifest(place)["parts"][name]
    for suffix in sums:
        theirs, mine = place / f"{name}.{suffix}", beside / f"{name}.{suffix}"
        try:
            os.link(theirs, mine)
        except OSError:  # a file system without links
            shutil.copy2(theirs, mine)
            _sync(mine)
    return sums


def _read_part(place: Path, name: str, sums: dict[str, str]) -> Tree:
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    for suffix, expected in sums.items():
        path = place / f"{name}.{suffix}"
        if not path.is_file():
            raise CheckpointError(f"{place}: part {name!r} is damaged: {path.name} is missing")
        if (found := _checksum(path)) != expected:
            raise CheckpointError(
                f"{place}: part {name!r} is damaged: the checksum of {path.name} is {found[:12]}..., "
                f"expected {expected[:12]}..."
            )
    try:
        structure = json.loads((place / f"{name}.json").read_bytes())
        arrays = load_file(place / f"{name}.safetensors") if "safetensors" in sums else {}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, SafetensorError) as error:
        raise CheckpointError(f"{place}: part {name!r} can't be read: {error}") from None
    return _decoded(place, f"part {name!r}", structure, arrays)


def _read_manifest(place: Path) -> dict[str, Any]:
    try:
        manifest = json.loads((place / MANIFEST).read_bytes())
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{place}: {MANIFEST} is damaged: {error}") from None
    if not isinstance(manifest, dict) or "schema" not in manifest:
        raise CheckpointError(f"{place}: {MANIFEST} is damaged: it names no schema version")
    if manifest["schema"] != SCHEMA:
        raise CheckpointError(f"{place}: schema version is {manifest['schema']!r}, this Podium reads {SCHEMA}")
    body = {key: value for key, value in manifest.items() if key != "sha256"}
    if manifest.get("sha256") != _digest(body):
        raise CheckpointError(f"{place}: {MANIFEST} is damaged: its content does not have the checksum that it names")
    parts = manifest.get("parts")
    if not isinstance(parts, dict) or "info" not in manifest:
        raise CheckpointError(f"{place}: {MANIFEST} is damaged: it names no parts or no info")
    for name, sums in parts.items():
        if not PART_NAME.fullmatch(name):
            raise CheckpointError(f"{place}: {MANIFEST} names a part {name!r}, expected letters, digits, '-' and '_'")
        if not isinstance(sums, dict) or not {"json"} <= sums.keys() <= {"json", "safetensors"}:
            raise CheckpointError(f"{place}: {MANIFEST} gives no checksums for part {name!r}")
    return manifest


def _find(folder: Path) -> Path:
    """Where the checkpoint of this name is, links followed once so that one that moves meanwhile does no harm."""
    place = folder.resolve()
    for candidate in (place, _aside(place)):
        if (candidate / MANIFEST).is_file():
            return candidate
    what = "has no" if place.is_dir() else "is not a folder with a"
    raise UsageError(f"no checkpoint at {folder}: it {what} {MANIFEST}, expected a folder such as {step_name(12345)}")


def _put_in_place(beside: Path, folder: Path) -> None:
    older = os.path.lexists(folder)
    if older:
        os.rename(folder, _aside(folder))
    os.rename(beside, folder)
    _sync(folder.parent)
    if older:
        _remove(_aside(folder))


def _clear_leftovers(directory: Path) -> None:
    """Remove what killed runs left; one that died between its two renames gets the name back for its old checkpoint."""
    for entry in directory.glob(".old-*"):
        place = directory / entry.name.removeprefix(".old-")
        if os.path.lexists(place):
            _remove(entry)
        else:
            os.rename(entry, place)
    for entry in directory.glob(".tmp-*"):
        match = TEMPORARY.fullmatch(entry.name)
        if match is not None and not _runs_elsewhere(int(match[1])):
            _remove(entry)


def _remove(place: Path) -> None:
    """Remove a folder, or a link without what it points to."""
    if place.is_symlink():
        place.unlink()
    else:
        shutil.rmtree(place)


def _runs_elsewhere(pid: int) -> bool:
    if pid == os.getpid():
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def _temporary(place: Path) -> Path:
    return place.with_name(f".tmp-{place.name}-{os.getpid()}")


def _aside(place: Path) -> Path:
    return place.with_name(f".old-{place.name}")


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    _sync(path)


def _sync(path: Path) -> None:
    """Wait until a file's content, or a directory's entries, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _digest(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
