"""From settings, a measurement and a machine to figures: time, memory, bytes on the way. Arithmetic alone."""

from __future__ import annotations

from dataclasses import dataclass, replace

from podium.algorithms.common.base import RunConfig
from podium.algorithms.common.evolution import EvolutionConfig
from podium.algorithms.common.off_policy import ReplayConfig
from podium.algorithms.common.on_policy import sgd
from podium.engine.plan import Machine
from podium.planning.layout import RAY, learners, ordered, players, replays, roles, servers, shards, workers
from podium.planning.measure import WIDE, Measured
from podium.planning.search import part_bytes, result_bytes

CALL_S = 0.001
ASYNC_CALL_S = 0.0002
STORE_BYTES_PER_S = 4e8
"""What a call of an actor that is waited for, one of many under way, and a fetch from the object store cost with Ray
2.60 on one machine."""

ASK_S = 0.0002
"""What a question to a server on the same machine costs beside the policy's own time."""

RAY_PROCESS_BYTES = 60 << 20
"""What Ray adds to a process that runs in it."""

ENV_PROCESS_BYTES = 40 << 20
"""A process that steps envs and has no torch in it."""

STAGES = ("env", "inference", "learning", "transport")
GRADIENT_OPTIMIZERS = ("async_gradients", "parameter_server")


@dataclass(frozen=True)
class Traffic:
    """Bytes of one iteration: through the object store (`drawn` from a replay in shards), and, beside it, among those who
    average their gradients and between workers and the server that they ask."""

    samples: int = 0
    weights: int = 0
    gradients: int = 0
    drawn: int = 0
    reduced: int = 0
    asked: int = 0
    calls: int = 0

    @property
    def stored(self) -> int:
        return self.samples + self.weights + self.gradients + self.drawn


@dataclass(frozen=True)
class Prediction:
    """One iteration: its env steps, its seconds, the part of each stage (stages that overlap add up to more), and the
    stage that limits it."""

    env_steps: int
    seconds: float
    parts: dict[str, float]
    bottleneck: str

    @property
    def env_steps_per_s(self) -> float:
        return self.env_steps / self.seconds

    @property
    def iterations_per_s(self) -> float:
        return 1.0 / self.seconds


def _prediction(config: RunConfig, parts: dict[str, float]) -> Prediction:
    """Of stages that wait for each other."""
    steps = fragments(config) * config.envs * config.fragment
    return Prediction(steps, sum(parts.values()), parts, _greatest(parts))


def _greatest(parts: dict[str, float]) -> str:
    return max(parts, key=lambda stage: parts[stage])


def sized(config: RunConfig, measured: Measured) -> RunConfig:
    """With the steps that a call of a worker plays: of a search those of whole episodes."""
    if isinstance(config, EvolutionConfig):
        return replace(config, fragment=measured.episode_steps * config.rollouts)
    return config


def predict(config: RunConfig, measured: Measured, machine: Machine) -> Prediction:
    """How long an iteration takes."""
    config = sized(config, measured)
    if config.engine == "local":
        return _one_after_the_other(config, measured)
    return _in_step(config, measured, machine) if ordered(config) else _overlapping(config, measured, machine)


def fragments(config: RunConfig) -> int:
    """How many fragments an iteration takes: one of everybody who plays, or as many as come; of a search, the parts in
    which it is played."""
    if isinstance(config, EvolutionConfig):
        return config.parts
    if ordered(config) or replays(config):
        return players(config)
    return config.samples if config.optimizer == "async_samples" else 1


def _playing(config: RunConfig, measured: Measured) -> dict[str, float]:
    """The seconds of one evaluator's part of an iteration, by stage."""
    inference = measured.inference_s
    if _asking(config):
        inference += _pass(config, measured) + ASK_S - measured.act_s
    parts = {"env": measured.env_s * config.fragment, "inference": inference * config.fragment}
    learns = config.optimizer == "allreduce" or config.optimizer in GRADIENT_OPTIMIZERS
    return {**parts, "learning": _passes(config, measured, 1) if learns else 0.0}


def _asking(config: RunConfig) -> bool:
    """Whether workers wait for a server; in one process its pass is like a policy's of their own."""
    return config.inference == "central" and config.engine == "ray"


