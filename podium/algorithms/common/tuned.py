"""Presets as data: what `tuned.toml` has for an algorithm."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Any

FILE = Path(__file__).parents[1] / "tuned.toml"


def tuned(algorithm: str) -> dict[str, dict[str, Any]]:
    """The algorithm's presets by name, each with its `origin`."""
    return _tables().get(algorithm, {})


@cache
def _tables() -> dict[str, dict[str, dict[str, Any]]]:
    return tomllib.loads(FILE.read_text(encoding="utf-8"))
