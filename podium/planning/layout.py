"""Who takes part in a run, and what is refused or warned of before anything of it is made: from settings alone."""

from __future__ import annotations

import functools
import sys
from dataclasses import dataclass

from podium.algorithms.common.base import NEED_WORKERS, RunConfig
from podium.algorithms.common.evolution import EvolutionConfig
from podium.algorithms.common.off_policy import SHARDED, ReplayConfig
from podium.engine.plan import (
    Machine,
    check_device,
    check_gpus,
    check_workers,
    cores,
    count,
    memory,
    part_of_cluster,
)
from podium.policies.devices import device, gpus

CONTROLLER = "controller"
RAY = "ray"
OWN = "own"
"""Where somebody runs: in the controller's process, in one of Ray's each, in one of its own each."""


@dataclass(frozen=True)
class Role:
    """Some who do the same: how many, and where each of them runs."""

    role: str
    count: int
    runs_in: str


def roles(config: RunConfig) -> list[Role]:
    """Everyone in a run whose number of workers is known, by the names that processes.json has for them."""
    inside = RAY if config.engine == "ray" else CONTROLLER
    everyone = [
        Role("controller", 1, OWN),
        Role("learner", learners(config), inside),
        Role("worker", workers(config), inside),
        Role("server", servers(config), inside),
        Role("shard", shards(config), inside),
        Role("replay", replays(config), inside),
        Role("env", players(config) * config.env_processes, OWN),
        Role("evaluation env", config.env_processes if config.eval_every is not None else 0, OWN),
    ]
    return [role for role in everyone if role.count]


def workers(config: RunConfig) -> int:
    assert isinstance(config.workers, int), "the plan has not said yet how many"
    return config.workers


def players(config: RunConfig) -> int:
    """Evaluators that play: the workers, or the learner where there are none."""
    return max(workers(config), 1)


def learners(config: RunConfig) -> int:
    """Evaluators that learn and are no workers."""
    return {"multi_device": config.learners, "allreduce": 0}.get(config.optimizer, 1)


def shards(config: RunConfig) -> int:
    return config.shards if config.optimizer == "parameter_server" else 0


def replays(config: RunConfig) -> int:
    """Those that hold a part of the replay each, in places of their own."""
    return config.sharded() if isinstance(config, ReplayConfig) and config.optimizer in SHARDED else 0


def servers(config: RunConfig) -> int:
    """Those that hold the policy for all workers."""
    return 1 if config.inference == "central" else 0


def ordered(config: RunConfig) -> bool:
    """Whether the same run again goes the same way: nobody's luck decides what is learned on next."""
    if isinstance(config, EvolutionConfig):
        return config.wait_for == 1.0 or config.engine == "local"
    asynchronous = config.optimizer in ("async_samples", "async_gradients", "async_replay")
    return not asynchronous and (config.optimizer != "parameter_server" or config.synchronous)


def needs_workers(config: RunConfig) -> bool:
    return config.optimizer in NEED_WORKERS or config.inference == "central"


# --- where it is to run ---


def this_machine() -> Machine:
    """What there is here, as far as this process may use it."""
    return Machine(cores(), memory(), gpus())


def on_other_cluster(config: RunConfig) -> bool:
    """Whether it is for a cluster that runs already to say what there is."""
    return config.engine == "ray" and (config.address is not None or part_of_cluster())


def machine_of(config: RunConfig) -> Machine:
    """What there is where the engine, which has been started, runs things."""
    if config.engine == "local":
        return this_machine()
    from podium.engine.ray import cluster

    return Machine.of_cluster(cluster())


# --- what can't be, and what is unwise ---


def refuse(config: RunConfig, machine: Machine) -> None:
    """Refuse a request for more than there is; with `--workers auto` one worker must find room."""
    number = 1 if config.workers == "auto" else workers(config)
    if not on_other_cluster(config) and not config.device.startswith("cuda"):
        device(config.device)
    learning, flag = (number, "--workers") if config.optimizer == "allreduce" else (learners(config), "--learners")
    check_device(config.device, learning, machine, flag)
    check_workers(number, config.each_worker, machine)
    if config.engine == "ray" and config.gpus_per_worker:
        check_gpus(gpus_to_learn(config, number, machine), number * config.gpus_per_worker, machine)


def gpus_to_learn(config: RunConfig, number: int, machine: Machine) -> int:
    """GPUs that learning takes with that many workers: one for each who learns, unless a single one is named."""
    learning = number if config.optimizer == "allreduce" else learners(config)
    if config.device == "auto":
        return min(learning if config.engine == "ray" else 1, int(machine.gpus))
    if not config.device.startswith("cuda"):
        return 0
    return learning if config.engine == "ray" or config.device == "cuda" else 1


def warnings(config: RunConfig, machine: Machine) -> list[str]:
    """What will run, but not as it might be thought to."""
    number = 0 if config.workers == "auto" else workers(config)
    if isinstance(config, EvolutionConfig) and number > config.parts:
        calls = count(config.parts, "call")
        return [
            f"--workers {number}: an update is played in {calls} of --envs {config.envs}, and the others do nothing"
        ]
    if number <= machine.cores:
        return []
    there = f"--workers {number} is more than the {count(machine.cores, 'core')} there"
    turns = "engine local has them play one after the other" if config.engine == "local" else "they take turns"
    return [f"{there} {'is' if machine.cores == 1 else 'are'}: {turns}"]


@functools.cache
def warn(line: str) -> None:
    """Say it on stderr, once in a process: several seeds have the same to say."""
    print(f"podium: warning: {line}", file=sys.stderr)