def _pass(config: RunConfig, measured: Measured) -> float:
    """The server's seconds for the rows of all workers, along the line through a call of few rows and one of many."""
    rows = workers(config) * config.envs
    each = measured.act_s / config.envs
    if config.envs < WIDE:
        each = max((measured.wide_act_s - measured.act_s) / (WIDE - config.envs), 0.0)
    return measured.act_s + each * (rows - config.envs)


def _learning(config: RunConfig, measured: Measured) -> float:
    """The learner's seconds of an iteration, on a device of its own each if there are several."""
    if config.optimizer == "allreduce" or config.optimizer in GRADIENT_OPTIMIZERS:
        return 0.0
    return _passes(config, measured, fragments(config)) / max(learners(config), 1)


def _passes(config: RunConfig, measured: Measured, count: int) -> float:
    """Seconds to go over the rows of `count` fragments, or over the minibatches that are due after them."""
    if isinstance(config, ReplayConfig):
        return measured.learn_row_s * config.batch * count * config.envs * config.fragment / config.train_every
    epochs = 1 if config.optimizer in GRADIENT_OPTIMIZERS else sgd(config, 0.0, 0).epochs
    return measured.learn_row_s * count * config.envs * config.fragment * epochs


def _one_after_the_other(config: RunConfig, measured: Measured) -> Prediction:
    """Everything in one process: whoever is many takes as many times as long."""
    count = fragments(config)
    playing = {stage: seconds * count for stage, seconds in _playing(config, measured).items()}
    learning = _learning(config, measured) * max(learners(config), 1)
    parts = {**playing, "learning": playing["learning"] + learning, "transport": 0.0}
    return _prediction(config, parts)


