"""The run folder: the files that a run leaves behind, each written so that a kill never leaves half of one."""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from podium.core.errors import PodiumError, UsageError, did_you_mean

OWN_FILES = (
    "metrics.jsonl",
    "result.json",
    "processes.json",
    "trials.jsonl",
    "trials",
    "journal.log",
    "journal.log.lock",
    "best.json",
    "lineage.jsonl",
    "plots",
    "plot.png",
    "wandb.json",
    "checkpoints",
    "tb",
    "config.json",  # last: until it goes, the folder is still known as a run
)
CONFIG_KEYS = ("algo", "env")
"""What a run's config.json has in any case, and what a stranger's config.json has not."""


class RunFolder:
    """One run's folder. `create` begins one, `open` finds one again."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    @classmethod
    def create(cls, path: str | os.PathLike[str], config: Mapping[str, Any], overwrite: bool = False) -> RunFolder:
        """Make the folder and write its config.json; a folder that holds a run is refused unless it may be overwritten."""
        _check_config(config)
        folder = cls(path)
        folder.check_free(overwrite)
        try:
            folder.path.mkdir(parents=True, exist_ok=True)
            prepared = _prepare(folder.path / "config.json", to_json(config, indent=2) + "\n")
            folder._remove_own_files()
            _commit(prepared)
        except OSError as error:
            raise UsageError(f"can't write a run to {folder.path}: {error.strerror or error}") from None
        return folder

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> RunFolder:
        """The run at `path`, or an error that names the nearest run beside it."""
        folder = cls(path)
        if not _is_run(folder.path):
            raise UsageError(_no_run(folder.path))
        return folder

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """Keeps every other process from training in the folder; one that dies, in whatever way, gives it up."""
        handle = os.open(self.path, os.O_RDONLY)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UsageError(f"{self.path} is in use: {self._who()} trains in it") from None
            except OSError:
                pass  # a file system without locks
            yield
        finally:
            os.close(handle)

    def _who(self) -> str:
        try:
            return f"process {json.loads((self.path / 'processes.json').read_text(encoding='utf-8'))[0]['pid']}"
        except (OSError, ValueError, LookupError):
            return "another process"

    @property
    def config(self) -> dict[str, Any]:
        config = _read_object(self.path / "config.json")
        if config is None:
            raise UsageError(f"{self.path / 'config.json'} is missing or is no JSON object")
        return config

    def update_config(self, config: Mapping[str, Any]) -> None:
        """Put other settings in the place of the run's."""
        _check_config(config)
        write_atomically(self.path / "config.json", to_json(config, indent=2) + "\n")

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    def append_metrics(self, row: Mapping[str, Any]) -> None:
        """Add one line; it is with the operating system when this returns, so that a killed process loses none."""
        with open(self.metrics, "a", encoding="utf-8") as file:
            file.write(to_json(row) + "\n")

    def read_metrics(self) -> list[dict[str, Any]]:
        return read_rows(self.metrics)

    def cut_metrics(self, env_steps: int) -> None:
        """Cut metrics.jsonl back to the rows up to `env_steps`; the kept lines stay as they are, byte for byte."""
        if self.metrics.exists():
            kept = [line for line, row in _metric_lines(self.metrics) if row["env_steps"] <= env_steps]
            write_atomically(self.metrics, "".join(line + "\n" for line in kept))

    def write_result(self, result: Mapping[str, Any]) -> None:
        write_atomically(self.path / "result.json", to_json(result, indent=2) + "\n")

    def read_result(self) -> dict[str, Any] | None:
        """The result, or None while there is none."""
        return _read_object(self.path / "result.json")

    def write_processes(self, processes: Sequence[Mapping[str, Any]]) -> None:
        write_atomically(self.path / "processes.json", to_json(list(processes), indent=2) + "\n")

    def check_free(self, overwrite: bool) -> None:
        """Refuse a place where no run can be written, before anything is made."""
        if self.path.exists() and not self.path.is_dir():
            raise UsageError(f"{self.path} is a file, expected a folder for the run")
        if _is_run(self.path):
            if not overwrite:
                raise UsageError(
                    f"{self.path} already holds a run: add --overwrite to replace it, "
                    f"or go on with it by `podium resume {self.path}`"
                )
            with self.in_use():
                return
        taken = [name for name in OWN_FILES if os.path.lexists(self.path / name)]
        if taken:
            raise UsageError(f"{self.path} is no run's folder but already holds a {taken[0]}: choose another folder")

    def _remove_own_files(self) -> None:
        for name in OWN_FILES[:-1]:
            path = self.path / name
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)


def default_path(algo: str, env: str, seed: int, root: str | os.PathLike[str] = "runs") -> Path:
    """A folder of its own for a run that was not told where to write: `runs/ppo-CartPole-v1-s1-20250131-120000`."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    path = Path(root) / f"{_clean(algo)}-{_clean(env)}-s{seed}-{stamp}"
    unique, count = path, 1
    while unique.exists():
        count += 1
        unique = path.with_name(f"{path.name}-{count}")
    return unique


def _clean(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._]+", "-", name).strip("-.")[:80] or "run"


def to_json(value: Any, indent: int | None = None) -> str:
    """JSON text that any reader takes: NaN and infinities as null, numpy's numbers and arrays as plain ones."""
    return json.dumps(_plain(value), indent=indent, allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    raise TypeError(f"can't write {type(value).__name__} {value!r} as JSON")


def write_atomically(path: Path, text: str) -> None:
    """Write beside, fsync, rename: a reader finds the old text or the new one, never a part."""
    _commit(_prepare(path, text))


def _prepare(path: Path, text: str) -> Path:
    beside = path.with_name(path.name + ".tmp")
    with open(beside, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    return beside


def _commit(prepared: Path) -> None:
    os.replace(prepared, prepared.with_suffix(""))
    directory = os.open(prepared.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _read_object(path: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def _check_config(config: Mapping[str, Any]) -> None:
    missing = [key for key in CONFIG_KEYS if key not in config]
    if missing:
        raise ValueError(f"a run's config has no {missing[0]!r}, expected at least {', '.join(CONFIG_KEYS)}")


def _is_run(path: Path) -> bool:
    config = _read_object(path / "config.json")
    return config is not None and all(key in config for key in CONFIG_KEYS)


def _no_run(path: Path) -> str:
    if path.is_dir():
        inside = _runs_in(path)
        hint = f"; it holds runs: {path / inside[0]}" if inside else did_you_mean(path.name, _runs_in(path.parent))
        return f"{path} holds no run (no config.json of one){hint}"
    found = "is a file, expected a run's folder" if path.exists() else "does not exist"
    return f"{path} {found}{did_you_mean(path.name, _runs_in(path.parent))}"


def _runs_in(path: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in path.iterdir() if _is_run(entry))
    except OSError:
        return []


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a metrics.jsonl, none if it is missing."""
    return [row for _, row in _metric_lines(path)]


def _metric_lines(path: Path) -> list[tuple[str, dict[str, Any]]]:
    """The lines of metrics.jsonl with their rows. A last line that a kill tore is left out; any other damage is told."""
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")
    if not lines[-1]:
        lines.pop()
    found = []
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line.decode())
            if not isinstance(row, dict) or "env_steps" not in row:
                raise ValueError
        except ValueError:
            if number == len(lines):
                break
            raise PodiumError(f"{path} line {number} is damaged: expected a JSON object with env_steps") from None
        found.append((line.decode(), row))
    return found
