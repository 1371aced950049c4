"""The check before training: a copy of the env is stepped a little, and what it does wrong is named in one line."""

from __future__ import annotations

import math
import numbers
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from podium.core import seeding, spaces
from podium.core.errors import EnvCheckError, EnvDataError
from podium.core.spaces import Box, Columns, Leaf
from podium.envs import convert
from podium.envs.base import MASK, Stepped, VectorEnv
from podium.envs.guard import tolerant, worst
from podium.envs.make import EnvSpec, describe
from podium.envs.sync import mask_method

STEPS = 60
SHARE = 0.3


@dataclass
class Progress:
    """Where the check is, for the one who waits for it."""

    method: str = "reset()"
    step: int = 0
    error: Exception | None = None


def check(spec: EnvSpec, seed: int = 0, seconds: float = 5.0) -> None:
    """Raise EnvCheckError for an env that breaks its declaration, or that doesn't return within `seconds`.

    An exception that the env itself raises stays what it is, with a note of the env and the step.
    """
    from podium.envs.names import Outside, Singles, resolve

    source = resolve(spec)
    if isinstance(source, Outside):
        return  # what simulators say is looked at as it comes
    progress = Progress()
    name = describe(spec)
    if isinstance(source, Singles):
        single = source.make()
        walk: Callable[[float], None] = SingleCheck(name, single, progress, seed).walk
    else:
        vector = source.make(2)
        walk = VectorCheck(name, vector, progress, seed).walk
    _within(walk, progress, name, seconds)
    (single if isinstance(source, Singles) else vector).close()
    if spec.frame_stack != 1 or spec.rescale_actions:
        from podium.envs.make import make

        make(replace(spec, processes=0), 1).close()


def _within(walk: Callable[[float], None], progress: Progress, name: str, seconds: float) -> None:
    """Walk in a thread that is left behind if it doesn't come back."""

    def run() -> None:
        try:
            walk(time.perf_counter() + SHARE * seconds)
        except EnvDataError as error:
            progress.error = EnvCheckError(f"{name}: {error}")
        except SystemExit as leaving:
            progress.error = EnvCheckError(f"{name}: {progress.method} called sys.exit({leaving.code!r})")
        except Exception as error:
            progress.error = error

    thread = threading.Thread(target=run, daemon=True, name="env check")
    thread.start()
    thread.join(0.9 * seconds)
    if thread.is_alive():
        raise EnvCheckError(
            f"{name}: {progress.method} did not return within {0.9 * seconds:.1f} s (step {progress.step})"
        )
    if progress.error is not None:
        raise progress.error


