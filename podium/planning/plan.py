"""The plan of a run: what would run, what it takes up, how fast it goes, and the number for `--workers auto`."""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict, replace
from typing import Any

from podium.algorithms.common.base import Algorithm, RunConfig
from podium.algorithms.common.evolution import EvolutionConfig
from podium.core.errors import UsageError
from podium.core.spaces import Leaf, Space
from podium.engine.address import check_listening
from podium.engine.plan import GIB, Machine, count
from podium.engine.start import start
from podium.envs.check import check
from podium.envs.make import EnvSpec, describe, make, spaces_of
from podium.evaluation.evaluator import Evaluator
from podium.evaluation.sample import ONLY
from podium.planning import figures, layout, suggest
from podium.planning.measure import Measured, measure, nbytes
from podium.planning.outside import refuse_outside
from podium.planning.replay import check_replay

EnvSpaces = tuple[Space, Leaf]


def check_at_once(config: RunConfig) -> None:
    """Refuse what is known not to be there, and warn, before the env is made and an engine is started. What a running
    cluster has is asked once it is attached."""
    if layout.on_other_cluster(config):
        if config.address is not None:
            check_listening(config.address)
        return
    machine = layout.this_machine()
    layout.refuse(config, machine)
    for line in layout.warnings(config, machine):
        layout.warn(line)


def check_on_engine(algorithm: Algorithm, spec: EnvSpec, config: RunConfig, spaces: EnvSpaces) -> RunConfig:
    """The same where the engine, which has been started, runs things; and the settings with a number of workers."""
    machine = layout.machine_of(config)
    layout.refuse(config, machine)
    if config.workers == "auto":
        measured = measure(algorithm, spec, _measurable(config), spaces)
        config = config.replace(workers=suggest.workers(config, measured, machine).value)
        check_sample(algorithm, spec, config, spaces)
        return config
    if layout.on_other_cluster(config):
        for line in layout.warnings(config, machine):
            layout.warn(line)
    return config


def check_memory(algorithm: Algorithm, spec: EnvSpec, config: RunConfig, spaces: EnvSpaces) -> None:
    """Refuse what is known not to fit into memory, before an engine is started."""
    check_sample(algorithm, spec, config, spaces)
    check_replay(config, spec, spaces, layout.this_machine())


