"""Simulators of the tests: envs to play, an actor that needs no learning, and streams that say what they shouldn't."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import grpc
import gymnasium
import numpy as np

from podium.core.spaces import Box, Columns, Discrete
from podium.policies.base import Acted
from podium.serving.protocol import podium_pb2 as pb
from podium.serving.protocol.columns import to_messages

OBSERVATION, ACTION = Box.of(-100, 100, (2,)), Discrete(3)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class Walk(gymnasium.Env):
    """Episodes of the given lengths, over and over; the even ones terminate, the odd ones are cut. What is observed and
    rewarded depends on the episode, the step and the action."""

    observation_space = gymnasium.spaces.Box(-100, 100, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(3)

    def __init__(self, lengths: Sequence[int] = (3, 5, 2), masked: bool = False) -> None:
        self.lengths, self.episode = lengths, -1
        if masked:
            self.action_masks = lambda: np.arange(3) != self.t % 3

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        self.episode, self.t, self.place = self.episode + 1, 0, 0
        return self._obs(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.t, self.place = self.t + 1, self.place + int(action)
        over = self.t == self.lengths[self.episode % len(self.lengths)]
        cut = over and self.episode % 2 == 1
        return self._obs(), 0.1 * self.t + int(action), over and not cut, cut, {}

    def _obs(self) -> np.ndarray:
        return np.array([self.episode + 0.1 * self.t, self.place], np.float32)


class Match(gymnasium.Env):
    """Each step shows one of three numbers, and is worth 1 if it is answered with the same; 16 steps, then cut."""

    observation_space = gymnasium.spaces.Box(0, 1, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return self._next(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        reward = float(action == self.shown)
        self.t += 1
        return self._next(), reward, False, self.t == 16, {}

    def _next(self) -> np.ndarray:
        self.shown = int(self.np_random.integers(3))
        return np.eye(3, dtype=np.float32)[self.shown]


class Counter:
    """Acts and values by what it sees, and remembers how often it has acted in an episode."""

    version = 7

    def initial_state(self, n: int) -> Columns:
        return {"state/count": np.zeros((n, 1), np.float32)}

    def act(self, obs: Columns, state: Columns, mask: np.ndarray | None = None, explore: bool = True) -> Acted:
        count = state["state/count"]
        action = (obs["obs"].sum(axis=1) + count[:, 0]).astype(np.int64) % 3
        if mask is not None:
            action = np.where(mask[np.arange(len(action)), action], action, (action + 1) % 3)
        values = self.values(obs, state)
        return Acted(action, {"state/count": count + 1}, {"logp": -values, "value": values})

    def values(self, obs: Columns, state: Columns) -> np.ndarray:
        return (obs["obs"] @ np.array([0.5, 0.25], np.float32) + state["state/count"][:, 0]).astype(np.float32)


@contextmanager
def playing(*simulators: Callable[[], Any]) -> Iterator[list[threading.Thread]]:
    """Functions in threads of their own, which have ended when it is left; what one raised is raised."""
    errors: list[BaseException] = []

    def run(simulator: Callable[[], Any]) -> None:
        try:
            simulator()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(simulator,), daemon=True) for simulator in simulators]
    for thread in threads:
        thread.start()
    try:
        yield threads
    finally:
        for thread in threads:
            thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    if errors:
        raise errors[0]


def hello(observation: Any = OBSERVATION, action: Any = ACTION) -> pb.Event:
    texts = [space if isinstance(space, str) else json.dumps(space.to_json()) for space in (observation, action)]
    return pb.Event(hello=pb.Hello(observation_space=texts[0], action_space=texts[1]))


def start(**columns: np.ndarray) -> pb.Event:
    return pb.Event(start=pb.Start(observation=to_messages(columns or {"obs": np.zeros(2, np.float32)})))


def step(reward: float = 0.0, **columns: np.ndarray) -> pb.Event:
    return pb.Event(step=pb.Step(observation=to_messages(columns or {"obs": np.zeros(2, np.float32)}), reward=reward))


def says(port: int, *events: pb.Event | bytes, token: str | None = None) -> tuple[str, str]:
    """How a stream ends that says these things, each once the one before is answered: the status and its line."""
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        metadata = [("authorization", f"Bearer {token}")] if token else None
        answered = threading.Semaphore(1)

        def said() -> Iterator[bytes]:
            for event in events:
                answered.acquire(timeout=20)
                yield event if isinstance(event, bytes) else event.SerializeToString()

        stream = channel.stream_stream("/podium.v1.Training/Play")(
            said(), metadata=metadata, wait_for_ready=True, timeout=20
        )
        try:
            for _ in stream:
                answered.release()
        except grpc.RpcError:
            pass
        return stream.code().name, stream.details()
