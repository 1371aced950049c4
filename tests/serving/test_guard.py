"""A deadline for waits that know none."""

from __future__ import annotations

import threading
import time

from podium.serving.guard import Guard


def test_a_wait_is_ended_at_its_deadline_and_only_then() -> None:
    ended = threading.Event()
    guard = Guard(ended.set)
    guard.begin(time.monotonic() + 30)
    guard.end()
    began = time.monotonic()
    guard.begin(began + 0.1)  # sooner than the one before it
    assert ended.wait(5) and guard.expired
    assert 0.1 <= time.monotonic() - began < 1
    ended.clear()
    guard.begin(time.monotonic() + 0.1)
    assert not guard.expired
    guard.end()
    assert not ended.wait(0.3) and not guard.expired
    guard.close()


def test_waits_that_follow_each_other_wake_nobody() -> None:
    guard = Guard(lambda: None)
    guard.begin(time.monotonic() + 20)
    time.sleep(0.05)
    looks_at = guard._looks_at
    for _ in range(1000):
        guard.begin(time.monotonic() + 20)
        guard.end()
    assert guard._looks_at == looks_at
    guard.close()
