"""The engines that every suite here runs on. Ray is started once for a file, and must leave no process behind."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from podium.engine.base import Engine
from podium.engine.local import LocalEngine
from tests.processes import descendants, left


@pytest.fixture(scope="module", params=["local", "strict", "ray"])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    if request.param != "ray":
        yield LocalEngine(strict=request.param == "strict")
        return
    yield from ray_engine()


def ray_engine() -> Iterator[Engine]:
    from podium.engine.ray import RayEngine

    before = descendants(os.getpid())
    engine = RayEngine(num_cpus=4)
    try:
        yield engine
        started = [one for one in descendants(os.getpid()) if one not in before]
        assert len(started) > 3, "a raylet, its server and what they start"
    finally:
        engine.close()
    assert left(started) == []
