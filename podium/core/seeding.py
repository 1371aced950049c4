"""One seed for a run; every random number comes from it by a named path."""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Mapping
from typing import Any

import numpy as np


def sequence(seed: int, *path: str | int) -> np.random.SeedSequence:
    """The seed sequence of one consumer, such as `sequence(seed, "env", worker, index)`."""
    plain = tuple(str(part) if isinstance(part, str) else operator.index(part) for part in path)
    digest = hashlib.sha256(repr(plain).encode()).digest()
    return np.random.SeedSequence([seed, *np.frombuffer(digest[:16], np.uint32).tolist()])


def generator(seed: int, *path: str | int) -> np.random.Generator:
    """A numpy generator of its own for one consumer."""
    return np.random.Generator(np.random.PCG64(sequence(seed, *path)))


def integer(seed: int, *path: str | int) -> int:
    """A 31-bit seed for a consumer that takes whole numbers only (env resets, torch)."""
    return int(sequence(seed, *path).generate_state(1)[0] >> 1)


def get_state(rng: np.random.Generator) -> dict[str, Any]:
    """The generator's state as plain data."""
    return dict(rng.bit_generator.state)


def set_state(rng: np.random.Generator, state: Mapping[str, Any]) -> None:
    """Put a state that `get_state` gave back into the generator."""
    rng.bit_generator.state = dict(state)
