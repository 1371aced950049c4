"""A client for an address, by its scheme."""

from __future__ import annotations

from podium.core.errors import UsageError
from podium.serving.base import Client


def connect(address: str, token: str | None = None) -> Client:
    """A client of the server at an address as it printed it, such as `grpc:127.0.0.1:5001`, or `shm:...` here."""
    scheme, _, place = address.partition(":")
    if not place or scheme not in ("grpc", "shm"):
        raise UsageError(f"the address is {address!r}, expected one such as grpc:127.0.0.1:5001 or shm:NAME")
    if scheme == "grpc":
        from podium.serving.transports.grpc import GrpcClient

        return GrpcClient(address, token)
    from podium.serving.transports.shm import ShmClient

    if token is not None:
        raise UsageError(f"{address} takes no token: whoever may open the memory may ask")
    return ShmClient(address)
