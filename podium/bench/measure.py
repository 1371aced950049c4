"""Contenders measured in alternation, so that a machine that slows down or speeds up does so for all of them."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from time import perf_counter
from typing import Protocol

THREADS = 1
"""Compute threads of every contender."""


class Contender(Protocol):
    """Something that can say how fast it is, again and again."""

    def measure(self, seconds: float) -> float:
        """Env steps per second over about this long."""
        ...

    def close(self) -> None: ...


def alternate(makers: Mapping[str, Callable[[], Contender]], rounds: int, seconds: float) -> dict[str, list[float]]:
    """The rates of each contender, by rounds of one measurement each: A B C A B C ..."""
    import torch

    torch.set_num_threads(THREADS)
    runs: dict[str, list[float]] = {name: [] for name in makers}
    with ExitStack() as stack:
        contenders = {}
        for name, make in makers.items():
            contenders[name] = make()
            stack.callback(contenders[name].close)
        for _ in range(rounds):
            for name, contender in contenders.items():
                gc.collect()
                runs[name].append(contender.measure(seconds))
    return runs


def rate(play: Callable[[], int], seconds: float) -> float:
    """Steps per second of a function that plays some and says how many."""
    steps, elapsed, began = 0, 0.0, perf_counter()
    while elapsed < seconds or not steps:
        steps += play()
        elapsed = perf_counter() - began
    return steps / elapsed
