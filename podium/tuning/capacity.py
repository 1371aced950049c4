"""How many trials run at once, and why."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from podium.algorithms.common.base import Algorithm, RunConfig
from podium.core.errors import UsageError
from podium.engine.base import Resources
from podium.engine.plan import GIB, Machine, count
from podium.envs.make import EnvSpec, Traits
from podium.planning import figures, layout
from podium.planning.measure import measure


@dataclass(frozen=True)
class AtOnce:
    """The number, the reason, and what each of them is expected to take."""

    value: int
    reason: str
    cores: float | None = None
    memory_bytes: int | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def reserved(config: RunConfig, machine: Machine) -> list[Resources]:
    """What everything in one trial reserves: each learner's GPU on Ray, and what its workers ask for."""
    if config.engine == "local":
        return []
    number = layout.workers(config)
    learning = layout.gpus_to_learn(config, number, machine)
    return [Resources(gpus=1.0)] * learning + [config.each_worker] * number


def at_once(
    wanted: int | None,
    trials: int,
    algorithm: Algorithm,
    env: EnvSpec,
    config: RunConfig,
    traits: Traits,
    machine: Machine,
) -> AtOnce:
    """As many as were asked for, if there is room for what they reserve; else as many as keep the machine busy."""
    if config.engine == "local":
        if wanted not in (None, 1):
            raise UsageError(
                f"--parallel {wanted} needs --engine ray: with --engine local trials run one after the other"
            )
        return AtOnce(1, "with --engine local trials run one after the other in this process")
    each = sum(reserved(config, machine), Resources())
    fitting, reason = _room(each, machine)
    if wanted is not None:
        if fitting is not None and wanted > fitting:
            raise UsageError(f"--parallel is {wanted}, and {reason}")
        return AtOnce(wanted, "as --parallel says")
    measured = measure(algorithm, env, config, traits[:2])
    busy = max(figures.busy_cores(config, measured, machine), 0.5)
    memory = figures.memory(config, measured).total
    limits = [
        (int(machine.cores / busy), f"each keeps about {busy:.2g} of {count(machine.cores, 'core')} busy"),
        (trials, f"there are no more than {trials}"),
    ]
    if machine.memory:
        limits.append(
            (
                int(machine.memory / memory),
                f"each takes about {count(memory / GIB, 'GiB')} of {machine.memory / GIB:.1f}",
            )
        )
    if fitting is not None:
        limits.append((fitting, reason))
    value, why = min(limits, key=lambda limit: limit[0])
    return AtOnce(max(value, 1), why, round(busy, 2), memory)


def _room(each: Resources, machine: Machine) -> tuple[int | None, str]:
    """How many find room beside each other; a trial keeps a core busy, whatever it reserves."""
    asked = (
        (max(each.cpus, 1.0), machine.cores, "core"),
        (each.gpus, machine.gpus, "GPU"),
        (each.memory_bytes / GIB, machine.memory / GIB, "GiB"),
    )
    found: list[tuple[int, str]] = []
    for amount, there, unit in asked:
        if amount:
            takes = f"a trial takes {count(amount, unit)} and there are {count(there, unit)}"
            found.append((int(there / amount), f"{takes}: room for {int(there / amount)}"))
    return min(found, default=(None, ""))
