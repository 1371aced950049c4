"""The transport over gRPC, for callers in any language: one thread takes all calls, and those that come together share passes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from time import monotonic
from typing import Any

from podium.core.errors import CallTimedOut, MissingExtra, PodiumError, UsageError
from podium.core.spaces import Columns
from podium.run.folder import to_json
from podium.serving.base import WAIT_S, Answer, ServerGone
from podium.serving.desk import Desk
from podium.serving.guard import Guard
from podium.serving.place import bracketed, check_place
from podium.serving.server import BadRequest, Reply, Request

try:
    import grpc
    from google.protobuf.message import DecodeError
    from grpc_health.v1 import health, health_pb2, health_pb2_grpc
    from grpc_reflection.v1alpha import reflection

    from podium.serving.protocol import podium_pb2 as messages
    from podium.serving.protocol.columns import from_messages, rows_in, to_messages
    from podium.serving.transports.token import TokenCheck
except ModuleNotFoundError:
    raise MissingExtra("serving over gRPC", "serve") from None

SCHEME = "grpc:"
SERVICE = "podium.v1.Inference"
MAX_MESSAGE_BYTES = 2**25
MAX_CONNECTIONS = 1024
MAX_CALLS = 4096
"""Calls that are under way at once, over all connections."""
CLOSE_S = 0.5
"""How long those who are being answered may take to hear it."""

# A peer has seconds to say hello, and to answer when it is asked whether it is still there.
SERVER_OPTIONS = {
    "grpc.so_reuseport": 0,
    "grpc.server_handshake_timeout_ms": 5_000,
    "grpc.max_allowed_incoming_connections": MAX_CONNECTIONS,
    "grpc.max_concurrent_streams": 256,
    "grpc.keepalive_time_ms": 20_000,
    "grpc.keepalive_timeout_ms": 10_000,
    "grpc.keepalive_permit_without_calls": 1,
    "grpc.http2.min_ping_interval_without_data_ms": 5_000,
}
# A server that comes back is found again within a second or two; a proxy of the environment is for other addresses.
CLIENT_OPTIONS = {
    "grpc.enable_http_proxy": 0,
    "grpc.enable_retries": 0,
    "grpc.initial_reconnect_backoff_ms": 100,
    "grpc.max_reconnect_backoff_ms": 2_000,
}
# What the call of a single question ends with where it can't be answered.
STATUS = {
    messages.Problem.REFUSED: grpc.StatusCode.INVALID_ARGUMENT,
    messages.Problem.FAILED: grpc.StatusCode.INTERNAL,
    messages.Problem.CLOSING: grpc.StatusCode.UNAVAILABLE,
}
Context = Any


class GrpcTransport:
    """A desk's door on a port: the loopback interface's, unless there is a token that every call must carry.

    `spaces` are those that `Describe` tells, as JSON.
    """

    def __init__(
        self,
        desk: Desk,
        host: str = "127.0.0.1",
        port: int = 0,
        token: str | None = None,
        *,
        spaces: tuple[Mapping[str, Any], Mapping[str, Any]] | None = None,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
    ) -> None:
        check_place(host, port, token)
        self._loop = asyncio.new_event_loop()
        self._closing = asyncio.Event()
        self._service = _Service(desk, self._loop, spaces)
        self._options = _listed(SERVER_OPTIONS, max_message_bytes)
        started: Future[int] = Future()
        self._thread = threading.Thread(
            target=self._run, args=(f"{bracketed(host)}:{port}", token, started), name="grpc", daemon=True
        )
        self._thread.start()
        self._address = f"{SCHEME}{bracketed(host)}:{started.result()}"

    @property
    def address(self) -> str:
        return self._address

    def close(self) -> None:
        """Who waits is told that the server is gone."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._closing.set)
            self._thread.join(2 * CLOSE_S)

    def _run(self, place: str, token: str | None, started: Future[int]) -> None:
        try:
            self._loop.run_until_complete(self._serve(place, token, started))
        except BaseException as error:
            if started.done():
                raise
            started.set_exception(error)
        finally:
            self._loop.close()

    async def _serve(self, place: str, token: str | None, started: Future[int]) -> None:
        door = grpc.aio.server(
            interceptors=[TokenCheck(token)] if token is not None else [],
            options=self._options,
            maximum_concurrent_rpcs=MAX_CALLS,
        )
        self._service.add_to(door)
        try:
            port = door.add_insecure_port(place)
        except RuntimeError:
            raise UsageError(
                f"can't listen on {place}: the port is taken, or the address is not this machine's"
            ) from None
        await door.start()
        started.set_result(port)
        await self._closing.wait()
        self._service.close()
        await door.stop(CLOSE_S)


