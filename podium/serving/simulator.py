"""A simulator's side of `podium train ALGO external`: plays an env of its own, with actions from the run that learns."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any

import grpc
import numpy as np

from podium.core.errors import CallTimedOut
from podium.core.spaces import Columns, Space
from podium.envs.single import Single
from podium.serving.base import RunOver, ServerGone
from podium.serving.protocol import podium_pb2 as pb
from podium.serving.protocol.columns import from_messages, to_messages
from podium.serving.server import BadRequest

GONE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
RETRY = [(f"grpc.{which}_reconnect_backoff_ms", 200) for which in ("initial", "min", "max")]


class Session:
    """One simulator's stream. The run has `timeout` seconds for each action, and may be learning meanwhile."""

    def __init__(self, address: str, observation: Space, action: Space, token: str = "", timeout: float = 300) -> None:
        self.address, self._timeout = address, timeout
        self._said: queue.SimpleQueue[pb.Event | None] = queue.SimpleQueue()
        self._heard: queue.SimpleQueue[pb.Command | Exception] = queue.SimpleQueue()
        self._channel = grpc.insecure_channel(address, RETRY)
        method = "/podium.v1.Training/Play"
        play = self._channel.stream_stream(method, pb.Event.SerializeToString, pb.Command.FromString)
        metadata = [("authorization", f"Bearer {token}")] if token else None
        commands = play(iter(self._said.get, None), metadata=metadata, wait_for_ready=True)
        self._listening = threading.Thread(target=self._listen, args=(commands,), name="simulator", daemon=True)
        self._listening.start()
        spaces = [json.dumps(space.to_json()) for space in (observation, action)]
        self._ask(pb.Event(hello=pb.Hello(observation_space=spaces[0], action_space=spaces[1])), timeout)

    def start(self, obs: Columns) -> np.ndarray | None:
        """An episode begins: the action for its first observation."""
        return self._act(pb.Event(start=pb.Start(observation=to_messages(obs))))

    def step(self, obs: Columns, reward: float, terminated: bool, truncated: bool) -> np.ndarray | None:
        """What the last action led to: the next action, or None if the episode is over."""
        step = pb.Step(observation=to_messages(obs), reward=reward, terminated=terminated, truncated=truncated)
        if not (terminated or truncated):
            return self._act(pb.Event(step=step))
        self._said.put(pb.Event(step=step))
        return None

    def close(self) -> None:
        """Leave, once the run has heard everything; an episode that isn't over is not learned from."""
        self._said.put(None)
        self._listening.join(5.0)
        self._channel.close()

    def _act(self, event: pb.Event) -> np.ndarray:
        return from_messages([self._ask(event, self._timeout).action.action])["action"]

    def _ask(self, event: pb.Event, timeout: float) -> pb.Command:
        self._said.put(event)
        try:
            heard = self._heard.get(timeout=timeout)
        except queue.Empty:
            heard = CallTimedOut(f"{self.address} did not answer within {timeout:g} s")
        if isinstance(heard, Exception):
            self._channel.close()
            raise heard
        return heard

    def _listen(self, commands: Iterator[pb.Command]) -> None:
        try:
            for command in commands:
                self._heard.put(command)
            self._heard.put(RunOver(f"the run at {self.address} is over"))
        except grpc.RpcError as error:
            reason: Any = error
            kind = ServerGone if reason.code() in GONE else BadRequest
            self._heard.put(kind(f"{self.address}: {reason.details()}"))


def play(env: Any, address: str, episodes: int | None = None, **how: Any) -> list[float]:
    """Play so many episodes of a gymnasium env, or until the run is over; their returns. `how` is the `Session`'s."""
    seen, returns = Single(env), list[float]()
    session = Session(address, seen.observation_space, seen.action_space, **how)
    with closing(session), suppress(RunOver):
        while episodes is None or len(returns) < episodes:
            total, action = 0.0, session.start(seen.columns(env.reset()[0]))
            while action is not None:
                obs, reward, *over, _ = env.step(action.copy()[()])
                total += float(reward)
                action = session.step(seen.columns(obs), float(reward), *map(bool, over))
            returns.append(total)
    return returns
