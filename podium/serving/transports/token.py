"""Lets only those gRPC calls through that carry the token."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable
from typing import Any

import grpc


class TokenCheck(grpc.aio.ServerInterceptor):
    """`free` is a service that may be called without it."""

    def __init__(self, token: str, free: str | None = None) -> None:
        self._expected = f"Bearer {token}".encode()
        self._free = None if free is None else f"/{free}/"
        # A stream's handler refuses calls of every form, without waiting for what a caller would send.
        self._refuse = grpc.stream_stream_rpc_method_handler(_unauthenticated)

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], call: Any) -> Any:
        given = [value for key, value in call.invocation_metadata if key == "authorization"]
        if len(given) == 1 and hmac.compare_digest(_bytes(given[0]), self._expected):
            return await continuation(call)
        if self._free is not None and call.method.startswith(self._free):
            return await continuation(call)
        return self._refuse


async def _unauthenticated(requests: Any, context: Any) -> None:
    line = "the token is missing or wrong: expected the metadata `authorization: Bearer TOKEN`"
    await context.abort(grpc.StatusCode.UNAUTHENTICATED, line)


def _bytes(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode()
