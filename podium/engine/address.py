"""The address of a running cluster: what it looks like, and whether somebody is there that may be one."""

from __future__ import annotations

import os
import socket

from podium.core.errors import UsageError

CONNECT_S, ANSWER_S = 1.0, 5.0
SETTINGS = 4
GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, SETTINGS, 0, 0, 0, 0, 0])
"""How HTTP/2, which a cluster's head speaks, begins; the answer is a frame of settings too."""


def check_listening(address: str) -> None:
    """Refuse what is no address, and one where nothing or something else listens: who attaches would try for minutes.
    `auto` is looked for by who attaches."""
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or "://" in address:
        raise UsageError(
            f"--address is {address!r}, expected host:port of a cluster's head (ray start prints it), or auto"
        )
    try:
        with socket.create_connection((host, int(port)), CONNECT_S) as connection:
            greeted = os.environ.get("RAY_USE_TLS", "0") != "0" or _greets(connection)
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or error
        raise UsageError(f"--address {address}: nothing listens there ({why})") from None
    if not greeted:
        raise UsageError(f"--address {address}: what listens there is no Ray cluster")


def _greets(connection: socket.socket) -> bool:
    connection.settimeout(ANSWER_S)
    answer = b""
    try:
        connection.sendall(GREETING)
        while len(answer) < 4 and (more := connection.recv(4 - len(answer))):
            answer += more
    except OSError:
        return False
    return answer[3:] == bytes([SETTINGS])
