"""What a run asks of a machine or a cluster, and whether that is there: arithmetic alone."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from podium.core.errors import UsageError
from podium.engine.base import Resources

GIB = 1 << 30
NO_LIMIT = 1 << 60
"""Control groups write their lack of a limit as a number beyond any memory."""


@dataclass(frozen=True)
class Machine:
    """What there is in all, on one machine or on a cluster."""

    cores: float
    memory: int
    gpus: float = 0.0

    @classmethod
    def of_cluster(cls, amounts: Mapping[str, float]) -> Machine:
        """From what Ray says of its cluster: CPU, GPU and memory."""
        return cls(amounts.get("CPU", 0.0), int(amounts.get("memory", 0)), amounts.get("GPU", 0.0))


def check_workers(workers: int, each: Resources, machine: Machine) -> None:
    """Refuse workers that ask for more than there is."""
    asked = (
        ("--cpus-per-worker", each.cpus, machine.cores, "CPU"),
        ("--gpus-per-worker", each.gpus, machine.gpus, "GPU"),
        ("--memory-per-worker", each.memory_bytes / GIB, machine.memory / GIB, "GiB"),
    )
    for flag, amount, there, unit in asked:
        if workers * amount > there:
            raise UsageError(
                f"--workers {workers} with {flag} {amount:g} asks for {count(workers * amount, unit)}, "
                f"there {_are(there, unit)}"
            )
    if each.gpus > 1 and each.gpus != int(each.gpus):
        raise UsageError(f"--gpus-per-worker is {each.gpus:g}, expected a share of one GPU or a whole number")


def check_device(device: str, learners: int, machine: Machine, flag: str = "--learners") -> None:
    """Refuse CUDA devices that aren't there; `learners`, of which `flag` says how many, take one each where no single one
    is named."""
    kind, _, place = device.partition(":")
    if kind != "cuda" or (place and not place.isdigit()):
        return
    needed = int(place) + 1 if place else learners
    if needed <= machine.gpus:
        return
    there = f"there {_are(machine.gpus, 'GPU')}"
    if not place and learners > 1:
        raise UsageError(f"{flag} {learners} with --device cuda asks for {learners} GPUs, {there}")
    raise UsageError(f"--device {device} is not available here, expected cpu, auto or a present cuda device: {there}")


def check_gpus(learning: int, reserved: float, machine: Machine) -> None:
    """Refuse learners and workers that together ask for more GPUs than there are: on Ray each has its own."""
    if learning + reserved > machine.gpus:
        raise UsageError(
            f"learning takes {count(learning, 'GPU')} and --gpus-per-worker {reserved:g} more in all, "
            f"there {_are(machine.gpus, 'GPU')}"
        )


def most_workers(each: Resources, machine: Machine) -> int | None:
    """How many workers of this size fit beside each other; None where they reserve nothing."""
    asked = ((each.cpus, machine.cores), (each.gpus, machine.gpus), (each.memory_bytes, machine.memory))
    fitting = [int(there / amount) for amount, there in asked if amount]
    return min(fitting) if fitting else None


def count(amount: float, unit: str) -> str:
    """`8 CPUs`, `1 GPU`, `128 GiB`."""
    number = f"{amount:.1f}".removesuffix(".0") if unit == "GiB" else f"{amount:g}"
    return f"{number} {unit}" + ("" if unit == "GiB" or amount == 1 else "s")


def _are(amount: float, unit: str) -> str:
    if not amount:
        return "is none" if unit == "GPU" else f"is no {unit}"
    if unit == "GiB":
        return f"are {count(amount, unit)}"
    return f"{'is' if amount == 1 else 'are'} {amount:g}"


def part_of_cluster() -> bool:
    """Whether this process is part of a Ray cluster already, which then is the one to ask."""
    ray = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())


# --- what this machine has, as far as this process may use it ---


def cores(groups: Path = Path("/sys/fs/cgroup")) -> int:
    """Cores that this process may run on, or the whole ones of a container's share."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    share = _share_of_cores(groups)
    return allowed if share is None else max(1, min(allowed, int(share)))


def memory(groups: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes of memory, or a container's limit where that is less."""
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limits = [_number(groups / name) for name in ("memory.max", "memory/memory.limit_in_bytes")]
    return min([physical, *(int(limit) for limit in limits if limit is not None and limit < NO_LIMIT)])


def _share_of_cores(groups: Path) -> float | None:
    try:
        quota, period = (groups / "cpu.max").read_text().split()
        return float(quota) / float(period)
    except (OSError, ValueError):
        old_quota, old_period = (_number(groups / "cpu" / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
        return old_quota / old_period if old_quota and old_period and old_quota > 0 else None


def _number(path: Path) -> float | None:
    try:
        return float(path.read_text())
    except (OSError, ValueError):
        return None
