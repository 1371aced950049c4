"""What runs under a process, whether it has ended, and where it listens: read from /proc."""

from __future__ import annotations

import os
import time
from pathlib import Path

LOOPBACK = ("0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F")
LISTENS = "0A"

Process = tuple[int, str]  # the pid and when it was started, since pids come again


def process(pid: int) -> Process | None:
    """None for one that has ended, also where nobody has asked for its exit code yet."""
    fields = _stat(pid)
    return (pid, fields[19]) if fields and fields[0] != "Z" else None


def descendants(pid: int) -> list[Process]:
    """The processes that one has started and those that these have started; itself is not among them."""
    parents = {other: int(fields[1]) for other in _pids() if (fields := _stat(other))}
    found, seen = [pid], {pid}
    for one in found:
        found += [child for child, parent in parents.items() if parent == one and child not in seen]
        seen.update(found)
    return [known for one in found[1:] if (known := process(one))]


def left(processes: list[Process], patience_s: float = 5.0) -> list[str]:
    """The command lines of those that still run when they have had a moment to end."""
    limit = time.monotonic() + patience_s
    while (running := [one for one in processes if process(one[0]) == one]) and time.monotonic() < limit:
        time.sleep(0.05)
    return [f"{pid} {_command(pid)}" for pid, _ in running]


def listening_beyond_loopback(processes: list[Process]) -> list[str]:
    """Addresses, as /proc writes them, on which one of the processes listens for other machines."""
    return [address for address in listening(processes) if address.split(":")[0] not in LOOPBACK]


def listening(processes: list[Process]) -> list[str]:
    """All addresses on which one of the processes listens."""
    sockets = {inode for pid, _ in processes for inode in _sockets(pid)}
    rows = [line.split() for name in ("tcp", "tcp6") for line in _lines(Path("/proc/net", name))[1:]]
    return [row[1] for row in rows if row[3] == LISTENS and row[9] in sockets]


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _stat(pid: int) -> list[str]:
    """The fields after the name: the state, the parent, ..., the start."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")[:120]
    except OSError:
        return ""


def _sockets(pid: int) -> list[str]:
    found = []
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):
            try:
                target = os.readlink(f"/proc/{pid}/fd/{name}")
            except OSError:
                continue
            if target.startswith("socket:["):
                found.append(target.removeprefix("socket:[").rstrip("]"))
    except OSError:
        pass
    return found


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
