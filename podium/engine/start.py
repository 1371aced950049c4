"""The engine by its name: the cluster's is loaded only where it is asked for."""

from __future__ import annotations

from podium.core.errors import UsageError, known_names
from podium.engine.base import Engine
from podium.engine.local import LocalEngine

ENGINES = ("local", "ray")


def start(name: str, address: str | None = None) -> Engine:
    """An engine that is ready to spawn; `address` is that of a running cluster."""
    if name == "local":
        return LocalEngine()
    if name == "ray":
        from podium.engine.ray import RayEngine

        return RayEngine(address)
    raise UsageError(f"unknown engine {name!r}{known_names(name, ENGINES)}")
