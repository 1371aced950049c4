"""What the conformance suites spawn: an object that keeps, fails, sleeps and reduces, and one that spawns others."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np

from podium.core.errors import MissingExtra


class Odd(Exception):
    """Its `__init__` wants other arguments than it hands on."""

    def __init__(self, what: str, *, code: int) -> None:
        super().__init__(f"{what} with code {code}")
        self.code = code


class Unsendable(Exception):
    """Keeps what can't be sent."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.callback = (step for step in range(3))
        self.kept = 7


def errors() -> dict[str, Exception]:
    """One of each kind that has to arrive as it was raised."""
    return {
        "plain": LookupError("no coins"),
        "system": FileNotFoundError(2, "No such file", "there"),
        "missing": MissingExtra("the env", "mujoco"),
        "odd": Odd("broken", code=3),
        "unsendable": Unsendable("stuck"),
    }


class Keeper:
    """Keeps what it is given and tells it again."""

    def __init__(self, *kept: Any, fail: str | None = None) -> None:
        self.kept = list(kept)
        if fail is not None:
            self.fail(fail)

    def keep(self, value: Any, times: int = 1) -> list[Any]:
        self.kept.extend([value] * times)
        return list(self.kept)

    def show(self) -> list[Any]:
        return list(self.kept)

    def give_back(self, value: Any) -> Any:
        return value

    def total(self, arrays: Sequence[np.ndarray]) -> float:
        return float(sum(array.sum() for array in arrays))

    def parts(self, n: int, size: int = 1) -> list[np.ndarray]:
        return [np.full(size, part, np.float32) for part in range(n)]

    def fail(self, kind: str) -> None:
        error = errors()[kind]
        error.add_note("in env 3 at step 7")
        raise error

    def leave(self) -> None:
        raise SystemExit(3)

    def sleep(self, seconds: float, value: Any = None) -> Any:
        time.sleep(seconds)
        return value

    def pid(self) -> int:
        return os.getpid()

    def mean_of_mine(self, array: np.ndarray, rounds: int = 1, *, reduce: Any) -> list[np.ndarray]:
        """The members' mean, a few times over, each time of something else."""
        return [reduce(array * np.float32(factor + 1)) for factor in range(rounds)]

    def who(self, *, reduce: Any) -> tuple[int, int]:
        return reduce.rank, reduce.size

    def meet_unless(self, failing: bool, *, reduce: Any) -> np.ndarray:
        """One round that all attend, then one to which the failing don't come."""
        reduce(np.zeros(3, np.float32))
        if failing:
            raise Odd("left", code=1)
        return reduce(np.ones(3, np.float32))

    def come_late(self, seconds: float, *, reduce: Any) -> np.ndarray:
        time.sleep(seconds)
        return reduce(np.ones(3, np.float32))

    def meet_and_die(self, dying: bool, *, reduce: Any) -> np.ndarray:
        reduce(np.zeros(3, np.float32))
        if dying:
            os.kill(os.getpid(), 9)
        return reduce(np.ones(3, np.float32))


class Table:
    """Where so many must sit at once before anybody gets anything; it takes a while to be laid."""

    def __init__(self, seats: int, seconds: float = 0.0, fail: str | None = None) -> None:
        time.sleep(seconds)
        if fail is not None:
            raise errors()[fail]
        self._seats, self._seated = seats, dict[str, Future[str]]()
        self._door = threading.Lock()

    def sit(self, name: str) -> Future[str]:
        with self._door:
            self._seated[name] = served = Future[str]()
            if len(self._seated) == self._seats:
                seated, self._seated = self._seated, {}
                for guest, future in seated.items():
                    future.set_result(guest)
        return served

    def gone(self) -> Future[str]:
        """Nobody is ever served."""
        refused = Future[str]()
        refused.set_exception(errors()["odd"])
        return refused

    def pid(self) -> int:
        return os.getpid()


class Conductor:
    """Spawns in the place where it lives itself."""

    def __init__(self, engine: Any, others: int) -> None:
        self.engine = engine
        self.handles = [engine.spawn(Keeper, index, name=f"kept-{index}") for index in range(others)]

    def ask(self, value: Any) -> list[list[Any]]:
        refs = [handle.call("keep", value) for handle in self.handles]
        return self.engine.get(refs)

    def pids(self) -> list[int]:
        return [os.getpid(), *self.engine.get([handle.call("pid") for handle in self.handles])]

    def ask_one(self, handle: Any, value: Any) -> list[Any]:
        """Call an object that somebody else has spawned."""
        return self.engine.get(handle.call("keep", value))

    def close(self) -> None:
        self.engine.close()
