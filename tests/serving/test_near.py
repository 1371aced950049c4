"""A server on an engine: shared memory for those on its machine, calls for others and for what is too long."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

from podium.core.spaces import Columns
from podium.engine.base import Engine, Handle
from podium.engine.local import LocalEngine
from podium.serving.server import InferenceServer
from podium.serving.transports import near
from podium.serving.transports.near import NearClient, NearServer
from tests.conformance.conftest import ray_engine


@pytest.fixture(scope="module")
def ray() -> Iterator[Engine]:
    yield from ray_engine()


def counted(columns: Columns) -> Columns:
    return {"rows": np.full(len(columns["obs"]), len(columns["obs"]))}


class Watched(NearServer):
    """Tells how many questions came by calls."""

    def __init__(self) -> None:
        super().__init__(partial(InferenceServer, {"act": counted}), places=2, rows=1, request_bytes=0)
        self.called = 0

    def ask(self, *question: Any) -> Any:
        self.called += 1
        return super().ask(*question)

    def calls(self) -> int:
        return self.called


def asked(engine: Engine, handle: Handle, rows: int) -> tuple[int, int]:
    """How many rows were answered, and how many questions have come by calls."""
    client = NearClient(engine, handle)
    answer = client.ask({"obs": np.zeros((rows, 1 << 10))}, timeout=20.0)
    client.close()
    return int(answer.columns["rows"][0]), engine.get(handle.call("calls"))


def test_on_the_servers_machine_rows_go_through_shared_memory(ray: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = ray.spawn(Watched, name="server-0", callers=2)
    assert asked(ray, handle, 3) == (3, 0)
    long = near.LEAST_BYTES // (8 << 10) + 1
    assert asked(ray, handle, long) == (long, 1), "what is too long goes by a call"
    monkeypatch.setattr(near, "this_machine", lambda: "another one")
    assert asked(ray, handle, 3) == (3, 2)
    monkeypatch.setattr(near, "this_machine", lambda: None)
    assert asked(ray, handle, 3) == (3, 3), "as where the system doesn't tell"
    ray.kill(handle)


@pytest.mark.parametrize("strict", [False, True])
def test_in_one_process_calls_are_nearest(strict: bool) -> None:
    engine = LocalEngine(strict)
    handle = engine.spawn(Watched, name="server-0", callers=2)
    assert asked(engine, handle, 3) == (3, 1)
    engine.close()
