"""A short measurement: what one evaluator takes to play and to learn on this machine, in a second or so."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from time import perf_counter, process_time
from typing import Any

import numpy as np

from podium.algorithms.common.base import Algorithm, RunConfig
from podium.algorithms.common.evolution import EvolutionConfig
from podium.algorithms.common.off_policy import ReplayConfig
from podium.algorithms.common.on_policy import sgd
from podium.core.batch import Batch, concat
from podium.core.spaces import Columns, Leaf, Space
from podium.envs.base import MASK, VectorEnv
from podium.envs.make import EnvSpec, describe, make, wrapped
from podium.evaluation.evaluator import Evaluator
from podium.evaluation.sample import ONLY
from podium.planning.replay import replay_bytes
from podium.planning.search import EachRow, episode_steps, update_s
from podium.policies.base import Policy, Sgd

RESET_S = 0.3
PLAY_S = 0.5
LEARN_S = 0.3
"""About as long as making and resetting the envs, playing and learning may take."""

LONG = 4096
"""Steps that a search is tried with at most, which plays whole episodes."""

WIDE = 64
"""Rows of a policy call with which one of few rows is compared."""

WAITS_BELOW = 0.5
"""An env computes in less than this share of its time, and gives its core away meanwhile: it waits for something."""


@dataclass(frozen=True)
class Measured:
    """One evaluator with the settings' envs. Seconds are of wall time on an otherwise idle core."""

    env_s: float  # to step every env once
    inference_s: float  # to act once for all of them, and the postprocessing of those rows
    act_s: float  # the policy call in it
    wide_act_s: float  # a policy call for WIDE rows
    learn_row_s: float  # a pass over one row
    env_busy: float  # cores that stepping keeps busy: far below 1 where the env waits, above where it has threads
    waits: bool
    gives_state: bool
    parameters: int
    weight_bytes: int  # the parameters, and what else acting needs
    optimizer_bytes: int
    row_bytes: int  # of a sample, for one env's step
    edge_bytes: int  # of a sample, for one env's ends
    asked_bytes: int  # of a question to a server and its answer, for one env's step
    process_bytes: int  # a process with one evaluator in it
    replay_bytes: int = 0  # a full replay
    drawn_bytes: int = 0  # of a minibatch from one, for a row
    table_bytes: int = 0  # the noise that a search shares
    episode_steps: int = 0  # of a search, whose perturbations play whole ones

    @property
    def busy(self) -> float:
        """Cores that playing keeps busy in the mean."""
        return (self.env_s * self.env_busy + self.inference_s) / (self.env_s + self.inference_s)


def measure(algorithm: Algorithm, spec: EnvSpec, config: RunConfig, spaces: tuple[Space, Leaf]) -> Measured:
    """Play a few fragments and learn once; the env has been checked, and returns."""
    policy = algorithm.policy(config, *spaces, config.seed)
    env, scale = _some_envs(spec, config.envs)
    searching = isinstance(config, EvolutionConfig)
    player: Any = EachRow(policy) if searching else policy
    with closing(Evaluator(lambda: player, lambda: env, seed=config.seed)) as evaluator:
        played = _play(evaluator, LONG if searching else config.fragment)
        gives_state = env.get_state() is not None
    batch, seconds = played.batch, played.stages
    steps, processes = batch.length, max(config.env_processes, 1)
    act_s = seconds["inference"] / steps
    if isinstance(config, EvolutionConfig):
        rows = config.parts * config.envs * config.rollouts * episode_steps(batch)
        learn_row_s = update_s(policy, config) / rows
    else:
        learned = _drawn(batch, config) if isinstance(config, ReplayConfig) else batch
        learn_row_s = _learn(policy, learned, config)
    kept = 4 * policy.parameters * config.kept if isinstance(config, EvolutionConfig) else 0
    optimizer = policy.get_state(full=True).get("optimizer", {})
    return Measured(
        env_s=seconds["env"] / steps * scale / processes,
        inference_s=act_s + seconds["postprocess"] / steps * scale,
        act_s=act_s,
        wide_act_s=_wide_act(player, batch),
        learn_row_s=learn_row_s,
        env_busy=played.env_busy if processes == 1 else float(processes),
        waits=played.waits and processes == 1,
        gives_state=gives_state,
        parameters=policy.parameters,
        weight_bytes=policy.get_weights().flat.nbytes,
        optimizer_bytes=nbytes(optimizer) + kept,
        row_bytes=nbytes(batch.cols) // (steps * batch.width),
        edge_bytes=(nbytes(batch.first) + nbytes(batch.last)) // batch.width,
        asked_bytes=_asked_bytes(batch),
        process_bytes=resident_bytes(),
        replay_bytes=replay_bytes(config, spec, spaces),
        drawn_bytes=learned.nbytes // learned.width if isinstance(config, ReplayConfig) else 0,
        table_bytes=4 * config.noise_table if isinstance(config, EvolutionConfig) else 0,
        episode_steps=episode_steps(batch) if searching else 0,
    )


def _asked_bytes(batch: Batch) -> int:
    """What is shown and what is decided, and the recurrent state on the way there and back."""
    told = ("action", "logp", "value", MASK)
    shown = {name: column for name, column in batch.cols.items() if name in told or name in batch.group("obs")}
    return nbytes(shown) // (batch.length * batch.width) + 2 * nbytes(batch.first) // batch.width


