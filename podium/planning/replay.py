"""What a replay would take up, and the refusal of one that is more than the memory there is."""

from __future__ import annotations

from podium.algorithms.common.base import RunConfig
from podium.algorithms.common.off_policy import ReplayConfig
from podium.core.errors import UsageError
from podium.core.spaces import Leaf, Space
from podium.engine.plan import GIB, Machine, count
from podium.envs.make import EnvSpec, frames_of


def replay_bytes(config: RunConfig, spec: EnvSpec, spaces: tuple[Space, Leaf]) -> int:
    """Of a full replay; 0 for an algorithm that has none."""
    if not isinstance(config, ReplayConfig):
        return 0
    frames = frames_of(spec)
    return config.capacity(*spaces, frames) * config.row_bytes(*spaces, frames)


def check_replay(config: RunConfig, spec: EnvSpec, spaces: tuple[Space, Leaf], machine: Machine) -> None:
    """Refuse a replay larger than memory, with the arithmetic."""
    needed = replay_bytes(config, spec, spaces)
    if needed <= machine.memory:
        return
    assert isinstance(config, ReplayConfig)
    frames = frames_of(spec)
    number, each = config.capacity(*spaces, frames), config.row_bytes(*spaces, frames)
    shards = config.sharded()
    largest = -(-config.workers // shards) / config.workers if shards > 1 and isinstance(config.workers, int) else 1.0
    in_each = f"{count(needed * largest / GIB, 'GiB')} in each of {shards} shards, " if shards > 1 else ""
    raise UsageError(
        f"--buffer {number} takes {count(needed / GIB, 'GiB')}, {in_each}{each:,} bytes for each transition, and there are "
        f"{count(machine.memory / GIB, 'GiB')} of memory: at most {machine.memory // each:,} fit, or give --buffer-memory"
    )