class _Service:
    """Answers calls on the event loop. What has arrived in one round of the loop goes to the desk together."""

    def __init__(
        self,
        desk: Desk,
        loop: asyncio.AbstractEventLoop,
        spaces: tuple[Mapping[str, Any], Mapping[str, Any]] | None,
    ) -> None:
        self._desk, self._loop, self._spaces = desk, loop, spaces
        self._arrived: list[Request] = []
        self._waiting: set[asyncio.Future[Reply]] = set()
        self._thread = 0

    def add_to(self, door: Any) -> None:
        """Make the calls known, and beside them the health check and the reflection of what can be called."""
        self._thread = threading.get_ident()
        methods = {"Ask": self.ask, "Describe": self.describe}
        handlers = {name: grpc.unary_unary_rpc_method_handler(method) for name, method in methods.items()}
        handlers["Converse"] = grpc.stream_stream_rpc_method_handler(self.converse)
        door.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        health_pb2_grpc.add_HealthServicer_to_server(_healthy(), door)
        reflection.enable_server_reflection((SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME), door)

    async def ask(self, data: bytes, context: Context) -> bytes:
        reply = await self._answered(data)
        if reply.error is not None:
            await context.abort(STATUS[_kind(reply.error)], _line(reply.error))
        return _encoded(reply)

    async def converse(self, questions: Any, context: Context) -> None:
        while (data := await context.read()) is not grpc.aio.EOF:
            await context.write(_encoded(await self._answered(data)))

    async def _answered(self, data: bytes) -> Reply:
        arrived = monotonic()
        try:
            question = messages.Question.FromString(data)
            columns = from_messages(question.columns)
            rows = rows_in(columns)
        except DecodeError:
            return Reply(None, {}, 0, BadRequest("the request is no Question of podium.proto"))
        except BadRequest as error:
            return Reply(None, {}, 0, error)
        return await self._reply(columns, rows, question.kind or "best", arrived)

    async def _reply(self, columns: Columns, rows: int, kind: str, arrived: float) -> Reply:
        future: asyncio.Future[Reply] = self._loop.create_future()
        deliver = partial(self._deliver, future)
        if not self._arrived:
            self._loop.call_soon(self._post)
        self._arrived.append(Request(columns, rows, kind, deliver, arrived))
        self._waiting.add(future)
        try:
            return await future
        except asyncio.CancelledError:  # the caller is gone, or its time is over
            self._arrived = [request for request in self._arrived if request.tag is not deliver]
            self._desk.forget(deliver)
            raise
        finally:
            self._waiting.discard(future)

    def _post(self) -> None:
        arrived, self._arrived = self._arrived, []
        self._desk.post(arrived)

    def _deliver(self, future: asyncio.Future[Reply], reply: Reply) -> None:
        if threading.get_ident() == self._thread:
            _settle(future, reply)
            return
        with contextlib.suppress(RuntimeError):  # the loop has ended, and with it whoever waited there
            self._loop.call_soon_threadsafe(_settle, future, reply)

    async def describe(self, data: bytes, context: Context) -> bytes:
        server = self._desk.server
        observed, acted = self._spaces or ("", "")
        return messages.Description(
            functions=[self._function(kind) for kind in server.functions],
            version=server.version,
            observation_space=to_json(observed) if observed else "",
            action_space=to_json(acted) if acted else "",
        ).SerializeToString()

    def _function(self, kind: str) -> Any:
        server = self._desk.server
        layout = (server.layouts or {}).get(kind, {})
        columns = [messages.Column(name=name, dtype=dtype.name, shape=shape) for name, (shape, dtype) in layout.items()]
        return messages.Function(kind=kind, columns=columns, optional=server.defaults.get(kind, {}))

    def close(self) -> None:
        """Tell those who wait."""
        for future in self._waiting:
            _settle(future, Reply(None, {}, 0, ServerGone("the server is closing")))


def _settle(future: asyncio.Future[Reply], reply: Reply) -> None:
    if not future.done():
        future.set_result(reply)


def _healthy() -> Any:
    """The health check's service, which says that this one serves."""
    checks = health.aio.HealthServicer()
    checks._server_status[SERVICE] = health_pb2.HealthCheckResponse.SERVING
    return checks


