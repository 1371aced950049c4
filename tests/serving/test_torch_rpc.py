"""The transport over torch.distributed.rpc: answers, refusals, silence and ends, between real processes."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from podium.core.errors import CallTimedOut, PodiumError
from podium.serving.base import ServerGone
from podium.serving.server import BadRequest
from podium.serving.transports.torch_rpc import TorchRpcClient
from tests.processes import listening, listening_beyond_loopback, process

ROOT = Path(__file__).parents[2]
SERVER = """
import sys, time
import numpy as np
from podium.serving.desk import Desk
from podium.serving.server import InferenceServer
from podium.serving.transports.torch_rpc import TorchRpcTransport

def act(columns):
    rows = columns["obs"]
    if rows.max() > 100:
        time.sleep(float(rows.max()) / 1000)
    if rows.min() < 0:
        raise ValueError("below zero")
    return {"action": rows.sum(1).astype(np.int64), "rows": np.full(len(rows), len(rows))}

layout = {"act": {"obs": ((3,), np.dtype(np.float32))}}
server = InferenceServer({"act": act}, max_batch=int(sys.argv[2]), max_wait_s=None, layouts=layout, version=7)
transport = TorchRpcTransport(Desk(server), "127.0.0.1", 0, int(sys.argv[1]), "agent")
print(transport.address, flush=True)
transport.join(60)
sys.stdin.read()
transport.close()
"""
CLIENT = """
import sys
import numpy as np
from podium.serving.transports.torch_rpc import TorchRpcClient

client = TorchRpcClient(sys.argv[1], int(sys.argv[2]), f"client-{sys.argv[2]}", 60)
for step in range(50):
    answer = client.ask({"obs": np.full((1, 3), float(sys.argv[2]), np.float32)})
    assert answer.columns["action"].tolist() == [3 * int(sys.argv[2])], answer
    assert answer.columns["rows"].tolist() == [2] and answer.version == 7, answer
"""


def start(code: str, *words: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", code, *map(str, words)]
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[tuple[subprocess.Popen[str], str]]:
    world, most = getattr(request, "param", (2, 1))
    found = start(SERVER, world, most)
    assert found.stdout is not None
    yield found, found.stdout.readline().strip()
    found.kill()
    found.communicate()


def rows(value: float, n: int = 1) -> dict[str, np.ndarray]:
    return {"obs": np.full((n, 3), value, np.float32)}


def test_answers_refusals_and_ends(server: tuple[subprocess.Popen[str], str]) -> None:
    ours, address = server
    client = TorchRpcClient(address, 1, "client", 60)
    try:
        answer = client.ask(rows(2.0))
        assert answer.columns["action"].tolist() == [6] and answer.version == 7
        for wrong, said in [
            ({"obs": np.zeros((1, 4), np.float32)}, r"obs has shape \[1, 4\], expected \[1, 3\]"),
            ({"obs": np.full((1, 3), np.nan, np.float32)}, "obs holds NaN"),
            ({}, "0 rows"),
        ]:
            with pytest.raises(BadRequest, match=said):
                client.ask(wrong)
        with pytest.raises(BadRequest, match="nothing answers 'value'"):
            client.ask(rows(1.0), "value")
        with pytest.raises(PodiumError, match="ValueError: below zero"):
            client.ask(rows(-1.0))
        began = time.monotonic()
        with pytest.raises(CallTimedOut, match=r"agent did not answer within 0\.2 s"):
            client.ask(rows(1500.0), timeout=0.2)
        assert time.monotonic() - began < 1.4
        assert client.ask(rows(1.0)).columns["action"].tolist() == [3], "one call's time limit is not another's"
        running = process(ours.pid)
        assert running is not None and listening([running]) and listening_beyond_loopback([running]) == []
        ours.kill()
        ours.wait()
        with pytest.raises(ServerGone, match="agent is gone"):
            client.ask(rows(1.0), timeout=10)
    finally:
        client.close()


@pytest.mark.parametrize("server", [(3, 2)], indirect=True)
def test_callers_share_passes_and_get_their_own_rows(server: tuple[subprocess.Popen[str], str]) -> None:
    _, address = server
    clients = [start(CLIENT, address, rank) for rank in (1, 2)]
    for client in clients:
        client.communicate(timeout=120)
    assert [client.returncode for client in clients] == [0, 0]


@pytest.mark.parametrize("server", [(4, 1)], indirect=True)
def test_who_has_not_joined_is_named(server: tuple[subprocess.Popen[str], str]) -> None:
    _, address = server
    with pytest.raises(CallTimedOut, match=r"ranks 2, 3 have not joined within 1 s"):
        TorchRpcClient(address, 1, "client", 1.0)


def test_nobody_there_is_said() -> None:
    with pytest.raises(ServerGone, match=r"nobody answers at 127\.0\.0\.1:1"):
        TorchRpcClient("torch-rpc://127.0.0.1:1/agent/2", 1, "client", 1.0)
