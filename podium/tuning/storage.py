"""Where a search keeps its trials: a journal file, or any database that Optuna takes."""

from __future__ import annotations

import fcntl
import os
import socket
import time
from pathlib import Path
from typing import Any

import optuna
from optuna.storages.journal import JournalFileBackend
from sqlalchemy.exc import DBAPIError

from podium.core.errors import PodiumError, UsageError

ATTEMPTS, AGAIN_S = 4, 0.5

LOCK_S = 60.0
"""How long a journal's lock is waited for; whoever has it writes a line."""


class KernelLock:
    """A journal's lock that the kernel takes back from a process that ends, in whatever way. Whoever takes it first cuts off
    the line in whose midst another one was killed: what was written after it would be unreadable."""

    def __init__(self, journal: Path) -> None:
        self._journal = journal
        self._file: int | None = None

    def acquire(self) -> bool:
        file = os.open(self._journal.with_name(self._journal.name + ".lock"), os.O_RDWR | os.O_CREAT, 0o644)
        limit = time.monotonic() + LOCK_S
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > limit:
                    os.close(file)
                    raise PodiumError(
                        f"{self._journal} has been locked by another process for {LOCK_S:.0f} s"
                    ) from None
                time.sleep(0.005)
        self._file = file
        cut_torn_line(self._journal)
        return True

    def release(self) -> None:
        assert self._file is not None
        os.close(self._file)
        self._file = None


def cut_torn_line(path: Path) -> None:
    """Cut a file of lines back to its last whole one."""
    if not path.exists() or not path.stat().st_size:
        return
    with open(path, "rb+") as file:
        file.seek(-1, os.SEEK_END)
        if file.read(1) != b"\n":
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)


def open_storage(where: str) -> Any:
    """The storage at a database's URL, or in a journal file."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return _database(where) if "://" in where else _journal(Path(where))


def _database(url: str) -> Any:
    """Two controllers that make its tables at the same moment are in each other's way: the slower one tries again."""
    for attempt in range(ATTEMPTS):
        try:
            return optuna.storages.get_storage(url)
        except Exception as error:  # of a driver, each with its own kind
            if not isinstance(error, DBAPIError) or attempt + 1 == ATTEMPTS:
                raise UsageError(f"--storage {shown(url)}: {' '.join(str(error).split())[:300]}") from None
            time.sleep(AGAIN_S)


def _journal(path: Path) -> Any:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock: Any = KernelLock(path)
        return optuna.storages.JournalStorage(JournalFileBackend(str(path), lock_obj=lock))
    except OSError as error:
        raise UsageError(f"can't keep trials in {path}: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError, AssertionError):
        raise PodiumError(f"{path} is damaged, or no journal of a search") from None


def check_own(journal: Path) -> None:
    """Refuse a journal that others may have written: what cmaes keeps in it would be executed when it is read."""
    if journal.exists():
        found = journal.stat()
        if found.st_uid != os.geteuid() or found.st_mode & 0o022:
            raise UsageError(
                f"--sampler cmaes keeps pickled state, and others can write {journal}: expected a journal of your own alone"
            )


def shown(where: str) -> str:
    """A database's URL without its password."""
    head, scheme, rest = where.partition("://")
    login, at, place = rest.rpartition("@")
    user, colon, _ = login.partition(":")
    return f"{head}{scheme}{user}{':***' if colon else ''}{at}{place}" if at else where


def owner_name() -> str:
    """This process, so that another one can tell later whether it still runs."""
    return f"{socket.gethostname()}:{os.getpid()}:{_started(os.getpid())}"


def runs(owner: str) -> bool | None:
    """Whether the process of that name runs; None where it is another machine's."""
    host, pid, started = owner.rsplit(":", 2)
    if host != socket.gethostname():
        return None
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return _started(int(pid)) == started


def _started(pid: int) -> str:
    """When a process began, in the kernel's count: a number that comes again is not the same process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return "?"
