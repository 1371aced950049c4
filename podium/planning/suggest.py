"""How many workers and envs suit a machine, each with its reason: arithmetic alone."""

from __future__ import annotations

from dataclasses import dataclass, replace

from podium.algorithms.common.base import RunConfig
from podium.algorithms.common.evolution import EvolutionConfig
from podium.engine.base import Resources
from podium.engine.plan import Machine, count, most_workers
from podium.planning.figures import RAY_PROCESS_BYTES, predict
from podium.planning.layout import gpus_to_learn, needs_workers
from podium.planning.measure import WIDE, Measured

AT_MOST_PER_CORE = 16
"""Workers on a core, however long their envs wait."""

WORTH_IT = 1.2
"""What more envs must gain before they are suggested: they change what is learned, too."""


@dataclass(frozen=True)
class Suggestion:
    """A setting's value and, in a few words, why."""

    value: int
    reason: str


def workers(config: RunConfig, measured: Measured, machine: Machine) -> Suggestion:
    """The number that `--workers auto` stands for."""
    if config.engine == "local":
        return _local(config)
    searching = isinstance(config, EvolutionConfig)
    learner = 0 if config.optimizer == "allreduce" or searching else config.threads
    free = max(int(machine.cores) - learner, 1)
    reason = f"{count(machine.cores, 'core')}, {learner} of them for the learner"
    if learner == 0:
        reason = f"{count(machine.cores, 'core')}, and " + (
            "learning is short" if searching else "who plays also learns"
        )
    found = free
    if measured.waits:
        found = min(int(free / max(measured.busy, 1e-6)), AT_MOST_PER_CORE * free)
        reason = f"the env waits {1 - measured.busy:.0%} of its time: {count(free, 'core')} can do for {found}"
    elif measured.busy > 1.5:
        found = max(int(free / measured.busy), 1)
        reason = f"{reason}; one worker keeps {measured.busy:.1f} busy"
    if isinstance(config, EvolutionConfig) and config.parts < found:
        found, reason = (
            config.parts,
            f"an update is played in {count(config.parts, 'call')}: more would have nothing to do",
        )
    return _within(found, reason, config, measured, machine)


def _local(config: RunConfig) -> Suggestion:
    if not needs_workers(config):
        return Suggestion(0, "engine local is one process: the learner plays, too")
    if config.optimizer == "allreduce" or config.synchronous:
        return Suggestion(2, "engine local is one process, and gradients are averaged over at least two")
    return Suggestion(1, "engine local is one process: more would play one after the other")


def _within(found: int, reason: str, config: RunConfig, measured: Measured, machine: Machine) -> Suggestion:
    """No more than fit beside each other."""
    reserved = most_workers(*_beside_the_learner(config, machine))
    if reserved is not None and reserved < found:
        return Suggestion(max(reserved, 1), "more would reserve more than there is")
    each = measured.process_bytes + RAY_PROCESS_BYTES
    room = max(machine.memory // each - 2, 1) if machine.memory else found
    return Suggestion(room, "more would not fit into memory") if room < found else Suggestion(found, reason)


def _beside_the_learner(config: RunConfig, machine: Machine) -> tuple[Resources, Machine]:
    """What a worker takes, with its GPU where it learns too, and what the learners' own GPUs leave of the machine."""
    each, on_gpu = config.each_worker, gpus_to_learn(config, 1, machine)
    if config.optimizer == "allreduce":
        return each + Resources(gpus=float(on_gpu)), machine
    return each, replace(machine, gpus=machine.gpus - on_gpu)


def envs(config: RunConfig, measured: Measured, machine: Machine) -> Suggestion:
    """More envs where the policy's calls are what takes long and cost hardly more for many rows."""
    if isinstance(config, EvolutionConfig):
        parts = count(config.parts, "call")
        return Suggestion(config.envs, f"an update is played in {parts}: fewer envs make more, for more workers")
    if config.envs >= WIDE:
        return Suggestion(config.envs, f"policy calls of {config.envs} rows are well filled")
    wider = config.replace(envs=WIDE)
    gain = (
        predict(wider, _with_wide_calls(config, measured), machine).env_steps_per_s
        / predict(config, measured, machine).env_steps_per_s
    )
    if gain >= WORTH_IT:
        call = (
            f"a policy call of {WIDE} rows costs {measured.wide_act_s / measured.act_s:.1f} times one of {config.envs}"
        )
        return Suggestion(WIDE, f"{call}: {gain:.1f} times the steps/s, but samples are larger")
    if measured.waits:
        return Suggestion(config.envs, "envs wait one after the other; --env-processes has several wait at once")
    return Suggestion(config.envs, f"{WIDE} would bring {max(gain - 1, 0):.0%} more steps/s")


def _with_wide_calls(config: RunConfig, measured: Measured) -> Measured:
    """The same with WIDE envs: they are stepped in proportion, the policy is called as often."""
    more = WIDE / config.envs
    postprocess = (measured.inference_s - measured.act_s) * more
    return replace(measured, env_s=measured.env_s * more, inference_s=measured.wide_act_s + postprocess)
