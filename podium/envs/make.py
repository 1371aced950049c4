"""From an env's name to a vector of it: gymnasium ids, `kind:name`, `module:function` or a callable."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from podium.core.errors import UsageError
from podium.core.spaces import Frames, Leaf, Space
from podium.envs.base import VectorEnv


@dataclass(frozen=True)
class EnvSpec:
    """What is needed to make an env anywhere; it can be pickled when a callable `name` can be imported."""

    name: str | Callable[..., Any]
    args: dict[str, Any] = field(default_factory=dict)
    frame_stack: int = 1
    time_limit: int | None = None
    rescale_actions: bool = False
    processes: int = 0


class Traits(NamedTuple):
    """What an env observes, how it acts and how many frames a step of it plays, after its wrappers."""

    observation_space: Space
    action_space: Leaf
    frames_per_step: int


def describe(spec: EnvSpec) -> str:
    """The env's name for people: as it was given, or a callable's own."""
    name = spec.name
    while isinstance(name, functools.partial):
        name = name.func
    if isinstance(name, str):
        return name
    return f"{name.__module__}:{getattr(name, '__qualname__', type(name).__qualname__)}"


def make(spec: EnvSpec, n: int, render: bool = False) -> VectorEnv:
    """`n` copies of the env as one vector, wrapped as the spec says; with `render` the first one can draw itself."""
    from podium.envs.names import drawing

    if n < 1:
        raise UsageError(f"{n} envs, expected at least 1")
    if spec.time_limit is not None and spec.time_limit < 1:
        raise UsageError(f"a time limit of {spec.time_limit} steps, expected at least 1")
    env = _bare(drawing(spec) if render else spec, n)
    try:
        return wrapped(spec, env)
    except BaseException:
        env.close()
        raise


def playing(spec: EnvSpec, n: int, algo: str = "") -> Any:
    """What an evaluator plays in: `n` envs that are made, or the simulators that connect."""
    from podium.envs.names import Outside, resolve

    source = resolve(spec)
    return source.open(n, algo) if isinstance(source, Outside) else make(spec, n)


@contextmanager
def held(spec: EnvSpec, algo: str) -> Iterator[None]:
    """While it lasts, the port that simulators connect to stays open, where the env is such; they are told the algorithm."""
    from podium.envs.names import Outside, resolve

    source = resolve(spec)
    with closing(source.open(1, algo)) if isinstance(source, Outside) else nullcontext():
        yield


def traits_of(spec: EnvSpec) -> Traits:
    """What there is to know of an env without playing it."""
    env = playing(replace(spec, processes=0), 1)
    try:
        return Traits(env.observation_space, env.action_space, getattr(env, "frames_per_step", 1))
    finally:
        env.close()


def spaces_of(spec: EnvSpec) -> tuple[Space, Leaf]:
    """What the env observes and how it acts, after its wrappers."""
    return traits_of(spec)[:2]


def frames_of(spec: EnvSpec) -> dict[str, Frames]:
    """Which observations are stacks of frames, by their paths."""
    from podium.envs.names import Vector, resolve

    source = resolve(spec)
    if spec.frame_stack == 1 and not (isinstance(source, Vector) and source.stacks):
        return {}
    env = make(replace(spec, processes=0), 1)
    try:
        return getattr(env, "frames", {})
    finally:
        env.close()


def _bare(spec: EnvSpec, n: int) -> VectorEnv:
    from podium.envs.names import Outside, Singles, resolve

    source = resolve(spec)
    if isinstance(source, Outside):
        raise UsageError(f"{describe(spec)}: simulators that connect can only be trained on; none can be made here")
    if not isinstance(source, Singles):
        if spec.processes:
            raise UsageError(f"{describe(spec)} steps its envs as one vector already: env processes would do nothing")
        return source.make(n)
    if spec.processes:
        from podium.envs.processes import ProcessVector

        return ProcessVector(spec, n, spec.processes)
    from podium.envs.sync import SyncVector

    return SyncVector([source.make] * n, describe(spec))


def wrapped(spec: EnvSpec, env: VectorEnv) -> VectorEnv:
    """The vector with what the spec puts around it."""
    from podium.envs.wrappers import FrameStack, RescaleActions

    if spec.rescale_actions:
        env = RescaleActions(env)
    return FrameStack(env, spec.frame_stack) if spec.frame_stack != 1 else env