def _in_step(config: RunConfig, measured: Measured, machine: Machine) -> Prediction:
    """Workers side by side as far as there are cores, as often as it takes, then the learner."""
    often = -(-fragments(config) // players(config))
    playing = {stage: seconds * often for stage, seconds in _playing(config, measured).items()}
    crowd = max(1.0, players(config) * measured.busy / machine.cores)
    parts = {stage: seconds * crowd for stage, seconds in playing.items()}
    if _asking(config):
        parts["inference"] = playing["inference"]  # one pass for all of them
    side_by_side = max(learners(config), 1)
    if not config.device.startswith("cuda"):
        side_by_side = min(side_by_side, max(int(machine.cores / config.threads), 1))
    parts["learning"] += _learning(config, measured) * max(learners(config), 1) / side_by_side
    bytes_ = traffic(config, measured)
    parts["transport"] = bytes_.calls * CALL_S + bytes_.stored / STORE_BYTES_PER_S
    return _prediction(config, parts)


def _overlapping(config: RunConfig, measured: Measured, machine: Machine) -> Prediction:
    """The slowest of those who don't wait for each other: the workers, the learner, the object store with the
    controller, the cores."""
    count, learning, bytes_ = fragments(config), _learning(config, measured), traffic(config, measured)
    playing = {stage: seconds * count for stage, seconds in _playing(config, measured).items()}
    cycle = {**playing, "transport": count * CALL_S}  # a worker waits for its next call
    on_cores = {**playing, "env": playing["env"] * measured.env_busy}
    on_cores["learning"] += learning * config.threads
    if _asking(config):
        on_cores["inference"] /= workers(config)
    transport = bytes_.calls * ASYNC_CALL_S + bytes_.stored / STORE_BYTES_PER_S
    limits = [
        (sum(cycle.values()) / workers(config), _greatest(cycle)),
        (learning, "learning"),
        (transport, "transport"),
        (sum(on_cores.values()) / machine.cores, _greatest(on_cores)),
    ]
    seconds, limit = max(limits)
    parts = {stage: spent / workers(config) for stage, spent in playing.items()}
    parts = {**parts, "learning": parts["learning"] + learning, "transport": transport}
    return Prediction(count * config.envs * config.fragment, seconds, parts, limit)


# --- bytes ---


def sample_bytes(config: RunConfig, measured: Measured) -> int:
    """What one fragment of one evaluator comes to, but for the observations that end episodes; of a search, what a part
    takes while it is played."""
    if isinstance(config, EvolutionConfig):
        return part_bytes(config, measured.parameters, measured.row_bytes)
    return config.envs * (config.fragment * measured.row_bytes + measured.edge_bytes)


def traffic(config: RunConfig, measured: Measured) -> Traffic:
    """What goes between processes in an iteration; between the parts of one process nothing does."""
    if config.engine == "local":
        return Traffic()
    config = sized(config, measured)
    count, gradient = fragments(config), 4 * measured.parameters
    if isinstance(config, EvolutionConfig):
        return Traffic(result_bytes(config), measured.weight_bytes, calls=2 + -(-count // players(config)))
    if config.optimizer == "allreduce":
        return Traffic(reduced=_gradient_steps(config, 1) * gradient * workers(config), calls=1)
    if config.optimizer == "parameter_server":
        updates = 1 if config.synchronous else count
        beside = measured.weight_bytes - gradient
        return Traffic(0, updates * gradient + beside, count * gradient, calls=3 + shards(config))
    if config.optimizer == "async_gradients":
        return Traffic(0, measured.weight_bytes, gradient, calls=3)
    if isinstance(config, ReplayConfig) and replays(config):
        due = count * config.envs * config.fragment / config.train_every
        sent = max(due / config.broadcast_every, 1) * measured.weight_bytes
        drawn = due * config.batch * measured.drawn_bytes
        return Traffic(count * sample_bytes(config, measured), int(sent), drawn=int(drawn), calls=4 * count)
    reduced = 0
    if config.optimizer == "multi_device":
        steps = max(_gradient_steps(config, count) // config.learners, 1)
        reduced = steps * gradient * config.learners
    asked = count * config.fragment * config.envs * measured.asked_bytes if _asking(config) else 0
    samples = count * sample_bytes(config, measured)
    return Traffic(samples, measured.weight_bytes, reduced=reduced, asked=asked, calls=3)


def _gradient_steps(config: RunConfig, count: int) -> int:
    how = sgd(config, 0.0, 0)
    rows = count * config.envs * config.fragment
    return how.epochs * (1 if how.minibatch is None else max(1, round(rows / how.minibatch)))


@dataclass(frozen=True)
class Memory:
    """Bytes by what they are for; a holder is an evaluator or, together, the shards."""

    parameters: int
    optimizer: int
    holders: int
    sample: int
    samples: int
    queue: int
    processes: int
    total: int
    replay: int = 0
    table: int = 0


def memory(config: RunConfig, measured: Measured) -> Memory:
    """What the run takes up, wherever its processes are."""
    playing = servers(config) or workers(config)
    holders = learners(config) + playing + (1 if shards(config) else 0)
    state = 4 * measured.parameters + measured.optimizer_bytes
    sample = sample_bytes(config, measured)
    samples = 2 * players(config) * sample  # where it was played, and where it is learned on
    queue = max(config.queue, config.samples) * sample if config.optimizer == "async_samples" else 0
    processes = measured.process_bytes
    for role in roles(config):
        if role.runs_in == RAY:
            processes += role.count * (measured.process_bytes + RAY_PROCESS_BYTES)
        elif role.role.endswith("env"):
            processes += role.count * ENV_PROCESS_BYTES
    replay, table = measured.replay_bytes, measured.table_bytes
    total = processes + holders * state + samples + queue + replay + table
    own = 4 * measured.parameters, measured.optimizer_bytes
    return Memory(*own, holders, sample, samples, queue, processes, total, replay, table)


def checkpoint_bytes(config: RunConfig, measured: Measured) -> int:
    """About what a checkpoint takes on disk: the state of everyone whose state goes into it, but for the envs'."""
    state = 4 * measured.parameters + measured.optimizer_bytes
    alone = not ordered(config) or isinstance(config, EvolutionConfig)
    others = 0 if alone else (servers(config) or workers(config)) - (config.optimizer == "allreduce")
    return state * (1 + others + (1 if shards(config) else 0)) + measured.replay_bytes


def busy_cores(config: RunConfig, measured: Measured, machine: Machine) -> float:
    """Cores that have something to do at the busiest moment."""
    if config.engine == "local":
        return min(max(measured.busy, float(config.threads)), machine.cores)
    playing = players(config) * measured.busy
    learning = learners(config) * config.threads if not config.device.startswith("cuda") else learners(config)
    return min(max(playing, learning) if ordered(config) else playing + learning, machine.cores)
