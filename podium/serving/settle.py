"""Fewer pauses in a process that answers: what it has loaded is not looked through for garbage again and again."""

from __future__ import annotations

import gc


def settle() -> None:
    """To be called once everything is there. Looking through all that torch brings takes tens of milliseconds, in which
    nobody would be answered."""
    gc.collect()
    gc.freeze()
