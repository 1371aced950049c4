"""Podium: distributed reinforcement learning, one policy definition under every optimizer."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from podium.algorithms.common.base import Algorithm as Algorithm
    from podium.algorithms.common.on_policy import ActorCriticConfig as ActorCriticConfig
    from podium.algorithms.common.on_policy import OnPolicyConfig as OnPolicyConfig
    from podium.algorithms.common.on_policy import advantages as advantages
    from podium.algorithms.common.on_policy import on_policy as on_policy
    from podium.api import Player as Player
    from podium.api import Result as Result
    from podium.api import evaluate as evaluate
    from podium.api import load as load
    from podium.api import plan as plan
    from podium.api import resume as resume
    from podium.api import train as train
    from podium.core.batch import Batch as Batch
    from podium.core.config import Schedule as Schedule
    from podium.core.config import setting as setting
    from podium.core.errors import PodiumError as PodiumError
    from podium.run.callbacks import Callback as Callback
    from podium.serving.connect import connect as connect
    from podium.tuning.command import tune as tune

__version__ = "0.1.0"

# Loaded when first asked for, so that `import podium` costs nothing.
_HOMES = {
    "Algorithm": "podium.algorithms.common.base",
    "ActorCriticConfig": "podium.algorithms.common.on_policy",
    "Batch": "podium.core.batch",
    "Callback": "podium.run.callbacks",
    "OnPolicyConfig": "podium.algorithms.common.on_policy",
    "Player": "podium.api",
    "PodiumError": "podium.core.errors",
    "Result": "podium.api",
    "Schedule": "podium.core.config",
    "advantages": "podium.algorithms.common.on_policy",
    "connect": "podium.serving.connect",
    "evaluate": "podium.api",
    "load": "podium.api",
    "plan": "podium.api",
    "on_policy": "podium.algorithms.common.on_policy",
    "resume": "podium.api",
    "setting": "podium.core.config",
    "train": "podium.api",
    "tune": "podium.tuning.command",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'podium' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
