"""A client for an address, by its scheme."""

from __future__ import annotations

from podium.core.errors import UsageError, known_names
from podium.serving.base import Client

SCHEMES = ("grpc",)


def connect(address: str, token: str | None = None) -> Client:
    """A client of the server at an address as it printed it, such as `grpc:127.0.0.1:5001`."""
    scheme, colon, place = address.partition(":")
    if scheme not in SCHEMES or not colon or not place:
        raise UsageError(f"the address is {address!r}, expected SCHEME:PLACE{known_names(scheme, SCHEMES)}")
    from podium.serving.transports.grpc import GrpcClient

    return GrpcClient(address, token)
