"""The two roles of the benchmark: an agent that serves a policy, and observers that ask it."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from podium.bench.rpc.carriers import CARRIERS
from podium.bench.rpc.policy import DummyPolicy
from podium.bench.rpc.settings import Settings
from podium.serving.server import InferenceServer, Pass
from podium.serving.settle import settle

AHEAD_S = 0.2
"""Between the call of all observers and the first request of a fixed schedule."""


class Agent:
    """Answers with the dummy policy through Podium's inference server, and notes every pass."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._passes: list[Pass] = []
        self._transport: Any = None
        policy = DummyPolicy(int(np.prod(settings.shape)), settings.nlayers, settings.out_features, settings.seed)
        most, wait_s = settings.passes
        layouts = {"act": {"obs": (settings.shape, np.dtype(np.float32))}}
        self._server = InferenceServer(
            {"act": policy.act}, max_batch=most, max_wait_s=wait_s, layouts=layouts, observe=self._passes.append
        )

    def open(self) -> str:
        """Where observers find it."""
        self._transport = CARRIERS[self._settings.transport].serve(self._server, self._settings)
        settle()
        return str(self._transport.address)

    def join(self, address: Any) -> None:
        CARRIERS[self._settings.transport].begin(self._transport, self._settings)

    def mark(self) -> None:
        """What counts begins here."""
        self._passes.clear()

    def served(self) -> int:
        """How many requests were answered since."""
        return sum(done.requests for done in self._passes)

    def passes(self) -> np.ndarray:
        """Of each: how many requests it answered, and the seconds from the first one's arrival to its actions."""
        return np.array([(done.requests, done.done - done.first) for done in self._passes], np.float64).reshape(-1, 2)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


class Observer:
    """Plays episodes in an env of random states and rewards, with the agent's actions."""

    def __init__(self, settings: Settings, index: int) -> None:
        self._settings, self._index = settings, index
        self._random = np.random.default_rng((settings.seed, index))
        self._state: np.ndarray
        self._client: Any = None
        self.rewards = np.zeros(settings.episodes)

    def join(self, address: Any) -> None:
        self._client = CARRIERS[self._settings.transport].connect(address, self._settings, self._index)

    def warm(self) -> None:
        """Steps that don't count."""
        self._reset()
        for _ in range(self._settings.warmup):
            self._act()
            self._step()

    def play(self, start: float) -> tuple[float, float, np.ndarray]:
        """When the first request was made, when the last was answered, and the seconds that each took: of a fixed schedule
        from when it was due, so that requests that had to wait for their turn don't look quick."""
        settings = self._settings
        latencies = np.empty(settings.requests)
        due = self._due(start)
        began = time.monotonic() if due is None else float(due[0])
        for episode in range(settings.episodes):
            self._reset()
            for step in range(episode * settings.steps, (episode + 1) * settings.steps):
                asked = time.monotonic() if due is None else _wait_until(due[step])
                self._act()
                latencies[step] = time.monotonic() - asked
                self.rewards[episode] += self._step()
        return began, time.monotonic(), latencies

    def _due(self, start: float) -> np.ndarray | None:
        """When each of this observer's requests is to be made: theirs follow each other evenly."""
        if self._settings.rate is None:
            return None
        turns = np.arange(self._settings.requests) * self._settings.observers + self._index
        return np.asarray(start + AHEAD_S + turns / self._settings.rate)

    def _reset(self) -> None:
        self._state = self._random.random((1, *self._settings.shape), dtype=np.float32)

    def _act(self) -> np.ndarray:
        answer = self._client.ask({"obs": self._state}, timeout=self._settings.timeout)
        return np.asarray(answer.columns["action"])

    def _step(self) -> float:
        """The env's part: another state, and a reward."""
        self._reset()
        return float(self._random.random())

    def close(self) -> None:
        if self._client is not None:
            self._client.close()


def _wait_until(due: float) -> float:
    """Where it is late already it doesn't wait; what was due is what counts."""
    if (left := due - time.monotonic()) > 0:
        time.sleep(left)
    return due
