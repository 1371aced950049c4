"""A machine of a Ray cluster is lost while a run samples there, and another one comes: how long each takes.

`python -m tests.ray_node_loss [sync_samples|async_samples]` prints the seconds and exits with 1 where they are beyond
their limits: the next iteration within 90 s of the loss, everybody back within 60 s of the addition. It takes up to
three minutes.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ray
from ray.cluster_utils import Cluster

import podium
from podium.engine.ray import RayEngine
from podium.run.callbacks import Callback
from podium.run.folder import RunFolder

NEXT_WITHIN_S, WHOLE_WITHIN_S = 90.0, 60.0
ALONE_S = 5.0


class Losing(Callback):
    """Takes a node away when both workers play, adds another one a while later, and notes when what is seen."""

    def __init__(self, cluster: Cluster, node: Any) -> None:
        self.cluster, self.node = cluster, node
        self.lost_at = self.next_at = self.added_at = self.whole_at = 0.0

    def on_iteration(self, run: Any, row: Mapping[str, Any]) -> bool | None:
        now = time.monotonic()
        if not self.lost_at:
            if row["env_steps"] > 2000 and row["workers_up"] == 2:
                self.lost_at = now
                threading.Thread(target=self.cluster.remove_node, args=(self.node, False)).start()
        elif not self.next_at:
            if row["workers_replaced"]:
                self.next_at = now
        elif not self.added_at:
            if now > self.next_at + ALONE_S:
                self.cluster.add_node(num_cpus=1)
                self.added_at = time.monotonic()
        elif row["workers_up"] == 2:
            self.whole_at = now
            return True
        return None


def lose_a_node(algo: str, optimizer: str, folder: Path) -> tuple[float, float]:
    """The seconds from the loss to the next iteration without the lost worker, and from the addition to full strength."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        # Before the other node is there: all of them have one address here, and this process is to stand on the first.
        RayEngine(cluster.address)
        node = cluster.add_node(num_cpus=1)
        cluster.wait_for_nodes()
        watch = Losing(cluster, node)
        podium.train(
            algo,
            "toy:match",
            engine="ray",
            workers=2,
            cpus_per_worker=1.0,
            envs=64,
            fragment=128,
            optimizer=optimizer,
            steps=10**9,
            out=folder,
            progress=False,
            callbacks=[watch],
        )
        rows = list(RunFolder.open(folder).read_metrics())
        assert {row["length_mean"] for row in rows} <= {None, 32.0}, "a part of an episode was counted"
        return watch.next_at - watch.lost_at, watch.whole_at - watch.added_at
    finally:
        ray.shutdown()
        cluster.shutdown()


ALGORITHMS = {"sync_samples": "a2c", "async_samples": "impala"}


def main(optimizers: Sequence[str]) -> int:
    wrong = 0
    for optimizer in optimizers or ALGORITHMS:
        with tempfile.TemporaryDirectory() as root:
            next_s, whole_s = lose_a_node(ALGORITHMS[optimizer], optimizer, Path(root, "run"))
        print(f"{optimizer}: next iteration {next_s:.1f} s after the loss, full strength {whole_s:.1f} s after", end="")
        print(" the addition", flush=True)
        wrong += next_s > NEXT_WITHIN_S or whole_s > WHOLE_WITHIN_S
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
