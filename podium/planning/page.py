"""A plan for people: one screen of plain lines, each with a name at its left."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from podium.engine.plan import GIB, count
from podium.planning.layout import CONTROLLER, OWN, RAY
from podium.run.progress import human

UNITS = (("GiB", GIB), ("MiB", 1 << 20), ("KiB", 1 << 10))
STAGES = ("env", "inference", "learning", "transport")


def lines(plan: Mapping[str, Any]) -> list[str]:
    """What `podium plan` prints of what `plan` found."""
    rows = [
        ("run", _run(plan)),
        ("machine", _machine(plan["machine"])),
        ("processes", _processes(plan["processes"])),
        ("cores", f"{plan['cores']['reserved']:g} reserved, {plan['cores']['busy']:.3g} expected busy"),
        ("GPUs", f"{plan['gpus']['reserved']:g} reserved, {plan['gpus']['used']:g} used to learn"),
        *(("memory" if not place else "", text) for place, text in enumerate(_memory(plan["memory"], plan["engine"]))),
        ("object store", _store(plan["transport"])),
        ("speed", _speed(plan["prediction"])),
        ("bottleneck", _bottleneck(plan["prediction"])),
        ("resume", ("exact: " if plan["resume"]["exact"] else "not exact: ") + plan["resume"]["reason"]),
        ("checkpoints", _checkpoints(plan["checkpoints"])),
        *((f"--{name}", f"{found['value']}: {found['reason']}") for name, found in plan["suggested"].items()),
    ]
    return [f"{name:<12}  {text}" for name, text in rows]


def size(number: float) -> str:
    """Bytes with three figures: `512 B`, `1.5 MiB`."""
    for unit, scale in UNITS:
        if number >= scale:
            return f"{number / scale:.3g} {unit}" if number < 1000 * scale else f"{number / scale:,.0f} {unit}"
    return f"{number:.0f} B"


def _run(plan: Mapping[str, Any]) -> str:
    where = f"engine {plan['engine']}, optimizer {plan['optimizer']}"
    return (
        f"{plan['algo']} {plan['env']}: {where}, {_several(plan['workers'], 'worker')}, "
        f"{_several(plan['envs'], 'env')} each, {_played(plan)}"
    )


def _played(plan: Mapping[str, Any]) -> str:
    steps = _several(plan["fragment"], "step")
    return f"episodes of {steps} or more" if plan["optimizer"] == "evolution" else f"fragments of {steps}"


def _several(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _machine(machine: Mapping[str, Any]) -> str:
    there = (count(machine["cores"], "core"), size(machine["memory_bytes"]), count(machine["gpus"], "GPU"))
    return ", ".join(there)


def _processes(roles: list[Mapping[str, Any]]) -> str:
    """Those in the controller's process, on Ray, and on their own, as far as there are any."""
    names = {
        place: [_several(r["count"], r["role"]) for r in roles if r["runs_in"] == place]
        for place in (CONTROLLER, RAY, OWN)
    }
    _, *envs = names[OWN]
    inside = f", and in it {' and '.join(names[CONTROLLER])}" if names[CONTROLLER] else ""
    on_ray = f"; on Ray {', '.join(names[RAY])}, a process each" if names[RAY] else ""
    return f"the controller{inside}{on_ray}" + (f"; {' and '.join(envs)}, a process each" if envs else "")


def _memory(memory: Mapping[str, Any], engine: str) -> list[str]:
    parameters, optimizer = size(memory["parameters_bytes"]), size(memory["optimizer_bytes"])
    queue = f", its queue {size(memory['queue_bytes'])}" if memory["queue_bytes"] else ""
    shards = f" in {_several(memory['shards'], 'shard')}" if memory["shards"] else ""
    replay = f", its replay {size(memory['replay_bytes'])}{shards} when full" if memory["replay_bytes"] else ""
    table = f", the noise table {size(memory['table_bytes'])}" if memory["table_bytes"] else ""
    beside = ", without Ray's own" if engine == "ray" else ""
    reserved = f"; {size(memory['reserved_bytes'])} reserved" if memory["reserved_bytes"] else ""
    return [
        f"{size(memory['total_bytes'])} in all{beside}{reserved}",
        f"policy {parameters}, its optimizer {optimizer}: for each of {_several(memory['holders'], 'holder')}",
        f"a sample {size(memory['sample_bytes'])}{queue}{replay}{table}; processes {size(memory['processes_bytes'])}",
    ]


def _store(transport: Mapping[str, Any]) -> str:
    parts = {name: transport[f"{name}_bytes_per_s"] for name in ("samples", "weights", "gradients", "drawn")}
    text = f"{size(transport['object_store_bytes_per_s'])}/s"
    if any(parts.values()):
        text += ": " + ", ".join(f"{name} {size(rate)}/s" for name, rate in parts.items() if rate)
    if transport["reduced_bytes_per_s"]:
        text += f"; averaged among learners beside it {size(transport['reduced_bytes_per_s'])}/s"
    if transport["asked_bytes_per_s"]:
        text += f"; asked of the server beside it {size(transport['asked_bytes_per_s'])}/s"
    return text


def _speed(found: Mapping[str, Any]) -> str:
    steps, often = found["env_steps_per_s"], found["iterations_per_s"]
    return f"about {human(float(f'{steps:.2g}'))} env steps/s, {human(often)} iterations/s"


def _bottleneck(found: Mapping[str, Any]) -> str:
    parts = ", ".join(f"{stage} {1000 * found[f'{stage}_s']:.3g} ms" for stage in STAGES if found[f"{stage}_s"])
    return f"{found['bottleneck']} ({parts} of an iteration)"


def _checkpoints(found: Mapping[str, Any]) -> str:
    often = "at the end alone" if found["every"] is None else f"every {found['every']:,} env steps"
    restart = "; each begins the episodes anew" if found["restart_episodes"] else ""
    return f"{often}, {size(found['bytes'])} each, the last {found['keep']} stay beside best{restart}"
