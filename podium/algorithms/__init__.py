"""The algorithms, one file each: a module of this folder that defines ALGORITHM is one. `common` holds what they share."""

from __future__ import annotations

import importlib
import pkgutil
from typing import TYPE_CHECKING

from podium.core.errors import UsageError, known_names

if TYPE_CHECKING:
    from podium.algorithms.common.base import Algorithm


def names() -> list[str]:
    """Every algorithm's name, found without importing any."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.ispkg)


def get(name: str) -> Algorithm:
    """An algorithm by name, or the user's own as `module:attribute`."""
    if ":" in name:
        from podium.core.imports import load_attribute

        return load_attribute(name, "algorithm")
    if name not in names():
        raise UsageError(f"unknown algorithm {name!r}{known_names(name, names())}")
    return importlib.import_module(f"{__name__}.{name}").ALGORITHM