def _drawn(batch: Batch, config: ReplayConfig) -> Batch:
    """A minibatch as a replay of these rows gives it."""
    replay = config.replay({}, config.least()[0] + config.batch + 2 * batch.length * batch.width)()
    while replay.size < config.batch:
        replay.insert([batch])
    return replay.sample(config.batch, 0.99).batch


def _some_envs(spec: EnvSpec, n: int) -> tuple[VectorEnv, float]:
    """The envs, or some of them where they take long to make and reset, and how many each of those stands for."""
    began = perf_counter()
    one = _in_process(spec, 1)
    one.reset([0])
    fitting = int(RESET_S / max(perf_counter() - began, 1e-6))
    if n == 1 or (fitting < 2 and n > 1):
        return one, float(n)
    one.close()
    made = min(n, fitting)
    return _in_process(spec, made), n / made


def _in_process(spec: EnvSpec, n: int) -> VectorEnv:
    """The envs in this process, but stepped one by one where processes of their own would do that."""
    if not spec.processes:
        return make(spec, n)
    from podium.envs.names import Singles, resolve
    from podium.envs.sync import SyncVector

    source = resolve(spec)
    if not isinstance(source, Singles):
        return make(spec, n)  # which refuses it
    return wrapped(replace(spec, processes=0), SyncVector([source.make] * n, describe(spec)))


@dataclass(frozen=True)
class Played:
    """A fragment, its seconds by stage and in all, the cores that stepping kept busy, and whether it mostly waited."""

    batch: Batch
    stages: dict[str, float]
    spent: float
    env_busy: float
    waits: bool


def _play(evaluator: Evaluator, fragment: int) -> Played:
    """Ever longer fragments, then some more of the length that there is time for, of which the quickest counts: what
    else the machine does must not look like the env's doing."""
    evaluator.sample(1)
    until, steps = perf_counter() + PLAY_S, 1
    best = _play_once(evaluator, steps)
    while perf_counter() + best.spent < until:
        longer = min(2 * steps, fragment)
        if perf_counter() + 2 * best.spent * longer / steps > until:
            longer = steps
        played = _play_once(evaluator, longer)
        if longer > steps or played.spent < best.spent:
            best = played
        steps = longer
    return best


def _play_once(evaluator: Evaluator, steps: int) -> Played:
    before, cpu, left = perf_counter(), process_time(), _cores_left()
    sample = evaluator.sample(steps)
    spent, cpu, left = perf_counter() - before, process_time() - cpu, _cores_left() - left
    stages = dict(sample.report.timers)
    waits = cpu / spent < WAITS_BELOW and left >= steps
    env_busy = max(cpu - (spent - stages["env"]), 0.01 * spent) / stages["env"]
    return Played(sample.batches[ONLY], stages, spent, env_busy if waits else max(env_busy, 1.0), waits)


def _cores_left() -> int:
    """How often this process has given its core away to wait for something."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw


def _learn(policy: Policy, batch: Batch, config: RunConfig) -> float:
    """Seconds for a pass over one row: of ever more rows, up to those of a fragment, then the quickest of some passes.
    What a replay gives is learned from as a whole, and each thing that was drawn counts as a row."""
    how = replace(sgd(config, 0.0, 0), epochs=1, stop_above=None)
    drawn = isinstance(config, ReplayConfig)
    rows, full = (batch, 0) if drawn else (batch.slice(times=slice(0, 1)), config.envs * config.fragment)
    policy.learn(rows, how)
    until, best = perf_counter() + LEARN_S, _learn_once(policy, rows, how)
    while perf_counter() + best < until:
        count = rows.length * rows.width
        if count < full and perf_counter() + 4 * best < until:
            rows = _twice(rows, batch)
            best = _learn_once(policy, rows, how)
        else:
            best = min(best, _learn_once(policy, rows, how))
    return best / (rows.width if drawn else rows.length * rows.width)


def _learn_once(policy: Policy, rows: Batch, how: Sgd) -> float:
    before = perf_counter()
    policy.learn(rows, how)
    return perf_counter() - before


def _twice(rows: Batch, batch: Batch) -> Batch:
    """Twice as many rows: more of the batch, or the same ones once more where it has no more."""
    if rows.length < batch.length:
        return batch.slice(times=slice(0, min(2 * rows.length, batch.length)))
    return concat([rows, rows])


def _wide_act(policy: Any, batch: Batch) -> float:
    """The quickest of a few policy calls for WIDE rows."""
    obs = {name: _rows(column[0]) for name, column in batch.group("obs").items()}
    mask = _rows(batch[MASK][0]) if MASK in batch.cols else None
    state: Columns = policy.initial_state(WIDE)
    walls = []
    for _ in range(5):
        before = perf_counter()
        policy.act(obs, state, mask)
        walls.append(perf_counter() - before)
    return min(walls)


def _rows(column: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(np.resize(column, (WIDE, *column.shape[1:])))


def nbytes(tree: Any) -> int:
    """The bytes of all arrays in it."""
    if isinstance(tree, Mapping):
        return sum(nbytes(part) for part in tree.values())
    return int(getattr(tree, "nbytes", 0))


def resident_bytes() -> int:
    """The memory that this process takes up."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