def check_sample(algorithm: Algorithm, spec: EnvSpec, config: RunConfig, spaces: EnvSpaces) -> None:
    """Refuse a sample of which a device's share doesn't fit into the memory that it is said to have for it."""
    if config.device_memory is None or config.workers == "auto":
        return
    policy = algorithm.policy(_measurable(config), *spaces, config.seed)
    one = replace(spec, processes=0)
    with closing(Evaluator(lambda: policy, lambda: make(one, 1), seed=config.seed)) as evaluator:
        batch = evaluator.sample(1).batches[ONLY]
    each = config.fragment * nbytes(batch.cols) + nbytes(batch.first) + nbytes(batch.last)
    envs = layout.players(config) * config.envs
    share, room = -(-envs // config.learners) * each, int(config.device_memory * GIB)
    if share > room:
        raise UsageError(
            f"a device's share of a sample is {share:,} bytes, and --device-memory {config.device_memory:g} leaves room "
            f"for {room:,}: take fewer --envs, a shorter --fragment or more --learners"
        )


def _measurable(config: RunConfig) -> RunConfig:
    """The settings as they can be tried here: a cluster's GPU need not be one of this machine."""
    return config.replace(device="auto") if layout.on_other_cluster(config) and config.device != "cpu" else config


# --- the plan ---


def plan(algorithm: Algorithm, spec: EnvSpec, config: RunConfig) -> dict[str, Any]:
    """Everything that `podium plan --json` prints; what can't run is refused."""
    refuse_outside(spec)
    if not layout.on_other_cluster(config):
        machine = layout.this_machine()
        layout.refuse(config, machine)
    elif config.address is not None:
        check_listening(config.address)
    check(spec, config.seed)
    spaces = spaces_of(spec)
    check_memory(algorithm, spec, config, spaces)
    if layout.on_other_cluster(config):
        with closing(start(config.engine, config.address)):
            machine = layout.machine_of(config)
            layout.refuse(config, machine)
    measured = measure(algorithm, spec, _measurable(config), spaces)
    return described(algorithm.name, describe(spec), config, measured, machine)


def described(algo: str, env: str, config: RunConfig, measured: Measured, machine: Machine) -> dict[str, Any]:
    """The plan from its measurement: arithmetic alone."""
    asked, suggested = config, suggest.workers(config, measured, machine)
    if config.workers == "auto":
        config = config.replace(workers=suggested.value)
    bytes_ = figures.memory(config, measured)
    return {
        "algo": algo,
        "env": env,
        "engine": config.engine,
        "optimizer": config.optimizer,
        "workers": config.workers,
        "envs": config.envs,
        "fragment": figures.sized(config, measured).fragment,
        "machine": {"cores": machine.cores, "gpus": machine.gpus, "memory_bytes": machine.memory},
        "processes": [asdict(role) for role in layout.roles(config)],
        "cores": _cores(config, measured, machine),
        "gpus": _gpus(config, machine),
        "memory": _memory(config, bytes_),
        "transport": _transport(config, measured, machine),
        "prediction": _prediction(config, measured, machine),
        "resume": _resume(config, measured),
        "checkpoints": _checkpoints(config, measured),
        "suggested": {"workers": asdict(suggested), "envs": asdict(suggest.envs(config, measured, machine))},
        "warnings": [*layout.warnings(asked, machine), *_too_much(bytes_.total, machine)],
    }


def _cores(config: RunConfig, measured: Measured, machine: Machine) -> dict[str, Any]:
    reserved = layout.workers(config) * config.cpus_per_worker
    return {"reserved": reserved, "busy": round(figures.busy_cores(config, measured, machine), 2)}


def _gpus(config: RunConfig, machine: Machine) -> dict[str, Any]:
    reserved = layout.workers(config) * config.gpus_per_worker
    return {"reserved": reserved, "used": layout.gpus_to_learn(config, layout.workers(config), machine)}


def _memory(config: RunConfig, bytes_: figures.Memory) -> dict[str, Any]:
    found = {f"{name}_bytes": value for name, value in asdict(bytes_).items() if name != "holders"}
    reserved = layout.workers(config) * config.each_worker.memory_bytes
    return {"holders": bytes_.holders, **found, "shards": layout.replays(config), "reserved_bytes": reserved}


def _transport(config: RunConfig, measured: Measured, machine: Machine) -> dict[str, Any]:
    bytes_ = figures.traffic(config, measured)
    often = figures.predict(config, measured, machine).iterations_per_s
    rates = {
        name: round(getattr(bytes_, name) * often)
        for name in ("samples", "weights", "gradients", "drawn", "reduced", "asked")
    }
    found = {f"{name}_bytes_per_s": rate for name, rate in rates.items()}
    return {**found, "object_store_bytes_per_s": round(bytes_.stored * often)}


def _prediction(config: RunConfig, measured: Measured, machine: Machine) -> dict[str, Any]:
    found = figures.predict(config, measured, machine)
    return {
        "env_steps_per_s": found.env_steps_per_s,
        "iterations_per_s": found.iterations_per_s,
        "env_steps_per_iteration": found.env_steps,
        "bottleneck": found.bottleneck,
        **{f"{stage}_s": seconds for stage, seconds in found.parts.items()},
    }


def _resume(config: RunConfig, measured: Measured) -> dict[str, Any]:
    ordered, gives = layout.ordered(config), measured.gives_state or isinstance(config, EvolutionConfig)
    if isinstance(config, EvolutionConfig) and not ordered:
        reason = f"with --wait-for {config.wait_for:g} it goes by what comes first, which no run repeats"
    elif isinstance(config, EvolutionConfig):
        reason = "every perturbation begins its episodes anew, from seeds of its own"
    elif not ordered:
        reason = f"optimizer {config.optimizer} goes by what comes first, which no run repeats"
    elif not gives:
        reason = "the env can't give its state: exact from a scheduled checkpoint, not from one on a signal"
    else:
        reason = "the env gives its state, and the optimizer has a fixed order"
    return {"exact": ordered and gives, "env_gives_state": measured.gives_state, "ordered": ordered, "reason": reason}


def _checkpoints(config: RunConfig, measured: Measured) -> dict[str, Any]:
    return {
        "every": config.checkpoint_every,
        "keep": config.keep,
        "bytes": figures.checkpoint_bytes(config, measured),
        "restart_episodes": layout.ordered(config)
        and not measured.gives_state
        and not isinstance(config, EvolutionConfig),
    }


def _too_much(needed: int, machine: Machine) -> list[str]:
    if needed <= machine.memory:
        return []
    there = count(machine.memory / GIB, "GiB")
    return [f"it takes about {count(needed / GIB, 'GiB')} of memory, and there are {there}"]
