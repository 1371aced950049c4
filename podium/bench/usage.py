"""What the machine and a process use, as Linux tells it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from time import clock_gettime


def there() -> bool:
    """Whether this system tells it."""
    return Path("/proc/stat").exists()


def busy() -> tuple[int, int]:
    """Ticks of all cores since the machine began: those in which they worked, and all."""
    words = Path("/proc/stat").read_text(encoding="utf-8").splitlines()[0].split()[1:9]
    ticks = [int(word) for word in words]
    idle = ticks[3] + ticks[4]
    return sum(ticks) - idle, sum(ticks)


def cpu_share(before: tuple[int, int], after: tuple[int, int]) -> float:
    """The share of all cores' time that they worked in between."""
    return (after[0] - before[0]) / max(after[1] - before[1], 1)


def available_bytes() -> int:
    """Memory that can be had without swapping."""
    return _kibibytes(Path("/proc/meminfo"), "MemAvailable") * 1024


def own_bytes(pid: int) -> int:
    """Memory of a process that no other one shares."""
    rollup = Path(f"/proc/{pid}/smaps_rollup")
    return (_kibibytes(rollup, "Private_Clean") + _kibibytes(rollup, "Private_Dirty")) * 1024


def _kibibytes(file: Path, name: str) -> int:
    for line in file.read_text(encoding="utf-8").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    raise ValueError(f"{file} has no {name}")


def cpu_seconds(pid: int) -> float:
    """What a process and those that it has started have computed until now, they and theirs; of those that have ended,
    what their parents know."""
    parents = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                fields = (folder / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
                parents[int(folder.name)] = int(fields[1])
    family = [pid]
    for one in family:
        family += [child for child, parent in parents.items() if parent == one]
    total = 0.0
    for one in family:
        with suppress(OSError):
            total += clock_gettime(~one << 3 | 2)  # Linux's clock of another process
    return total
