"""Run folders at fsspec addresses (`s3://...`, `memory://...`): written here, copied there as the run goes on, and fetched
from there to go on or to look."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from podium.core.errors import PodiumError, UsageError
from podium.run.callbacks import Callback

STAGE = Path("~/.cache/podium/runs")
LINK = ".link"
"""Addresses know no links: the file `NAME.link` holds the name that `NAME` points at."""
CONFIG = "config.json"


def is_remote(place: str | os.PathLike[str]) -> bool:
    return "://" in os.fspath(place)


def staged(address: str) -> Path:
    """Where the files of a run at an address are kept on this machine."""
    digest = hashlib.sha256(address.rstrip("/").encode()).hexdigest()[:12]
    return STAGE.expanduser() / f"{address.rstrip('/').rpartition('/')[2]}-{digest}"


def begin(address: str, overwrite: bool) -> Path:
    """An empty place here for a new run there; one that stands there is refused unless it may be replaced."""
    there, root = _open(address)
    with _told(address):
        if there.exists(f"{root}/{CONFIG}"):
            if not overwrite:
                raise UsageError(
                    f"{address} already holds a run: add --overwrite to replace it, "
                    f"or go on with it by `podium resume {address}`"
                )
            there.rm(root, recursive=True)
    here = staged(address)
    shutil.rmtree(here, ignore_errors=True)
    return here


def fetch(address: str) -> Path:
    """The run as it stands there, copied here."""
    there, root = _open(address)
    here = staged(address)
    with _told(address):
        if not there.exists(f"{root}/{CONFIG}"):
            raise UsageError(f"{address} holds no run (no {CONFIG} of one)")
        shutil.rmtree(here, ignore_errors=True)
        names = sorted(path[len(root) + 1 :] for path in there.find(root))
        for name in names:
            (here / name).parent.mkdir(parents=True, exist_ok=True)
            there.get_file(f"{root}/{name}", str(here / name))
    for link in list(here.rglob(f"*{LINK}")):
        link.with_suffix("").symlink_to(link.read_text())
        link.unlink()
    return here


class Mirror(Callback):
    """Copies what is new to the address: at the start, at every checkpoint, at the end."""

    def __init__(self, here: Path, address: str) -> None:
        self._here, self._address = here, address
        self._there, self._root = _open(address)
        self._copied: dict[str, tuple[int, int]] = {}

    def on_start(self, run: Any) -> None:
        self.copy()

    def on_checkpoint(self, run: Any, path: Path) -> None:
        self.copy()

    def on_end(self, run: Any, result: Mapping[str, Any]) -> None:
        self.copy()

    def copy(self) -> None:
        """Files first and links after them, so that `latest` there never points at what is not whole; then what is gone
        here goes there."""
        files = {path.relative_to(self._here).as_posix(): path for path in _files(self._here)}
        links = {path.relative_to(self._here).as_posix() + LINK: path for path in _links(self._here)}
        with _told(self._address):
            for name, path in files.items():
                state = path.stat()
                if self._copied.get(name) != (state.st_mtime_ns, state.st_size):
                    self._make_folder(name)
                    self._there.put_file(str(path), f"{self._root}/{name}")
                    self._copied[name] = (state.st_mtime_ns, state.st_size)
            for name, path in links.items():
                self._make_folder(name)
                self._there.pipe_file(f"{self._root}/{name}", os.readlink(path).encode())
            for name in [name for name in self._copied if name not in files]:
                self._there.rm_file(f"{self._root}/{name}")
                del self._copied[name]

    def _make_folder(self, name: str) -> None:
        self._there.makedirs(f"{self._root}/{name}".rpartition("/")[0], exist_ok=True)


def put(path: Path, address: str) -> str:
    """Copy one more file to a run's address, and return its own."""
    there, root = _open(address)
    with _told(address):
        there.put_file(str(path), f"{root}/{path.name}")
    return f"{address.rstrip('/')}/{path.name}"


def _files(root: Path) -> Iterator[Path]:
    for folder, inside, names in os.walk(root):
        inside[:] = sorted(name for name in inside if not name.startswith(".") and not Path(folder, name).is_symlink())
        yield from (Path(folder, name) for name in sorted(names) if not name.endswith(".tmp"))


def _links(root: Path) -> Iterator[Path]:
    yield from sorted(path for path in (root / "checkpoints").glob("*") if path.is_symlink())


def _open(address: str) -> tuple[Any, str]:
    import fsspec

    with _told(address):
        there, root = fsspec.core.url_to_fs(address)
    return there, root.rstrip("/")


class _told:
    """Whatever a file system raises, as one line that names the address."""

    def __init__(self, address: str) -> None:
        self._address = address

    def __enter__(self) -> None:
        """Nothing to set up."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, ImportError | ValueError):
            raise UsageError(f"{self._address}: {error}") from None
        if isinstance(error, Exception) and not isinstance(error, PodiumError):
            raise PodiumError(f"{self._address}: {type(error).__name__}: {error}") from error
