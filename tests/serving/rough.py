"""A server and a good client as processes of their own, and the callers that a server has to bear.

`python -m tests.serving.rough serve` prints its address and answers until its input ends; `... ask ADDRESS` prints the
latencies of each line's seconds of asking.
"""

from __future__ import annotations

import json
import random
import socket
import struct
import sys
import threading
import time
from contextlib import closing, suppress
from pathlib import Path

import grpc
import numpy as np

from podium.serving.desk import Desk
from podium.serving.protocol.columns import to_message
from podium.serving.protocol.podium_pb2 import Column, Question
from podium.serving.server import InferenceServer
from podium.serving.transports.grpc import GrpcClient, GrpcTransport

LAYOUT = {"obs": ((4,), np.dtype(np.float32))}
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
ASK = "/podium.v1.Inference/Ask"
GOOD = {"obs": np.ones((1, 4), np.float32)}


def serve() -> None:
    server = InferenceServer({"act": lambda columns: {"action": columns["obs"].sum(axis=1)}}, layouts={"act": LAYOUT})
    with closing(Desk(server)) as desk, closing(GrpcTransport(desk)) as transport:
        print(transport.address, flush=True)
        sys.stdin.read()
    print(json.dumps(server.stats.to_json()), flush=True)


def ask(address: str) -> None:
    with closing(GrpcClient(address)) as client:
        for line in sys.stdin:
            times, until = [], time.monotonic() + float(line)
            while time.monotonic() < until:
                began = time.perf_counter()
                answer = client.ask(GOOD, timeout=10)
                times.append(time.perf_counter() - began)
                assert answer.columns["action"].tolist() == [4.0]
                time.sleep(0.002)
            print(json.dumps({"p50": np.quantile(times, 0.5), "p99": np.quantile(times, 0.99)}), flush=True)


def memory(pid: int) -> int:
    """The bytes that a process holds."""
    (line,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS:")]
    return 1024 * int(line.split()[1])


def place(address: str) -> tuple[str, int]:
    _, host, port = address.split(":")
    return host, int(port)


# --- malformed requests ---


def malformed(rng: random.Random) -> bytes:
    """The bytes of a request that can't be answered."""
    kind = rng.randrange(7)
    if kind == 0:
        return rng.randbytes(rng.randrange(1, 2000)) + b"\xff"
    good = to_message("obs", GOOD["obs"])
    if kind == 1:
        good.dtype = rng.choice(["float64", "object", "", "float32 ", "\N{SNOWMAN}" * 50])
    if kind == 2:
        good.shape[:] = rng.choice([[2**62] * 3, [1, 4, 2**40], [-1, -4], [1] * 40, [4], [], [10**9, 4]])
    if kind == 3:
        good = to_message("obs", np.array([[1, np.nan, np.inf, 0]], np.float32))
    if kind == 4:
        good = to_message("obs", np.zeros((1, rng.randrange(5, 5000)), np.float32))
    if kind == 5:
        good.name = rng.choice(["", "obs/x", "o" * 5000])
    if kind == 6:
        return Question(kind=rng.choice(["atc", "x" * 9000]), columns=[good]).SerializeToString()
    return Question(kind="act", columns=[good, *[Column(name="x")] * rng.randrange(1, 300)]).SerializeToString()


def send_malformed(address: str, count: int, seconds: float) -> list[grpc.StatusCode]:
    """Spread over this time; returns how each was refused."""
    rng, codes = random.Random(1), []
    with grpc.insecure_channel(":".join(map(str, place(address))), options=[("grpc.enable_http_proxy", 0)]) as channel:
        call = channel.unary_unary(ASK)
        for _ in range(count):
            try:
                call(malformed(rng), timeout=10)
                codes.append(grpc.StatusCode.OK)
            except grpc.RpcError as error:
                codes.append(error.code())
            time.sleep(seconds / count)
    return codes


def send_noise(address: str, count: int, seconds: float) -> None:
    """Random bytes on sockets, half of them after a proper beginning."""
    rng = random.Random(2)
    for i in range(count):
        with suppress(OSError), socket.create_connection(place(address), timeout=5) as own:
            own.sendall((PREFACE + frame(4, 0, 0, b"") if i % 2 else b"") + rng.randbytes(rng.randrange(1, 4000)))
        time.sleep(seconds / count)


# --- HTTP/2 by hand ---


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def opening(path: str = ASK) -> bytes:
    """A connection and the headers of a call on it; its message is to follow."""
    headers = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "x", "te": "trailers"}
    literals = [(name, value) for name, value in {**headers, "content-type": "application/grpc"}.items()]
    packed = b"".join(b"\0" + bytes([len(n)]) + n.encode() + bytes([len(v)]) + v.encode() for n, v in literals)
    return PREFACE + frame(4, 0, 0, b"") + frame(1, 4, 1, packed)


def message(body: bytes) -> bytes:
    """A message with its length before it."""
    return b"\0" + struct.pack(">I", len(body)) + body


class Slow:
    """Callers that send one byte a second: half of them never get through a connection's beginning, the others have
    begun a call."""

    def __init__(self, address: str, count: int) -> None:
        self._sockets = [socket.create_connection(place(address), timeout=5) for _ in range(count)]
        self._texts = [PREFACE] * count
        for i in range(0, count, 2):
            self._sockets[i].sendall(opening())
            self._texts[i] = frame(0, 1, 1, message(bytes(100)))
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._trickle)
        self._thread.start()

    def _trickle(self) -> None:
        for at in range(len(PREFACE)):
            for own, text in zip(self._sockets, self._texts, strict=True):
                with suppress(OSError):  # the server may have hung up
                    own.send(text[at : at + 1])
            if self._over.wait(1):
                return

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        for own in self._sockets:
            own.close()


def drop(address: str, count: int, seconds: float) -> None:
    """Calls that are hung up on: in the midst of the message, or when all of it is sent, with or without a farewell."""
    body = message(Question(kind="act", columns=[to_message("obs", GOOD["obs"])]).SerializeToString())
    for i in range(count):
        whole = opening() + frame(0, 1, 1, body)
        with suppress(OSError), socket.create_connection(place(address), timeout=5) as own:
            if i % 3:
                own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            own.sendall(whole if i % 2 else whole[: len(whole) - 20])
            time.sleep(0.001 * (i % 4))
        time.sleep(seconds / count)


if __name__ == "__main__":
    serve() if sys.argv[1] == "serve" else ask(sys.argv[2])
