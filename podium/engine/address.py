"""The address of a running cluster: what it looks like, and whether somebody is there."""

from __future__ import annotations

import socket

from podium.core.errors import UsageError

CONNECT_S = 1.0


def check_listening(address: str) -> None:
    """Refuse what is no address, and one where nothing listens. `auto` is looked for by who attaches."""
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or "://" in address:
        raise UsageError(
            f"--address is {address!r}, expected host:port of a cluster's head (ray start prints it), or auto"
        )
    try:
        socket.create_connection((host, int(port)), CONNECT_S).close()
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or error
        raise UsageError(f"--address {address}: nothing listens there ({why})") from None
