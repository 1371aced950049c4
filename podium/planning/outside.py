"""What can't be asked of a run whose simulators connect from outside, refused before its port is opened."""

from __future__ import annotations

from typing import Any

from podium.algorithms.common.base import EVOLUTION_OPTIMIZERS, REPLAY_OPTIMIZERS, RunConfig
from podium.core.config import flag, show
from podium.core.errors import UsageError
from podium.envs.make import EnvSpec, describe
from podium.envs.names import Outside, resolve

ONLY: dict[str, tuple[Any, str]] = {
    "engine": ("local", "simulators connect to the process that learns"),
    "workers": (0, "simulators connect to the process that learns"),
    "optimizer": ("sync_samples", "simulators connect to the process that learns"),
    "eval_every": (None, "none can be made to evaluate on"),
    "env_processes": (0, "they are processes of their own"),
    "frame_stack": (1, "they are wrapped where they are made"),
    "time_limit": (None, "they end their episodes themselves"),
    "rescale_actions": (False, "they are wrapped where they are made"),
}
"""The one value that a setting may have, and why."""


def is_outside(spec: EnvSpec) -> bool:
    return isinstance(resolve(spec), Outside)


def check_outside(spec: EnvSpec, config: RunConfig) -> None:
    """Refuse settings that such a run would not follow."""
    if not is_outside(spec):
        return
    if config.optimizer in REPLAY_OPTIMIZERS:
        raise UsageError(
            f"--optimizer {config.optimizer} does not fit env {describe(spec)}: simulators come and go, and a replay keeps "
            "each env's rows in their order; expected an algorithm that learns from what was just played, such as ppo"
        )
    if config.optimizer in EVOLUTION_OPTIMIZERS:
        raise UsageError(
            f"--optimizer {config.optimizer} does not fit env {describe(spec)}: a search begins episodes when it needs them, "
            "and simulators begin theirs; expected an algorithm that learns from what was just played, such as ppo"
        )
    for name, (expected, reason) in ONLY.items():
        value = getattr(config, name)
        if value != expected:
            wanted = "none" if expected is None else show(expected)
            raise UsageError(f"{flag(name)} is {show(value)}, expected {wanted} with env {describe(spec)}: {reason}")


def refuse_outside(spec: EnvSpec) -> None:
    """Refuse to measure what can't be made."""
    if is_outside(spec):
        raise UsageError(f"{describe(spec)} has no plan: simulators that connect can't be measured before they do")
