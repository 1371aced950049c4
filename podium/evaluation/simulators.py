"""What an evaluator plays in when simulators connect from outside, and how their experience is gathered."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, Protocol

import numpy as np

from podium.core.batch import Batch
from podium.core.metrics import Metrics, Timers
from podium.core.spaces import Columns
from podium.envs.base import MASK
from podium.evaluation.collector import Actor
from podium.evaluation.fragments import Fragment, side_by_side
from podium.serving.external import Heard, Place, Session, Training, acquire, release
from podium.serving.speech import Began, Moved, to_simulator


class Simulators:
    """Simulators that come and go at one place of this process. `n` is how many of their fragments make a batch.

    The first one to come says what they all observe and how they act.
    """

    def __init__(self, n: int, place: Place, algo: str = "") -> None:
        self.n = n
        self.training: Training = acquire(place, algo)
        try:
            if self.training.spaces is None:
                print(f"podium: waiting for a simulator on {self.training.address}", file=sys.stderr, flush=True)
            spaces = self.training.first_spaces()
        except BaseException:
            self.close()
            raise
        self.observation_space, self.action_space = spaces.observation, spaces.action

    def collector(self, actor: Learner, timers: Timers) -> SimulatorCollector:
        return SimulatorCollector(self, actor, timers)

    def processes(self) -> list[int]:
        return []

    def close(self) -> None:
        release(self.training)


class Learner(Actor, Protocol):
    """A policy whose weights have a version."""

    version: int


@dataclass
class Player:
    """A simulator that plays: what it last observed, the policy's state beside it, the episode under way."""

    obs: Columns = field(default_factory=dict)
    state: Columns = field(default_factory=dict)
    playing: bool = False
    fragment: Fragment | None = None
    total: float = 0.0
    length: int = 0


class SimulatorCollector:
    """Answers whoever asks for an action while it gathers; at other times they wait. Each simulator fills a fragment of
    its own, and the first `n` that are full make a batch.

    Of an episode that a simulator leaves in its midst nothing stays in the fragment, which another one goes on filling.
    """

    def __init__(self, source: Simulators, actor: Learner, timers: Timers) -> None:
        self.source, self.actor, self.timers = source, actor, timers
        self.finished: list[tuple[float, int]] = []
        self.dropped = 0
        self._to_simulator = to_simulator(source.action_space)
        self._players: dict[Session, Player] = {}
        self._asking: dict[Session, Player] = {}
        self._heard: deque[Heard] = deque()
        self._full: list[Fragment] = []
        self._left: list[Fragment] = []

    def reset(self, seeds: Sequence[int]) -> bool:
        """Simulators begin their episodes when they like."""
        return False

    def collect(self, steps: int) -> Batch:
        """As many fragments of `steps` rows as the source says."""
        n = self.source.n
        while True:
            while self._heard and len(self._full) < n:
                heard = self._heard.popleft()
                self._hear(heard.session, heard.what)
            if len(self._full) >= n:
                full, self._full = self._full[:n], self._full[n:]
                return side_by_side(full)
            if self._asking:
                self._answer(steps)
            with self.timers.stage("env"):
                self._heard.extend(self.source.training.take())

    def _hear(self, session: Session, what: Began | Moved | None) -> None:
        if what is None:
            self._lose(session)
        elif isinstance(what, Began):
            self._begin(session, what.obs)
        else:
            self._move(session, what)

    def _begin(self, session: Session, obs: Columns) -> None:
        player = self._players.setdefault(session, Player())
        if player.fragment is None and self._left:
            player.fragment = self._left.pop()
        if player.fragment is not None:
            player.fragment.begun = player.fragment.rows
        player.obs, player.state, player.playing = obs, self.actor.initial_state(1), True
        player.total, player.length = 0.0, 0
        self._asking[session] = player

    def _move(self, session: Session, what: Moved) -> None:
        player = self._players[session]
        assert player.fragment is not None
        player.fragment.lead(what.reward, what.terminated, what.truncated, _first(what.obs), _first(player.state))
        player.total += what.reward
        player.length += 1
        if player.fragment.full:
            self._full.append(player.fragment)
            player.fragment = None
        if what.over:
            self.finished.append((player.total, player.length))
            player.playing = False
        else:
            player.obs = what.obs
            self._asking[session] = player

    def _lose(self, session: Session) -> None:
        """What it played of whole episodes stays."""
        self._asking.pop(session, None)
        player = self._players.pop(session, None)
        if player is None:
            return
        self.dropped += player.playing
        if player.fragment is not None:
            if player.playing:
                player.fragment.cut()
            if player.fragment.rows:
                self._left.append(player.fragment)

    def _answer(self, steps: int) -> None:
        """One policy call for all who ask."""
        asking, self._asking = self._asking, {}
        players = list(asking.values())
        seen, state = (
            {
                name: np.concatenate([getattr(player, part)[name] for player in players])
                for name in getattr(players[0], part)
            }
            for part in ("obs", "state")
        )
        obs = {name: column for name, column in seen.items() if name != MASK}
        with self.timers.stage("inference"):
            acted = self.actor.act(obs, state, seen.get(MASK))
        self.source.training.answer(list(asking), self._to_simulator(acted.action), self.actor.version)
        row = {**seen, "action": acted.action, **acted.extra}
        for i, player in enumerate(players):
            if player.fragment is None:
                player.fragment = Fragment(steps)
            player.fragment.act(_at(row, i), _at(state, i), player.length == 0)
            player.state = {name: part[i : i + 1] for name, part in acted.state.items()}

    def take_finished(self) -> list[tuple[float, int]]:
        """The (return, length) of each episode that ended since the last call."""
        finished, self.finished = self.finished, []
        return finished

    def figures(self) -> Metrics:
        """How many simulators there are, and how many episodes they have left in their midst."""
        found = Metrics()
        found.last("simulators_connected", self.source.training.connected)
        found.last("episodes_dropped", self.dropped)
        return found

    def get_state(self) -> None:
        """Nobody can ask a simulator for its state."""

    def set_state(self, state: dict[str, Any]) -> NoReturn:
        raise ValueError("simulators have given no state")


def _at(columns: Columns, i: int) -> Columns:
    return {name: column[i] for name, column in columns.items()}


def _first(columns: Columns) -> Columns:
    return _at(columns, 0)


def connecting(n: int, algo: str = "", **place: Any) -> Simulators:
    """The env `external`: the simulators that connect to a place, which the args of the env say."""
    return Simulators(n, Place.of(**place), algo)
