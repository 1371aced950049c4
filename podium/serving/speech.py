"""What a simulator says, understood and checked: its spaces, and episodes of observations and rewards in their order."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np

from podium.core import spaces
from podium.core.spaces import Columns, Leaf, Space
from podium.envs.base import MASK
from podium.envs.check import mask_problem
from podium.envs.convert import choices, clipper
from podium.serving.protocol.columns import DTYPES, from_messages
from podium.serving.protocol.podium_pb2 import Event, Hello, Step
from podium.serving.server import BadRequest

GREATEST_REWARD = float(np.finfo(np.float32).max)
KINDS = {dtype.str for dtype in DTYPES.values()}


@dataclass(frozen=True)
class Spaces:
    """What the simulators of a run observe and how they act."""

    observation: Space
    action: Leaf


@dataclass(frozen=True, slots=True)
class Began:
    """An episode began with an observation: columns of one row each, with the mask if there is one."""

    obs: Columns


@dataclass(frozen=True, slots=True)
class Moved:
    """An action led to an observation and a reward; the episode is over if it is terminated or truncated."""

    obs: Columns
    reward: float
    terminated: bool
    truncated: bool

    @property
    def over(self) -> bool:
        return self.terminated or self.truncated


def greeting(data: bytes) -> Hello:
    """The first event of a stream."""
    event = parsed(data)
    if event.WhichOneof("event") != "hello":
        raise BadRequest(f"the first event is {event.WhichOneof('event') or 'empty'}, expected hello")
    return event.hello


def spaces_of(hello: Hello) -> Spaces:
    """The spaces that a simulator says it has."""
    action = _space("action_space", hello.action_space)
    if not isinstance(action, get_args(Leaf)):
        raise BadRequest(f"action_space is {action}, expected one Box, Discrete, MultiDiscrete or MultiBinary")
    return Spaces(_space("observation_space", hello.observation_space), action)


def refuse_other(mine: Spaces, theirs: Spaces) -> None:
    """Refuse spaces that are not those of the run's other simulators."""
    for field in ("observation", "action"):
        first, other = getattr(mine, field), getattr(theirs, field)
        if first != other:
            bounds = " with other bounds" if str(first) == str(other) else ""
            raise BadRequest(f"{field}_space is {other}, expected {first}{bounds} as the run's other simulators have")


def _space(field: str, text: str) -> Space:
    try:
        space = spaces.from_json(json.loads(text))
        if all(map(_sound, spaces.leaves(space, "").values())):
            return space
    except (ArithmeticError, AttributeError, LookupError, RecursionError, StopIteration, TypeError, ValueError):
        pass  # whatever it is, it is no space
    raise BadRequest(f"{field} is {text[:80]!r}, expected the JSON of a space")


def _sound(leaf: Leaf) -> bool:
    """Whether a space that came as JSON holds what it should."""
    if isinstance(leaf, spaces.Box):
        return leaf.dtype.str in KINDS and leaf.low.size > 0 and not np.isnan([leaf.low, leaf.high]).any()
    sizes = leaf.nvec if isinstance(leaf, spaces.MultiDiscrete) else (leaf.n,)
    starts = np.ravel(getattr(leaf, "start", 0)).tolist()
    whole = all(type(number) is int and abs(number) < 1 << 53 for number in (*sizes, *starts))
    return whole and min(sizes) > 0 and len(starts) in (0, 1, len(sizes))


def parsed(data: bytes) -> Event:
    from google.protobuf.message import DecodeError

    try:
        return Event.FromString(data)
    except DecodeError:
        raise BadRequest("what came is no Event") from None


class Listener:
    """Understands one simulator's events, one after the other. `masked` says whether the run's simulators give masks."""

    def __init__(self, known: Spaces, masked: Callable[[bool], bool]) -> None:
        self.playing = False
        self._action = known.action
        self._leaves = spaces.leaves(known.observation, "obs")
        self._offsets = {path: start for path, leaf in self._leaves.items() if (start := spaces.offset(leaf)).any()}
        self._masked = masked

    def hear(self, data: bytes) -> Began | Moved:
        event = parsed(data)
        kind = event.WhichOneof("event")
        if kind == "start" and not self.playing:
            began = Began(self._observation(event.start.observation))
            self.playing = True
            return began
        if kind == "step" and self.playing:
            moved = self._moved(event.step)
            self.playing = not moved.over
            return moved
        now = "in the midst of an episode" if self.playing else "between episodes"
        raise BadRequest(f"{kind or 'an empty event'} {now}, expected {'step' if self.playing else 'start'}")

    def _moved(self, step: Step) -> Moved:
        if not abs(step.reward) <= GREATEST_REWARD:
            raise BadRequest(f"reward is {step.reward}, expected a finite number")
        over = step.terminated or step.truncated
        return Moved(self._observation(step.observation, over), step.reward, step.terminated, step.truncated)

    def _observation(self, messages: Any, last: bool = False) -> Columns:
        """Columns of one row, in Podium's numbers; the mask of an episode's last observation is nobody's business."""
        given = from_messages(messages)
        mask = given.pop(MASK, None)
        rows = {path: self._row(path, leaf, given) for path, leaf in self._leaves.items()}
        if len(given) > len(rows):
            raise BadRequest(f"unknown columns: {', '.join(sorted(set(given) - set(rows)))}")
        if last:
            return rows
        if self._masked(mask is not None) != (mask is not None):
            raise BadRequest(f"{'no mask' if mask is None else 'a mask'}, unlike the run's other simulators")
        if mask is not None:
            rows[MASK] = self._legal(mask)
        return rows

    def _row(self, path: str, leaf: Leaf, given: Columns) -> np.ndarray:
        if path not in given:
            raise BadRequest(f"no column {path!r}; there are {', '.join(sorted(given)) or 'none'}")
        column = given[path]
        if column.shape != leaf.shape:
            raise BadRequest(f"{path} has shape {list(column.shape)}, expected {list(leaf.shape)}")
        if column.dtype != leaf.dtype:
            raise BadRequest(f"{path} is {column.dtype}, expected {leaf.dtype}")
        if column.dtype.kind == "f" and not np.isfinite(column).all():
            raise BadRequest(f"{path} holds NaN or infinity")
        row = (column - self._offsets[path] if path in self._offsets else column)[None]
        if not isinstance(leaf, spaces.Box) and leaf.outside(row)[0]:
            raise BadRequest(f"{path} is {column.tolist()}, outside its declared {leaf}")
        return row

    def _legal(self, mask: np.ndarray) -> np.ndarray:
        if not isinstance(self._action, spaces.Discrete | spaces.MultiDiscrete):
            raise BadRequest(f"a mask goes with Discrete and MultiDiscrete actions; these are {self._action}")
        if mask.dtype != bool or mask.shape != (choices(self._action),):
            expected = f"bool [{choices(self._action)}]"
            raise BadRequest(f"mask is {mask.dtype} {list(mask.shape)}, expected {expected}")
        if problem := mask_problem(mask[None], self._action):
            raise BadRequest(f"a mask {problem}")
        return mask[None]


def to_simulator(action: Leaf) -> Callable[[np.ndarray], np.ndarray]:
    """From a policy's actions to the env's own numbers: clipped to its bounds, or counted from its start."""
    if isinstance(action, spaces.Box):
        return clipper(action)
    start = spaces.offset(action).astype(action.dtype)
    return lambda actions: actions + start
