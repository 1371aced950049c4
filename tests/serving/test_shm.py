"""Shared memory between processes: who dies is noticed, nothing is left, and many callers cost one wake-up."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from podium.core.errors import PodiumError, UsageError
from podium.serving.base import ServerGone
from podium.serving.desk import Desk
from podium.serving.segment import Segment
from podium.serving.server import BadRequest, InferenceServer
from podium.serving.transports.shm import ShmClient, ShmTransport

ROOT = Path(__file__).parents[2]
ROW = {"obs": np.ones((1, 3), np.float32)}


@pytest.fixture
def server() -> InferenceServer:
    return InferenceServer({"act": lambda columns: {"action": columns["obs"] + 1}}, max_batch=2, max_wait_s=None)


@pytest.fixture
def transport(server: InferenceServer) -> Iterator[ShmTransport]:
    transport = ShmTransport(Desk(server), places=3)
    yield transport
    transport.close()


def elsewhere(code: str, *arguments: str) -> subprocess.Popen[str]:
    """Another process that runs some code; it says a line when it is ready."""
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments], cwd=ROOT, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


ASKS = """
import sys, numpy as np
from podium.serving.transports.shm import ShmClient
client = ShmClient(sys.argv[1])
print("ready", flush=True)
while True:
    client.ask({"obs": np.ones((1, 3), np.float32)})
"""

SERVES = """
import sys
from podium.serving.desk import Desk
from podium.serving.server import InferenceServer
from podium.serving.transports.shm import ShmTransport
transport = ShmTransport(Desk(InferenceServer({"act": lambda columns: columns}, max_batch=2, max_wait_s=None)))
print("ready", flush=True)
print(transport.address, flush=True)
sys.stdin.read()
"""


def wait_until(happened: object, seconds: float = 5.0) -> None:
    limit = time.monotonic() + seconds
    while not happened():  # type: ignore[operator]
        assert time.monotonic() < limit
        time.sleep(0.01)


def test_a_client_that_is_killed_is_forgotten_and_its_place_is_free(
    server: InferenceServer, transport: ShmTransport
) -> None:
    for _ in range(6):  # more than there are places
        process = elsewhere(ASKS, transport.address)
        wait_until(lambda: server.waiting == 1)
        process.kill()
        process.wait()
        wait_until(lambda: server.waiting == 0)
    first, second = ShmClient(transport.address), ShmClient(transport.address)
    answers = []
    thread = threading.Thread(target=lambda: answers.append(first.ask(ROW)))
    thread.start()
    second.ask(ROW)
    thread.join(5)
    assert answers[0].columns["action"][0, 0] == 2 and server.stats.passes == 1
    first.close()
    second.close()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_server_that_is_killed_is_noticed_at_once(number: int) -> None:
    process = elsewhere(SERVES)
    assert process.stdout is not None
    client = ShmClient(process.stdout.readline().strip())
    threading.Timer(0.3, process.send_signal, [number]).start()
    began = time.monotonic()
    with pytest.raises(ServerGone, match="process is gone"):
        client.ask(ROW, timeout=30)
    assert time.monotonic() - began < 2
    client.close()
    process.wait()


def test_nothing_is_left_in_the_file_system_or_open(server: InferenceServer) -> None:
    shared, open_before = set(os.listdir("/dev/shm")), len(os.listdir("/proc/self/fd"))
    transport = ShmTransport(Desk(server), places=3)
    client = ShmClient(transport.address)
    assert set(os.listdir("/dev/shm")) == shared
    client.close()
    transport.close()
    del client, transport
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == open_before


def test_as_many_clients_as_there_are_places(transport: ShmTransport) -> None:
    clients = [ShmClient(transport.address) for _ in range(3)]
    with pytest.raises(PodiumError, match="3 places, and all of them are taken"):
        ShmClient(transport.address)
    clients.pop().close()
    ShmClient(transport.address).close()
    for client in clients:
        client.close()


def test_an_address_where_no_server_is(transport: ShmTransport, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no server at shm:/proc/self/fd/9999"):
        ShmClient("shm:/proc/self/fd/9999")
    file = tmp_path / "other"
    file.write_bytes(b"something else" * 1000)
    with pytest.raises(PodiumError, match="no shared memory of a Podium server"):
        Segment.open(str(file))


def test_rows_and_answers_that_are_too_long_are_refused() -> None:
    server = InferenceServer({"act": lambda columns: {"action": np.zeros((len(columns["obs"]), 9999))}})
    transport = ShmTransport(Desk(server), places=1, request_bytes=4096, reply_bytes=4096)
    client = ShmClient(transport.address)
    with pytest.raises(BadRequest, match="expected at most 4,096"):
        client.ask({"obs": np.zeros((1, 2000), np.float32)})
    with pytest.raises(PodiumError, match="expected at most 4,096"):
        client.ask({"obs": np.zeros((1, 3), np.float32)})
    client.close()
    transport.close()


def test_what_a_client_writes_that_means_nothing_is_refused_and_the_server_goes_on(
    server: InferenceServer, transport: ShmTransport
) -> None:
    from podium.serving import segment as seg

    bad = ShmClient(transport.address)
    rng = np.random.default_rng(0)
    words, at = bad._segment.words, bad._at
    for round_ in range(300):
        noise = rng.integers(0, 256, rng.integers(0, 4000), dtype=np.uint8).tobytes()
        bad._segment.request_memory(bad._place)[: len(noise)] = noise
        words[at + seg.REQUEST_SIZE] = int(rng.integers(0, 2**40)) if round_ % 2 else len(noise)
        bad._asked += 1
        words[at + seg.ASKED] = bad._asked
        bad._wake.post()
        wait_until(lambda: words[at + seg.ANSWERED] == bad._asked)
        assert words[at + seg.STATUS] == 1
    bad.close()
    clients = [ShmClient(transport.address) for _ in range(2)]
    threads = [threading.Thread(target=client.ask, args=(ROW,)) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(5)
    assert server.stats.requests == 2
    for client in clients:
        client.close()
