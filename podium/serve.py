"""The command `podium serve`: a run's policy answers over gRPC until a signal, and follows the run if it is told to."""

from __future__ import annotations

import os
import sys
import time
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from podium.core.errors import PodiumError, UsageError
from podium.run import remote
from podium.run.folder import to_json
from podium.run.signals import Signals
from podium.runs import for_people, json_alone
from podium.serving.desk import Desk
from podium.serving.place import check_place
from podium.serving.policy import Served
from podium.serving.settle import settle

LOOK_S = 0.25
"""How often a run is looked at for another checkpoint, and this process for a signal."""


@dataclass(frozen=True)
class ServeRequest:
    """What `podium serve` was asked for."""

    folder: str
    checkpoint: str = "latest"
    host: str = "127.0.0.1"
    port: int = 0
    token: str | None = None
    token_file: str | None = None
    max_batch: int = 256
    max_wait_ms: float = 0.0
    follow: bool = False


def serve_command(request: ServeRequest, as_json: bool) -> int:
    """Answer until SIGINT or SIGTERM; then say what was done, and end as the shell expects of that signal."""
    from podium.serving.transports.grpc import GrpcTransport

    token = _token(request)
    check_place(request.host, request.port, token)
    if request.follow and remote.is_remote(request.folder):
        raise UsageError(f"--follow needs a run's folder on this machine, and {request.folder} is an address")
    with Signals() as caught:
        with json_alone() if as_json else for_people():
            checkpoint = Checkpoint(request.folder, request.checkpoint)
            served = checkpoint.served
        server = served.server(request.max_batch, request.max_wait_ms / 1000)
        with ExitStack() as stack:
            desk = stack.enter_context(closing(Desk(server)))
            transport = GrpcTransport(desk, request.host, request.port, token, spaces=served.spaces)
            stack.callback(transport.close)
            settle()
            _print_address(request, transport.address, served.version, as_json)
            while caught.pending is None:
                time.sleep(LOOK_S)
                newer = checkpoint.newer() if request.follow else None
                if newer is not None:
                    desk.swap(newer.functions(), newer.version)
    stats = {**server.stats.to_json(), "version": server.version}
    print(to_json(stats) if as_json else "\n".join(_lines(stats)), flush=True)
    return 128 + caught.pending


class Checkpoint:
    """A run's checkpoint of some name, which may come to be another one."""

    def __init__(self, folder: str, name: str) -> None:
        from podium import api

        self._folder, self._name = api.local(folder), name
        self._seen = self._stamp()
        self.served = self._load()

    def _load(self) -> Served:
        """The policy as it can be asked."""
        from podium import api

        player = api.load(self._folder, self._name)
        return Served(player.policy, player.observation_space, player.action_space, player.bounds)

    def newer(self) -> Served | None:
        """The policy of another checkpoint than the last one, or None. One that can't be read is told and passed over."""
        stamp = self._stamp()
        if stamp is None or stamp == self._seen:
            return None
        self._seen = stamp
        try:
            served = self._load()
            if not served.takes_the_same(self.served):
                raise UsageError("it is another run's, with other spaces")
            return served
        except (PodiumError, OSError) as error:
            print(f"podium: {self._name} of {self._folder} is passed over: {error}", file=sys.stderr, flush=True)
            return None

    def _stamp(self) -> tuple[str, int] | None:
        """What tells a checkpoint from one that takes its name."""
        place = self._folder / "checkpoints" / self._name
        try:
            return os.path.realpath(place), os.stat(place / "manifest.json").st_mtime_ns
        except OSError:  # just being replaced, or not there yet
            return None


def _token(request: ServeRequest) -> str | None:
    if request.token_file is None:
        return request.token
    if request.token is not None:
        raise UsageError("--token and --token-file can't go together")
    try:
        return Path(request.token_file).read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        raise UsageError(f"can't read --token-file {request.token_file}: {error}") from None


def _print_address(request: ServeRequest, address: str, version: int, as_json: bool) -> None:
    if as_json:
        print(to_json({"address": address, "version": version, "pid": os.getpid()}), flush=True)
    else:
        print(f"{request.folder} {request.checkpoint} (version {version}) answers at {address}", flush=True)


def _lines(stats: dict[str, Any]) -> list[str]:
    """What was done, for people."""
    latency, batch = stats["latency_s"], stats["batch_rows"]
    lines = [
        f"{stats['requests']:,} requests with {stats['rows']:,} rows in {stats['passes']:,} passes; "
        f"{stats['refused']:,} refused, {stats['failed']:,} failed; version {stats['version']}"
    ]
    if stats["passes"]:
        lines += [
            "  latency  " + "  ".join(f"{name} {1000 * value:.2f} ms" for name, value in latency.items()),
            "  rows     " + "  ".join(f"{name} {value:.0f}" for name, value in batch.items()) + " in a pass",
            f"  queue    {stats['deepest_queue']:,} at the deepest",
        ]
    return lines
