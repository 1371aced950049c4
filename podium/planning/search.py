"""What a search by perturbations takes, measured for the plan: acting by other parameters in every row, and a step."""

from __future__ import annotations

from time import perf_counter

import numpy as np

from podium.algorithms.common.evolution import EvolutionConfig
from podium.core import noise, seeding
from podium.core.batch import Batch
from podium.core.spaces import Columns
from podium.evaluation.play_each import WATCHED
from podium.policies.base import Acted, Each, Searched

TRIED = 8
"""Perturbations that are added up to see what one takes."""

RESULT_BYTES = 1000


class EachRow:
    """Plays as a searcher does, for whoever asks an ordinary policy."""

    version = 0

    def __init__(self, policy: Searched) -> None:
        self._policy = policy
        self._acts: dict[int, Each] = {}

    def initial_state(self, n: int) -> Columns:
        return {}

    def act(self, obs: Columns, state: Columns, mask: np.ndarray | None = None, explore: bool = True) -> Acted:
        n = len(next(iter(obs.values())))
        if n not in self._acts:
            flat = self._policy.get_weights().flat[: self._policy.parameters]
            self._acts[n] = self._policy.each(np.tile(flat, (n, 1)), seeding.generator(0, "plan"))
        return Acted(self._acts[n](obs, mask))

    def postprocess(self, batch: Batch) -> Batch:
        return batch


def episode_steps(batch: Batch) -> int:
    """The mean length of the episodes that ended; where none did, at least so many as were played."""
    ended = int(np.count_nonzero(batch["terminated"] | batch["truncated"]))
    return max(batch.steps // ended, 1) if ended else batch.length


def update_s(policy: Searched, config: EvolutionConfig) -> float:
    """Seconds to add up the perturbations of an update."""
    table = noise.table(0, policy.parameters + TRIED)
    noises = noise.Noises(table, np.arange(TRIED), policy.parameters)
    weights, walls = np.ones(TRIED), []
    for _ in range(3):
        began = perf_counter()
        noises.sum(weights)
        walls.append(perf_counter() - began)
    return min(walls) / TRIED * config.directions_played


def part_bytes(config: EvolutionConfig, parameters: int, row_bytes: int) -> int:
    """What a part takes where it is played: the perturbed parameters, and observations on their way into the filter."""
    watched = WATCHED * row_bytes if config.normalize_obs else 0
    return config.envs * (4 * parameters + watched)


def result_bytes(config: EvolutionConfig) -> int:
    """What an update's results come to: of each perturbation where it begins and its returns, of each part its figures."""
    return config.directions_played * 8 * (1 + config.signs) + config.parts * RESULT_BYTES
