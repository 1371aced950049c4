"""The local engine: calls in order, errors as their own type, and a strict mode that hides no alias."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

from podium.core.errors import WorkerDied
from podium.engine.base import Engine, Resources
from podium.engine.local import LocalEngine


class Wallet:
    """Keeps what it is given, changes it, and tells when it is closed."""

    def __init__(self, coins: list[int], closed: list[str] | None = None, name: str = "") -> None:
        self.coins = coins
        self.closed = closed
        self.name = name

    def add(self, coin: int, times: int = 1) -> int:
        self.coins.extend([coin] * times)
        return sum(self.coins)

    def show(self) -> list[int]:
        return self.coins

    def spoil(self, array: np.ndarray) -> None:
        array[...] = -1

    def give_back(self, value: Any) -> Any:
        return value

    def fail(self) -> None:
        raise LookupError("no coins")

    def close(self) -> None:
        if self.closed is not None:
            self.closed.append(self.name)
        if self.name == "bad":
            raise OSError("stuck")


class Plain:
    """Has nothing to close."""

    def one(self) -> int:
        return 1


@pytest.fixture(params=[False, True], ids=["plain", "strict"])
def engine(request: pytest.FixtureRequest) -> Engine:
    return LocalEngine(strict=request.param)


def test_calls_run_in_order(engine: Engine) -> None:
    wallet = engine.spawn(Wallet, [1], name="wallet")
    refs = [wallet.call("add", 2), wallet.call("add", 3, times=2)]
    assert engine.get(refs) == [3, 9] and engine.get(refs[1]) == 9
    assert wallet.name == "wallet"
    assert engine.get(engine.spawn(Plain, resources=Resources(cpus=1)).call("one")) == 1


def test_refs_in_arguments_arrive_as_values(engine: Engine) -> None:
    five = engine.put(5)
    wallet = engine.spawn(Wallet, engine.put([1]))
    assert engine.get(wallet.call("add", five)) == 6
    assert engine.get(wallet.call("add", coin=five, times=engine.put(2))) == 16
    assert engine.get(wallet.call("give_back", [five, (five, 1)])) == [5, (5, 1)]


def test_errors_keep_their_type(engine: Engine) -> None:
    wallet = engine.spawn(Wallet, [])
    failed = wallet.call("fail")
    for _ in range(2):
        with pytest.raises(LookupError, match="no coins"):
            engine.get(failed)
    with pytest.raises(LookupError, match="no coins"):
        engine.get(wallet.call("add", failed))
    with pytest.raises(AttributeError, match="ad"):
        engine.get(wallet.call("ad", 1))
    with pytest.raises(TypeError):
        engine.spawn(Wallet)
    assert engine.get(wallet.call("add", 1)) == 1


def test_wait_gives_the_first_and_the_rest(engine: Engine) -> None:
    refs = [engine.put(i) for i in range(3)]
    ready, rest = engine.wait(refs, n=2, timeout=0)
    assert engine.get(ready) == [0, 1] and engine.get(rest) == [2]


def test_a_killed_object_is_gone() -> None:
    closed: list[str] = []
    engine = LocalEngine()
    wallet, other = engine.spawn(Wallet, [], closed, "one", name="wallet"), engine.spawn(Wallet, [], closed, "two")
    engine.kill(wallet)
    assert closed == ["one"]
    with pytest.raises(WorkerDied, match="wallet is gone"):
        engine.get(wallet.call("add", 1))
    engine.kill(wallet)
    assert closed == ["one"] and engine.get(other.call("add", 1)) == 1


def test_close_closes_every_object_the_newest_first() -> None:
    closed: list[str] = []
    engine = LocalEngine()
    handles = [engine.spawn(lambda name=name: Wallet([], closed, name)) for name in ("one", "bad", "three")]
    handles.append(engine.spawn(Plain))
    with pytest.raises(OSError, match="stuck"):
        engine.close()
    assert closed == ["three", "bad", "one"]
    for handle in handles:
        with pytest.raises(WorkerDied):
            engine.get(handle.call("show"))
    engine.close()
    assert len(closed) == 3


def test_processes_tell_this_one(engine: Engine) -> None:
    assert engine.processes() == [{"role": "controller", "index": 0, "pid": os.getpid()}]


def test_strict_arguments_are_copies() -> None:
    engine = LocalEngine(strict=True)
    coins, array = [1], np.zeros(3)
    wallet = engine.spawn(Wallet, coins)
    engine.get(wallet.call("spoil", array))
    engine.get(wallet.call("spoil", array=array))
    engine.get(wallet.call("add", 9))
    assert coins == [1] and not array.any()
    ref = engine.put(array)
    array[0] = 5
    engine.get(wallet.call("spoil", ref))
    assert not engine.get(ref).any()


def test_strict_results_are_copies() -> None:
    engine = LocalEngine(strict=True)
    wallet = engine.spawn(Wallet, [1])
    shown = wallet.call("show")
    engine.get(wallet.call("add", 2))
    assert engine.get(shown) == [1]
    engine.get(shown).append(100)
    assert engine.get(shown) == [1] and engine.get(wallet.call("show")) == [1, 2]


def test_without_strict_nothing_is_copied() -> None:
    engine = LocalEngine()
    array, coins = np.zeros(3), [1]
    wallet = engine.spawn(Wallet, coins)
    assert engine.get(wallet.call("show")) is coins
    assert engine.get(wallet.call("give_back", array)) is array and engine.get(engine.put(array)) is array


def test_strict_refuses_what_can_not_be_sent() -> None:
    engine = LocalEngine(strict=True)
    wallet = engine.spawn(Wallet, [])
    unsendable = (step for step in range(3))
    with pytest.raises(TypeError, match="generator"):
        engine.get(wallet.call("give_back", unsendable))
    with pytest.raises(TypeError, match="generator"):
        engine.put(unsendable)
    with pytest.raises(TypeError, match="generator"):
        engine.spawn(Wallet, unsendable)
    relaxed = LocalEngine()
    assert relaxed.get(relaxed.spawn(Wallet, []).call("give_back", unsendable)) is unsendable
