"""Collective reduction between processes, over torch.distributed's gloo: sums go in the order of the ranks."""

from __future__ import annotations

import socket
from datetime import timedelta
from typing import Any

import numpy as np

from podium.core.errors import GroupBroken
from podium.engine.local import mean_in_order

JOIN_S = 20.0
SMALL_BYTES = 1 << 16
"""Below this every rank gets everyone's array whole; above it each adds up a part of it for all."""


class Store:
    """Where a group's members find each other: rank 0 listens, on its node's address alone."""

    def __init__(self, host: str) -> None:
        self._socket = socket.create_server((host, 0))
        self.address = (host, int(self._socket.getsockname()[1]))

    def open(self, size: int) -> Any:
        from torch.distributed import TCPStore  # type: ignore[attr-defined]

        host, port = self.address
        wait = timedelta(seconds=JOIN_S)
        return TCPStore(host, port, size, True, wait, False, master_listen_fd=self._socket.detach())


class TorchReduce:
    """One rank of a group, for as long as its process lives; it waits for the others for `patience` seconds."""

    def __init__(
        self, rank: int, size: int, address: tuple[str, int], host: str, store: Store | None, patience: float
    ) -> None:
        from torch import distributed
        from torch.distributed import distributed_c10d

        self.rank, self.size = rank, size
        wait = timedelta(seconds=JOIN_S)
        lib: Any = distributed
        gloo = lib.ProcessGroupGloo
        options = gloo._Options()
        options._devices = [gloo.create_device(hostname=host)]
        options._timeout = wait
        try:
            self._store = store.open(size) if store is not None else lib.TCPStore(*address, size, False, wait, False)
            self._group = gloo(self._store, rank, size, options)
        except RuntimeError as error:
            raise GroupBroken(f"not every member of the group has come: {_first_line(error)}") from None
        options_of: Any = distributed_c10d
        self._gathering, self._exchanging = options_of.AllgatherOptions(), options_of.AllToAllOptions()
        for waiting in (self._gathering, self._exchanging):
            waiting.timeout = timedelta(seconds=patience)

    def __call__(self, values: np.ndarray) -> np.ndarray:
        try:
            return self._whole(values) if values.nbytes <= SMALL_BYTES else self._by_parts(values)
        except RuntimeError as error:
            raise GroupBroken(f"another member of the group is gone: {_first_line(error)}") from None

    def close(self) -> None:
        """Break the connections, so that nobody waits for this one."""
        self._group.abort()

    def _whole(self, values: np.ndarray) -> np.ndarray:
        return mean_in_order(self._gather(np.ascontiguousarray(values)))

    def _by_parts(self, values: np.ndarray) -> np.ndarray:
        import torch

        flat = values.reshape(-1)
        part = -(-flat.size // self.size)
        mine = torch.zeros(part * self.size, dtype=torch.from_numpy(flat[:0]).dtype)
        mine[: flat.size] = torch.from_numpy(flat)
        theirs = torch.empty_like(mine)
        self._group.alltoall_base(theirs, mine, [], [], self._exchanging).wait()
        added = mean_in_order([rows.numpy() for rows in theirs.view(self.size, part)])
        return np.concatenate(self._gather(added))[: flat.size].reshape(values.shape)

    def _gather(self, values: np.ndarray) -> list[np.ndarray]:
        import torch

        mine = torch.from_numpy(values)
        out = [torch.empty_like(mine) for _ in range(self.size)]
        self._group.allgather([out], [mine], self._gathering).wait()
        return [part.numpy() for part in out]


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