class GrpcClient:
    """One program's way to a server, for one thread at a time: a conversation that is begun anew where it has ended."""

    def __init__(self, address: str, token: str | None = None, *, max_message_bytes: int = MAX_MESSAGE_BYTES) -> None:
        self.address = address
        self._channel = grpc.insecure_channel(
            address.removeprefix(SCHEME), options=_listed(CLIENT_OPTIONS, max_message_bytes)
        )
        self._metadata = (("authorization", f"Bearer {token}"),) if token is not None else None
        self._converse = self._channel.stream_stream(f"/{SERVICE}/Converse")
        self._describe = self._channel.unary_unary(
            f"/{SERVICE}/Describe", response_deserializer=messages.Description.FromString
        )
        self._questions: SimpleQueue[bytes | None] = SimpleQueue()
        self._answers: Any = None
        self._guard = Guard(self._give_up)

    def ask(self, columns: Columns, kind: str = "act", timeout: float = WAIT_S) -> Answer:
        question = messages.Question(kind=kind, columns=to_messages(columns)).SerializeToString()
        with self._errors(timeout):
            if self._answers is None:
                self._questions = SimpleQueue()
                self._answers = self._converse(iter(self._questions.get, None), metadata=self._metadata)
            self._guard.begin(monotonic() + timeout)
            self._questions.put(question)
            try:
                answer = messages.Answer.FromString(next(self._answers))
            except StopIteration:
                self._give_up()
                raise ServerGone(f"{self.address} has ended the conversation") from None
            except BaseException:
                self._give_up()
                raise
            finally:
                self._guard.end()
        if answer.HasField("problem"):
            raise self._problem(answer.problem)
        return Answer(from_messages(answer.columns), answer.version)

    def _give_up(self) -> None:
        """End the conversation; the answer that is still to come would be taken for the next one."""
        answers, self._answers = self._answers, None
        if answers is not None:
            self._questions.put(None)
            answers.cancel()

    def describe(self, timeout: float = WAIT_S) -> dict[str, Any]:
        """What can be asked: `kinds` with their columns, the spaces, and the `version` that answers."""
        with self._errors(timeout):
            request = messages.DescribeRequest().SerializeToString()
            found = self._describe(request, timeout=timeout, metadata=self._metadata)
        return {
            "kinds": {
                function.kind: {
                    column.name: {
                        "shape": list(column.shape),
                        "dtype": column.dtype,
                        "optional": column.name in function.optional,
                    }
                    for column in function.columns
                }
                for function in found.functions
            },
            "version": found.version,
            "observation_space": json.loads(found.observation_space) if found.observation_space else None,
            "action_space": json.loads(found.action_space) if found.action_space else None,
        }

    def close(self) -> None:
        self._guard.close()
        self._give_up()
        self._channel.close()

    @contextlib.contextmanager
    def _errors(self, timeout: float) -> Iterator[None]:
        try:
            yield
        except grpc.RpcError as error:
            raise self._error(error, timeout) from None
        except ValueError:  # the channel is closed
            raise ServerGone(f"{self.address}: this client is closed") from None

    def _problem(self, problem: Any) -> PodiumError:
        if problem.kind == messages.Problem.REFUSED:
            return BadRequest(problem.line)
        if problem.kind == messages.Problem.CLOSING:
            return ServerGone(f"{self.address} is gone: {problem.line}")
        return PodiumError(f"{self.address}: {problem.line}")

    def _error(self, error: Any, timeout: float) -> PodiumError:
        code, line = error.code(), error.details()
        if code in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED):
            return BadRequest(line)
        if code == grpc.StatusCode.DEADLINE_EXCEEDED or self._guard.expired:
            return CallTimedOut(f"{self.address} has not answered within {timeout:g} s")
        if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
            return ServerGone(f"{self.address} is gone: {line}")
        if code == grpc.StatusCode.UNAUTHENTICATED:
            return UsageError(f"{self.address} wants another token: {line}")
        if code == grpc.StatusCode.UNIMPLEMENTED:
            return UsageError(f"{self.address} serves no {SERVICE}")
        return PodiumError(f"{self.address}: {line}")


def _listed(options: Mapping[str, int], max_message_bytes: int) -> list[tuple[str, int]]:
    sizes = {"grpc.max_receive_message_length": max_message_bytes, "grpc.max_send_message_length": max_message_bytes}
    return [*options.items(), *sizes.items()]


def _kind(error: Exception) -> Any:
    if isinstance(error, BadRequest):
        return messages.Problem.REFUSED
    return messages.Problem.CLOSING if isinstance(error, ServerGone) else messages.Problem.FAILED


def _encoded(reply: Reply) -> bytes:
    if reply.error is not None:
        problem = messages.Problem(kind=_kind(reply.error), line=_line(reply.error))
        return messages.Answer(problem=problem).SerializeToString()
    return messages.Answer(columns=to_messages(reply.columns), version=reply.version).SerializeToString()


def _line(error: Exception) -> str:
    text = str(error) if isinstance(error, PodiumError) else f"{type(error).__name__}: {error}"
    return " ".join(text.split())[:1000]