class SingleCheck:
    """Steps one gymnasium env by hand, to see exactly what it returns."""

    def __init__(self, name: str, env: Any, progress: Progress, seed: int) -> None:
        self._name, self._env, self._progress, self._seed = name, env, progress, seed
        self._observed = convert.observations(env.observation_space)
        self._action_space = convert.action_space(env.action_space)
        self._to_env = convert.action_converter(env.action_space)
        self._mask_method = mask_method(env)
        self._lenient = type(env.unwrapped).__module__.startswith("gymnasium.envs.")

    def walk(self, until: float) -> None:
        rng = seeding.generator(self._seed, "env check")
        obs = self._reset(seed=seeding.integer(self._seed, "env check"))
        for _ in range(STEPS):
            action = convert.legal_sample(self._action_space, self._mask(obs), rng, 1)
            obs, over = self._step(self._to_env(action)[0])
            if over:
                obs = self._reset()
            if time.perf_counter() > until:
                return

    def _reset(self, **how: int) -> Any:
        self._progress.method = "reset()"
        result = self._noting(lambda: self._env.reset(**how))
        if not isinstance(result, tuple) or len(result) != 2 or not isinstance(result[1], dict):
            raise self._wrong(f"returned {_kind(result)}, expected a tuple (observation, info)")
        self._check_observation(result[0])
        return result[0]

    def _step(self, action: Any) -> tuple[Any, bool]:
        self._progress.method = "step()"
        self._progress.step += 1
        result = self._noting(lambda: self._env.step(action))
        if not isinstance(result, tuple) or len(result) != 5:
            old = " as the old gym did" if isinstance(result, tuple) and len(result) == 4 else ""
            raise self._wrong(
                f"returned {_kind(result)}{old}, expected (observation, reward, terminated, truncated, info)"
            )
        obs, reward, terminated, truncated, _ = result
        scalar = isinstance(reward, numbers.Real | np.bool_) or (isinstance(reward, np.ndarray) and reward.shape == ())
        if not scalar or not math.isfinite(reward):
            raise self._wrong(f"gave the reward {reward!r}, expected a finite number")
        for key, value in (("terminated", terminated), ("truncated", truncated)):
            if not isinstance(value, bool | np.bool_):
                raise self._wrong(f"gave {key} as {value!r}, expected True or False")
        self._check_observation(obs)
        return obs, bool(terminated or truncated)

    def _noting(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except Exception as error:
            error.add_note(f"env 0, step {self._progress.step}, in the check before training")
            raise

    def _check_observation(self, obs: Any) -> None:
        for reader in self._observed.readers:
            try:
                value = reader.find(obs)
            except (KeyError, IndexError, TypeError):
                raise self._wrong(f"gave no {reader.path}; the observation is {_kind(obs)}") from None
            self._check_value(reader.path, reader.leaf, value, reader.offset)
        if isinstance(obs, dict):
            known = {reader.keys[0] for reader in self._observed.readers if reader.keys} | {convert.MASK_KEY}
            for key in obs:
                if key not in known:
                    raise self._wrong(f"gave obs/{key}, which the observation space doesn't have")
        if self._observed.mask is not None or self._mask_method is not None:
            self._mask(obs)

    def _check_value(self, path: str, leaf: Leaf, value: Any, offset: np.ndarray | None) -> None:
        try:
            array = np.asarray(value)
        except ValueError:
            raise self._wrong(f"gave {path} as {_kind(value)}, expected an array of shape {leaf.shape}") from None
        if array.shape != leaf.shape:
            raise self._wrong(f"gave {path} with shape {array.shape}, expected {leaf.shape}")
        if not np.can_cast(array.dtype, leaf.dtype, "same_kind"):
            raise self._wrong(f"gave {path} as {array.dtype}, expected {leaf.dtype}")
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise self._wrong(f"gave {path} with {'NaN' if np.isnan(array).any() else 'an infinite value'} in it")
        if not (self._lenient and isinstance(leaf, Box)):
            outside = _outside(leaf, array if offset is None else array - offset)
            if outside:
                raise self._wrong(f"gave {path} {outside}")

    def _mask(self, obs: Any) -> np.ndarray | None:
        if self._observed.mask is not None:
            row = np.asarray(self._observed.mask.find(obs) if convert.MASK_KEY in obs else [], bool)
        elif self._mask_method is not None:
            method = self._mask_method
            row = convert.mask_row(self._noting(lambda: method()))
        else:
            return None
        problem = mask_problem(row[None], self._action_space)
        if problem:
            raise self._wrong(f"gave an action mask {problem}")
        return row[None]

    def _wrong(self, what: str) -> EnvCheckError:
        at = f" at step {self._progress.step}" if self._progress.step else ""
        return EnvCheckError(f"{self._name}: {self._progress.method} {what}{at}")


class VectorCheck:
    """Steps two copies of an env that comes as a vector, through Podium's interface."""

    def __init__(self, name: str, env: VectorEnv, progress: Progress, seed: int) -> None:
        self._name, self._env, self._progress, self._seed = name, env, progress, seed
        self._leaves = spaces.leaves(env.observation_space, "obs")

    def walk(self, until: float) -> None:
        rng = seeding.generator(self._seed, "env check")
        obs = self._env.reset([seeding.integer(self._seed, "env check", i) for i in range(self._env.n)])
        self._check_columns(obs)
        self._progress.method = "step()"
        for step in range(1, STEPS + 1):
            self._progress.step = step
            mask = obs[MASK] if self._env.masked else None
            stepped = self._env.step(convert.legal_sample(self._env.action_space, mask, rng, self._env.n))
            obs = stepped.obs
            self._check_columns(obs)
            self._check_flags(stepped)
            if time.perf_counter() > until:
                return

    def _check_columns(self, obs: Columns) -> None:
        for path, leaf in self._leaves.items():
            expected = (self._env.n, *leaf.shape)
            if path not in obs:
                raise self._wrong(f"gave no {path}")
            column = obs[path]
            if column.shape != expected or not np.can_cast(column.dtype, leaf.dtype, "same_kind"):
                raise self._wrong(f"gave {path} as {column.dtype} {column.shape}, expected {leaf.dtype} {expected}")
            if not isinstance(leaf, Box):
                for row in column:
                    if outside := _outside(leaf, row):
                        raise self._wrong(f"gave {path} {outside}")
        if self._env.masked:
            problem = mask_problem(obs[MASK], self._env.action_space) if MASK in obs else "that is missing"
            if problem:
                raise self._wrong(f"gave an action mask {problem}")

    def _check_flags(self, stepped: Stepped) -> None:
        for key in ("reward", "terminated", "truncated"):
            value = getattr(stepped, key)
            if np.shape(value) != (self._env.n,):
                raise self._wrong(f"gave {key} with shape {np.shape(value)}, expected {(self._env.n,)}")
            if key != "reward" and value.dtype != bool:
                raise self._wrong(f"gave {key} as {value.dtype}, expected bool")
        if not np.isfinite(stepped.reward).all():
            raise self._wrong("gave a reward that is not a finite number")

    def _wrong(self, what: str) -> EnvCheckError:
        at = f" at step {self._progress.step}" if self._progress.step else ""
        return EnvCheckError(f"{self._name}: {self._progress.method} {what}{at}")


def mask_problem(rows: np.ndarray, action: Leaf) -> str | None:
    """What is wrong with mask rows: their width, or a choice without a legal option."""
    width = convert.choices(action)
    if rows.shape[1:] != (width,):
        return f"of {rows.shape[1:]}, expected ({width},)"
    parts = [rows] if isinstance(action, spaces.Discrete) else np.split(rows, _splits(action), axis=1)
    return None if all(part.any(axis=1).all() for part in parts) else "with no legal action"


def _splits(action: Leaf) -> np.ndarray:
    assert isinstance(action, spaces.MultiDiscrete)
    return np.cumsum(action.nvec)[:-1]


def _outside(leaf: Leaf, array: np.ndarray) -> str | None:
    """How a value leaves its space, in words; None if it doesn't."""
    if isinstance(leaf, Box):
        low, high = tolerant(leaf)
        inside = bool(((array >= low) & (array <= high)).all())
    else:
        inside = not leaf.outside(array[None])[0]
    return None if inside else f"with {worst(leaf, array):g} in it, outside its declared {leaf}"


def _kind(value: Any) -> str:
    """A value in few words."""
    if isinstance(value, tuple):
        return f"a tuple of {len(value)} values"
    if isinstance(value, dict):
        return f"a dict with the keys {', '.join(map(str, value)) or '(none)'}"
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape}"
    return "None" if value is None else f"a {type(value).__name__}"
