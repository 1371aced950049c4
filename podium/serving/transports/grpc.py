"""The transport over gRPC, for callers in any language: one thread takes all calls, and those that come together share passes."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import threading
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from functools import partial
from time import monotonic
from typing import Any

from podium.core.errors import CallTimedOut, MissingExtra, PodiumError, UsageError
from podium.core.spaces import Columns
from podium.run.folder import to_json
from podium.serving.base import WAIT_S, Answer, ServerGone
from podium.serving.desk import Desk
from podium.serving.place import bracketed, check_place
from podium.serving.server import BadRequest, Reply, Request

try:
    import grpc
    from google.protobuf.message import DecodeError
    from grpc_health.v1 import health, health_pb2, health_pb2_grpc
    from grpc_reflection.v1alpha import reflection

    from podium.serving.protocol import podium_pb2 as messages
    from podium.serving.protocol.columns import from_messages, rows_in, to_messages
except ModuleNotFoundError:
    raise MissingExtra("serving over gRPC", "serve") from None

SCHEME = "grpc:"
SERVICE = "podium.v1.Inference"
MAX_MESSAGE_BYTES = 2**25
MAX_CONNECTIONS = 1024
MAX_CALLS = 4096
"""Calls that are under way at once, over all connections."""
CLOSE_S = 2.0

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
            interceptors=[_TokenCheck(token)] if token is not None else [],
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
        door.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        health_pb2_grpc.add_HealthServicer_to_server(_healthy(), door)
        reflection.enable_server_reflection((SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME), door)

    async def ask(self, data: bytes, context: Context) -> bytes:
        arrived = monotonic()
        try:
            question = messages.Question.FromString(data)
            columns = from_messages(question.columns)
            rows = rows_in(columns)
        except DecodeError:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the request is no Question of podium.proto")
        except BadRequest as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        reply = await self._reply(columns, rows, question.kind or "best", arrived)
        if reply.error is not None:
            await context.abort(_status(reply.error), _line(reply.error))
        return messages.Answer(columns=to_messages(reply.columns), version=reply.version).SerializeToString()

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


class _TokenCheck(grpc.aio.ServerInterceptor):
    """Lets only those calls through that carry the token."""

    def __init__(self, token: str) -> None:
        self._expected = f"Bearer {token}".encode()
        # A stream's handler refuses calls of every form, without waiting for what a caller would send.
        self._refuse = grpc.stream_stream_rpc_method_handler(_unauthenticated)

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], call: Any) -> Any:
        given = [value for key, value in call.invocation_metadata if key == "authorization"]
        if len(given) == 1 and hmac.compare_digest(_bytes(given[0]), self._expected):
            return await continuation(call)
        return self._refuse


async def _unauthenticated(requests: Any, context: Context) -> None:
    await context.abort(grpc.StatusCode.UNAUTHENTICATED, "expected the metadata `authorization: Bearer TOKEN`")


class GrpcClient:
    """One program's way to a server; several threads may ask through it."""

    def __init__(self, address: str, token: str | None = None, *, max_message_bytes: int = MAX_MESSAGE_BYTES) -> None:
        self.address = address
        self._channel = grpc.insecure_channel(
            address.removeprefix(SCHEME), options=_listed(CLIENT_OPTIONS, max_message_bytes)
        )
        self._metadata = (("authorization", f"Bearer {token}"),) if token is not None else None
        self._ask = self._call("Ask", messages.Answer)
        self._describe = self._call("Describe", messages.Description)

    def ask(self, columns: Columns, kind: str = "act", timeout: float = WAIT_S) -> Answer:
        question = messages.Question(kind=kind, columns=to_messages(columns))
        answer = self._send(self._ask, question, timeout)
        return Answer(from_messages(answer.columns), answer.version)

    def describe(self, timeout: float = WAIT_S) -> dict[str, Any]:
        """What can be asked: `kinds` with their columns, the spaces, and the `version` that answers."""
        found = self._send(self._describe, messages.DescribeRequest(), timeout)
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
        self._channel.close()

    def _call(self, name: str, answer: Any) -> Any:
        return self._channel.unary_unary(f"/{SERVICE}/{name}", response_deserializer=answer.FromString)

    def _send(self, call: Any, message: Any, timeout: float) -> Any:
        try:
            return call(message.SerializeToString(), timeout=timeout, metadata=self._metadata)
        except grpc.RpcError as error:
            raise self._error(error, timeout) from None
        except ValueError:  # the channel is closed
            raise ServerGone(f"{self.address}: this client is closed") from None

    def _error(self, error: Any, timeout: float) -> PodiumError:
        code, line = error.code(), error.details()
        if code in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED):
            return BadRequest(line)
        if code == grpc.StatusCode.DEADLINE_EXCEEDED:
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


def _status(error: Exception) -> Any:
    if isinstance(error, BadRequest):
        return grpc.StatusCode.INVALID_ARGUMENT
    return grpc.StatusCode.UNAVAILABLE if isinstance(error, ServerGone) else grpc.StatusCode.INTERNAL


def _line(error: Exception) -> str:
    text = str(error) if isinstance(error, PodiumError) else f"{type(error).__name__}: {error}"
    return " ".join(text.split())[:1000]


def _bytes(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode()
