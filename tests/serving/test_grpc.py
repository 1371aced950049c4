"""The transport over gRPC: answers, errors by their type, deadlines, tokens, health, reflection, sizes, and its end."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

import podium
from podium.core.errors import CallTimedOut, PodiumError, UsageError
from podium.core.spaces import Columns
from podium.serving.base import ServerGone
from podium.serving.desk import Desk
from podium.serving.protocol.columns import DTYPES, from_message, from_messages, rows_in, to_message, to_messages
from podium.serving.protocol.podium_pb2 import Column
from podium.serving.server import BadRequest, InferenceServer
from podium.serving.transports.grpc import SCHEME, GrpcClient, GrpcTransport
from tests.processes import listening_beyond_loopback, process

LAYOUT = {"obs": ((2,), np.dtype(np.float32))}


def twice(columns: Columns) -> Columns:
    return {"action": columns["obs"] * 2}


def obs(*values: float) -> Columns:
    return {"obs": np.array([[value, -value] for value in values], np.float32)}


@contextmanager
def serving(
    function: Callable[[Columns], Columns] = twice, token: str | None = None, limit: int = 2**20, **settings: Any
) -> Iterator[GrpcTransport]:
    server = InferenceServer({"act": function}, layouts={"act": LAYOUT}, **settings)
    with closing(Desk(server)) as desk, closing(GrpcTransport(desk, token=token, max_message_bytes=limit)) as transport:
        yield transport


@contextmanager
def client(transport: GrpcTransport, token: str | None = None) -> Iterator[GrpcClient]:
    with closing(GrpcClient(transport.address, token)) as own:
        yield own


def bare(transport: GrpcTransport) -> Any:
    """A channel that knows nothing of Podium."""
    return grpc.insecure_channel(transport.address.removeprefix(SCHEME), options=[("grpc.enable_http_proxy", 0)])


def in_threads(count: int, work: Callable[[int], None]) -> None:
    errors: list[BaseException] = []

    def run(index: int) -> None:
        try:
            work(index)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    if errors:
        raise errors[0]


def in_background(work: Callable[[], Any]) -> tuple[list[BaseException], threading.Thread]:
    """The thread that works, and what it raises."""
    found: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return found, thread


# --- columns ---


@pytest.mark.parametrize("dtype", sorted(DTYPES))
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 4), (2, 3, 1)])
def test_columns_come_back_as_they_were(dtype: str, shape: tuple[int, ...]) -> None:
    given = np.random.default_rng(0).integers(0, 2 if dtype == "bool" else 100, shape).astype(dtype)
    found = from_message(Column.FromString(to_message("x", given).SerializeToString()))
    assert found.dtype == given.dtype and found.dtype.isnative and found.flags.writeable
    assert found.shape == shape and np.array_equal(found, given)


def test_columns_of_any_layout_in_memory_are_sent_in_order() -> None:
    given = np.arange(12, dtype=np.int32).reshape(3, 4)
    for view in (given.T, given[::2, ::-1], given.astype(">i4")):
        assert np.array_equal(from_message(to_message("x", view)), view)
    with pytest.raises(BadRequest, match="x is float16, expected one of bool, int8"):
        to_message("x", np.zeros(2, np.float16))


WRONG: list[tuple[Any, str]] = [
    (
        Column(name="x", dtype="float23", shape=[1]),
        "x has the dtype 'float23', which there isn't; did you mean 'float32'",
    ),
    (Column(name="x", dtype="object", shape=[1], data=bytes(8)), "x has the dtype 'object'"),
    (Column(name="x", dtype="<f4", shape=[1], data=bytes(4)), "x has the dtype '<f4'"),
    (Column(name="x", dtype="float32", shape=[2], data=bytes(4)), r"x holds 4 bytes, expected 8 for float32 of \[2\]"),
    (Column(name="x", dtype="int8", shape=[2**62, 2**62, 4]), "x holds 0 bytes, expected 8507059"),
    (
        Column(name="x", dtype="int8", shape=[-1, -4], data=bytes(4)),
        r"x has the shape \[-1, -4\], expected numbers from 0",
    ),
    (Column(name="x", dtype="int8", shape=[1] * 20, data=bytes(1)), "x has 20 axes, expected at most 16"),
    (Column(name="x", dtype="bool", shape=[2], data=b"\1\2"), "x is bool and holds 2, expected 0 or 1"),
    (Column(name="", dtype="int8", shape=[1], data=bytes(1)), "a column's name has 0 letters"),
    (Column(name="x" * 999, dtype="int8", shape=[1], data=bytes(1)), "a column's name has 999 letters"),
]


@pytest.mark.parametrize(("message", "line"), WRONG, ids=[line for _, line in WRONG])
def test_a_column_that_is_not_what_it_says_is_refused(message: Any, line: str) -> None:
    with pytest.raises(BadRequest, match=line):
        from_message(message)


def test_columns_belong_together() -> None:
    one = Column(name="x", dtype="int8", shape=[1], data=bytes(1))
    with pytest.raises(BadRequest, match="column 'x' comes twice"):
        from_messages([one, one])
    with pytest.raises(BadRequest, match="more than 256 columns"):
        from_messages([Column(name=f"{i}", dtype="int8", shape=[0]) for i in range(300)])
    for columns, line in (
        ({}, "no columns"),
        ({"x": np.zeros(())}, "x has no axes"),
        ({"x": np.zeros(2), "y": np.zeros((3, 1))}, "columns of different lengths: y has 3, those before it 2"),
    ):
        with pytest.raises(BadRequest, match=line):
            rows_in(columns)
    assert rows_in({"x": np.zeros((3, 2)), "y": np.zeros(3)}) == 3 and to_messages({}) == []


# --- asking ---


def test_rows_are_answered_with_rows() -> None:
    with serving(version=7) as transport, closing(podium.connect(transport.address)) as own:
        answer = own.ask(obs(1, 2, 3))
        assert answer.version == 7 and answer.columns["action"].dtype == np.float32
        assert answer.columns["action"].tolist() == [[2, -2], [4, -4], [6, -6]]


def test_callers_share_passes_and_each_gets_its_own_rows() -> None:
    with serving(max_batch=4, max_wait_s=None) as transport:

        def work(index: int) -> None:
            with client(transport) as own:
                for i in range(50):
                    assert own.ask(obs(1000 * index + i)).columns["action"][0, 0] == 2 * (1000 * index + i)

        in_threads(4, work)
        stats = transport._service._desk.server.stats
        assert (stats.requests, stats.passes) == (200, 50)


def test_a_pass_falls_due_by_waiting_alone() -> None:
    with serving(max_batch=100, max_wait_s=0.1) as transport, client(transport) as own:
        own.ask(obs(1))
        began = time.monotonic()
        own.ask(obs(1))
        assert 0.09 <= time.monotonic() - began < 5


def test_errors_keep_their_meaning() -> None:
    def moody(columns: Columns) -> Columns:
        if (columns["obs"] > 8).any():
            raise ZeroDivisionError("too\nmuch")
        return twice(columns)

    with serving(moody) as transport, client(transport) as own:
        for columns, kind, line in (
            (obs(1), "atc", "nothing answers 'atc'; did you mean 'act'?"),
            ({"obs": np.zeros((1, 3), np.float32)}, "act", r"obs has shape \[1, 3\], expected \[1, 2\]"),
            (obs(float("nan")), "act", "obs holds NaN"),
            ({}, "act", "no columns, expected at least one"),
            ({"obs": np.zeros((2**19, 2), np.float32)}, "act", "larger than max"),
        ):
            with pytest.raises(BadRequest, match=line):
                own.ask(columns, kind)
        with pytest.raises(PodiumError, match="ZeroDivisionError: too much") as raised:
            own.ask(obs(9))
        assert type(raised.value) is PodiumError
        assert own.ask(obs(1)).columns["action"][0, 0] == 2, "it goes on"


def test_a_request_whose_time_is_over_is_forgotten() -> None:
    with serving(max_batch=2, max_wait_s=None) as transport, client(transport) as own:
        began = time.monotonic()
        with pytest.raises(CallTimedOut, match="has not answered within 0.2 s"):
            own.ask(obs(1), timeout=0.2)
        assert time.monotonic() - began < 5
        server = transport._service._desk.server
        limit = time.monotonic() + 5
        while server.waiting and time.monotonic() < limit:
            time.sleep(0.01)
        assert server.waiting == 0 and server.missing() == 2, "it completes nobody's pass"


def test_a_caller_that_hangs_up_is_forgotten() -> None:
    with serving(max_batch=2, max_wait_s=None) as transport:
        server = transport._service._desk.server
        with client(transport) as own:
            found, thread = in_background(lambda: own.ask(obs(1)))
            limit = time.monotonic() + 5
            while not server.waiting and time.monotonic() < limit:
                time.sleep(0.01)
            assert server.waiting == 1
        thread.join(5)
        assert isinstance(found[0], ServerGone)
        while server.waiting and time.monotonic() < limit:
            time.sleep(0.01)
        assert server.waiting == 0


def test_the_end_of_a_server_reaches_who_waits_and_who_comes_later() -> None:
    with ExitStack() as stack:
        transport = stack.enter_context(serving(max_batch=2, max_wait_s=None))
        own = stack.enter_context(client(transport))
        found, thread = in_background(lambda: own.ask(obs(1)))
        server = transport._service._desk.server
        while not server.waiting:
            time.sleep(0.01)
        began = time.monotonic()
        transport.close()
        thread.join(5)
        assert time.monotonic() - began < 3
        assert isinstance(found[0], ServerGone) and "the server is closing" in str(found[0])
        with pytest.raises(ServerGone, match="is gone"):
            own.ask(obs(1), timeout=5)
        transport.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "grpc"]


def test_where_nobody_is_the_client_says_so() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with closing(GrpcClient(f"grpc:127.0.0.1:{taken.getsockname()[1]}")) as own:
            with pytest.raises(ServerGone, match="is gone"):
                own.ask(obs(1), timeout=5)
    own.close()
    with pytest.raises(ServerGone, match="this client is closed"):
        own.ask(obs(1))


def test_addresses() -> None:
    for address in ("127.0.0.1:5001", "grpc", "grpc:", "http:x", ""):
        with pytest.raises(UsageError, match="expected one such as grpc:127.0.0.1:5001"):
            podium.connect(address)
    with pytest.raises(UsageError, match="takes no token"):
        podium.connect("shm:x", token="t")


# --- who may ---


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org"])
def test_beyond_loopback_there_must_be_a_token(host: str) -> None:
    with closing(Desk(InferenceServer({"act": twice}))) as desk:
        with pytest.raises(UsageError, match="is not the loopback interface"):
            GrpcTransport(desk, host)


@pytest.mark.parametrize("token", ["", "two words", "línea", "line\n"])
def test_a_token_is_what_a_header_can_carry(token: str) -> None:
    with closing(Desk(InferenceServer({"act": twice}))) as desk:
        with pytest.raises(UsageError, match="the token"):
            GrpcTransport(desk, token=token)


def test_without_being_told_it_listens_on_loopback_alone() -> None:
    with serving():
        own = process(os.getpid())
        assert own is not None and listening_beyond_loopback([own]) == []


def test_with_a_token_every_call_must_carry_it() -> None:
    with serving(token="s3cret") as transport:
        with client(transport, "s3cret") as own:
            assert own.ask(obs(1)).columns["action"][0, 0] == 2
            assert own.describe()["version"] == 0
        for token in (None, "s3cre", "s3cret2", "S3CRET"):
            with client(transport, token) as own:
                for call in (lambda own=own: own.ask(obs(1), timeout=5), lambda own=own: own.describe(5)):
                    with pytest.raises(
                        UsageError, match="wants another token: the token is missing or wrong: expected the metadata"
                    ):
                        call()
        with bare(transport) as channel:
            with pytest.raises(grpc.RpcError) as raised:
                health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=5)
            assert raised.value.code() == grpc.StatusCode.UNAUTHENTICATED
            stub = reflection_pb2_grpc.ServerReflectionStub(channel)
            request = reflection_pb2.ServerReflectionRequest(list_services="")
            with pytest.raises(grpc.RpcError) as raised:
                list(stub.ServerReflectionInfo(iter([request]), timeout=5))
            assert raised.value.code() == grpc.StatusCode.UNAUTHENTICATED


def test_a_port_that_is_taken_is_named() -> None:
    with serving() as transport, closing(Desk(InferenceServer({"act": twice}))) as desk:
        port = int(transport.address.rpartition(":")[2])
        with pytest.raises(UsageError, match=f"can't listen on 127.0.0.1:{port}: the port is taken"):
            GrpcTransport(desk, port=port)
        with pytest.raises(UsageError, match="port is 70000, expected 0"):
            GrpcTransport(desk, port=70000)


# --- what it says of itself ---


def test_health_and_reflection_answer_any_grpc_tool() -> None:
    with serving() as transport, bare(transport) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        for service in ("", "podium.v1.Inference"):
            found = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=5)
            assert found.status == health_pb2.HealthCheckResponse.SERVING
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        (answer,) = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(iter([request]), timeout=5)
        names = {service.name for service in answer.list_services_response.service}
        assert names == {"podium.v1.Inference", "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}


def test_what_can_be_asked_is_described() -> None:
    server = InferenceServer(
        {"act": twice},
        layouts={"act": {**LAYOUT, "mask": ((3,), np.dtype(bool))}},
        defaults={"act": {"mask": np.ones(3, bool)}},
        version=3,
    )
    spaces = ({"box": [[-np.inf], [1.0]], "shape": [1], "dtype": "<f4"}, {"discrete": 3, "start": 0})
    with closing(Desk(server)) as desk, closing(GrpcTransport(desk, spaces=spaces)) as transport:
        with client(transport) as own:
            assert own.describe() == {
                "kinds": {
                    "act": {
                        "obs": {"shape": [2], "dtype": "float32", "optional": False},
                        "mask": {"shape": [3], "dtype": "bool", "optional": True},
                    }
                },
                "version": 3,
                "observation_space": {"box": [[None], [1.0]], "shape": [1], "dtype": "<f4"},
                "action_space": {"discrete": 3, "start": 0},
            }


def test_another_service_is_told_from_podiums() -> None:
    from concurrent.futures import ThreadPoolExecutor

    other = grpc.server(ThreadPoolExecutor(1))
    port = other.add_insecure_port("127.0.0.1:0")
    other.start()
    with closing(GrpcClient(f"grpc:127.0.0.1:{port}")) as own, pytest.raises(UsageError, match=r"serves no podium\.v1"):
        own.ask(obs(1), timeout=5)
    other.stop(0)
