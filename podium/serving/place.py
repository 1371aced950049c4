"""Where a server may listen: on the loopback interface, and elsewhere with a token alone."""

from __future__ import annotations

import ipaddress

from podium.core.errors import UsageError


def check_place(host: str, port: int, token: str | None) -> None:
    """Refuse to listen for other machines without a token, and tokens that no header can carry."""
    if not 0 <= port < 2**16:
        raise UsageError(f"port is {port}, expected 0 (any that is free) to 65535")
    if token is not None and (not token or not token.isascii() or not token.isprintable() or " " in token):
        raise UsageError("the token is empty or holds more than printable ASCII without spaces")
    if token is None and not is_loopback(host):
        raise UsageError(f"{host} is not the loopback interface (127.0.0.1), and listening elsewhere needs a token")


def bracketed(host: str) -> str:
    """The host as it stands before a port."""
    return f"[{host}]" if ":" in host else host


def is_loopback(host: str) -> bool:
    """Whether nobody but this machine can reach it."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
