"""Objects of the user's own by name, `module:attribute`, with the current folder importable."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from podium.core.errors import UsageError, did_you_mean


def load_attribute(name: str, what: str) -> Any:
    """The object that `module:attribute` names; `what` says in the error what it was to be."""
    module_name, _, attribute = name.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        value = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise UsageError(f"{what} {name!r}: there is no module {module_name!r} here") from None
    for part in attribute.split("."):
        if not hasattr(value, part):
            raise UsageError(f"{what} {name!r}: {module_name} has no {part!r}{did_you_mean(part, dir(value))}")
        value = getattr(value, part)
    return value


def attribute_name(value: Any) -> str:
    """The `module:attribute` of a function or class, as far as it has one."""
    return f"{getattr(value, '__module__', '?')}:{getattr(value, '__qualname__', type(value).__qualname__)}"
