"""Ray's own call loops in plain Ray code, pinned: actors that return a sample, a controller that calls them again; an echo.

They make the calls that Podium's optimizers make, with as many in flight, and do nothing besides: no limits, failures,
replacements, metrics or reports. They run on a cluster that is there already. Nothing in here imports Podium.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import ray


class Sampler:
    """Returns the same bytes each time."""

    def __init__(self, nbytes: int) -> None:
        self._sample = np.zeros(nbytes, np.uint8)

    def sample(self, steps: int, weights: np.ndarray) -> np.ndarray:
        return self._sample


class Learner:
    """Has the samples brought to it, and does nothing with them."""

    def get_weights(self, progress: float) -> np.ndarray:
        return np.zeros(1, np.float32)

    def learn(self, samples: Sequence[Any]) -> int:
        return len(ray.get(list(samples)))


def spawn(actor: type, *args: Any) -> Any:
    return ray.remote(actor).options(num_cpus=0, max_restarts=0).remote(*args)


class Loop:
    """Samplers and a learner; a subclass says in which order they are called."""

    def __init__(self, workers: int, nbytes: int, samples: int) -> None:
        self.samplers = [spawn(Sampler, nbytes) for _ in range(workers)]
        self.learner = spawn(Learner)
        self.samples = samples
        self.weights = self.learner.get_weights.remote(0.0)
        self.playing: dict[Any, Any] = {}

    def play(self) -> int:
        """One update, and how many calls it took."""
        raise NotImplementedError

    def call(self, sampler: Any) -> None:
        self.playing[sampler.sample.remote(1, self.weights)] = sampler

    def next(self) -> tuple[Any, Any]:
        """The first that has ended, and whose it was; asking for its value is how Ray tells that it ended well."""
        (ready,), _ = ray.wait(list(self.playing), num_returns=1, fetch_local=False)
        ray.get(ready)
        return ready, self.playing.pop(ready)

    def close(self) -> None:
        for actor in (*self.samplers, self.learner):
            ray.kill(actor)


class Calls(Loop):
    """The samplers alone: each is called again as soon as its sample is there."""

    def play(self) -> int:
        for sampler in self.samplers if not self.playing else ():
            self.call(sampler)
        for _ in range(self.samples):
            self.call(self.next()[1])
        return self.samples


class Async(Loop):
    """The samplers play on while the learner has what they played before."""

    learning: Any = None

    def play(self) -> int:
        for sampler in self.samplers if not self.playing else ():
            self.call(sampler)
        samples = []
        for _ in range(self.samples):
            ready, sampler = self.next()
            samples.append(ready)
            self.call(sampler)
        if self.learning is not None:
            ray.get(self.learning)
            self.weights = self.learner.get_weights.remote(0.0)
        self.learning = self.learner.learn.remote(samples)
        return self.samples + 2


class Sync(Loop):
    """Every sampler plays once with the newest weights, then the learner has it all."""

    def play(self) -> int:
        self.weights = self.learner.get_weights.remote(0.0)
        for sampler in self.samplers:
            self.call(sampler)
        samples = [self.next()[0] for _ in self.samplers]
        ray.get(self.learner.learn.remote(samples))
        return len(samples) + 2


class EchoServer:
    """Answers every request with the same few bytes."""

    def __init__(self, nbytes: int) -> None:
        self._reply = bytes(nbytes)

    def echo(self, request: bytes) -> bytes:
        return self._reply


class EchoClient:
    """Asks, waits for the answer, and asks again."""

    def __init__(self, server: Any, nbytes: int) -> None:
        self._server, self._request = server, bytes(nbytes)

    def play(self, requests: int) -> tuple[float, float]:
        began = time.monotonic()
        for _ in range(requests):
            ray.get(self._server.echo.remote(self._request))
        return began, time.monotonic()


def echo(clients: int, request_bytes: int, reply_bytes: int, warmup: int, requests: int) -> float:
    """Calls per second of actors that each call the same one."""
    server = spawn(EchoServer, reply_bytes)
    callers = [spawn(EchoClient, server, request_bytes) for _ in range(clients)]
    ray.get([caller.play.remote(max(warmup, 1)) for caller in callers])
    times = ray.get([caller.play.remote(requests) for caller in callers])
    for actor in (*callers, server):
        ray.kill(actor)
    return clients * requests / (max(end for _, end in times) - min(begin for begin, _ in times))
