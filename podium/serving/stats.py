"""What a server knows of its own work: how long requests took, how many rows went into a pass, how many waited."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

PER_OCTAVE = 8
LOWEST = 2.0**-20
"""Latencies below a microsecond are counted as one."""


class Timed(Protocol):
    """What has come at a time."""

    @property
    def arrived(self) -> float: ...


class Histogram:
    """Counts in buckets a twelfth apart: small however much is counted, quantiles right to within 9 %."""

    def __init__(self, lowest: float = LOWEST) -> None:
        self.lowest = lowest
        self.counts: dict[int, int] = {}
        self.total = 0

    def add(self, value: float) -> None:
        bucket = math.ceil(PER_OCTAVE * math.log2(value / self.lowest)) if value > self.lowest else 0
        self.counts[bucket] = self.counts.get(bucket, 0) + 1
        self.total += 1

    def quantile(self, share: float) -> float | None:
        """The upper edge of the bucket that holds it."""
        left = math.ceil(share * self.total)
        for bucket in sorted(self.counts):
            left -= self.counts[bucket]
            if left <= 0:
                return self.lowest * 2.0 ** (bucket / PER_OCTAVE)
        return None


class Stats:
    """Counted since the server began."""

    def __init__(self) -> None:
        self.requests = self.rows = self.passes = self.refused = self.failed = self.deepest = 0
        self.latency = Histogram()
        self.batch = Histogram(1.0)

    def passed(self, requests: Sequence[Timed], rows: int, waiting: int, done: float) -> None:
        """A pass over these requests is done, and so many more wait."""
        self.requests += len(requests)
        self.rows += rows
        self.passes += 1
        self.deepest = max(self.deepest, waiting + len(requests))
        self.batch.add(rows)
        for request in requests:
            self.latency.add(done - request.arrived)

    def to_json(self) -> dict[str, Any]:
        quantiles = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
        return {
            "requests": self.requests,
            "rows": self.rows,
            "passes": self.passes,
            "refused": self.refused,
            "failed": self.failed,
            "deepest_queue": self.deepest,
            "latency_s": {name: self.latency.quantile(share) for name, share in quantiles.items()},
            "batch_rows": {name: self.batch.quantile(share) for name, share in quantiles.items()},
        }
