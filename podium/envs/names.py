"""What an env's name stands for, and one clear line for each way in which a name or an argument can be wrong."""

from __future__ import annotations

import functools
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from podium.core.errors import MissingExtra, PodiumError, UsageError, did_you_mean
from podium.core.imports import load_attribute
from podium.envs import atari
from podium.envs.atari import other_name
from podium.envs.base import VectorEnv
from podium.envs.make import EnvSpec, describe
from podium.envs.mujoco import todays_name

EXTRAS = {"gymnasium.envs.box2d": "box2d", "gymnasium.envs.mujoco": "mujoco", "ale_py": "atari"}
VECTOR_ARGUMENT = "num_envs"

EXTERNAL = "external"
EXTERNAL_SOURCE = "podium.evaluation.simulators:connecting"
EXTERNAL_ARGS = ("port", "host", "token", "wait")
SECRETS = {EXTERNAL: ("token",)}


@dataclass(frozen=True)
class Singles:
    """The name stands for one gymnasium env; many are stepped by us."""

    make: Callable[[], Any]


@dataclass(frozen=True)
class Vector:
    """The name stands for something that steps many envs itself; where it `stacks`, their observations may be stacks of
    frames."""

    make: Callable[[int], VectorEnv]
    stacks: bool = False


@dataclass(frozen=True)
class Outside:
    """The name stands for simulators that connect on their own: nobody can make or step them. What it opens says what
    they observe and how they act, and has a `collector` for what they play; those opened at one time share a port."""

    open: Callable[[int, str], Any]


def resolve(spec: EnvSpec) -> Singles | Vector | Outside:
    """How to make the env; an unknown name or argument is refused here."""
    name = spec.name
    if not isinstance(name, str):
        return _from_callable(spec, name)
    if name == EXTERNAL:
        return _from_outside(spec)
    if newer := todays_name(name):
        return resolve(replace(spec, name=newer))
    kind, colon, rest = name.partition(":")
    if kind == "envpool" and colon:
        return _from_envpool(spec, rest)
    if kind == "toy" and colon:
        return _from_toys(spec, rest)
    if kind == "atari" and colon:
        return _from_atari(spec, rest)
    if kind == "minatar" and colon:
        return _from_minatar(spec, rest)
    if other := other_name(name):
        game, args = other
        return _from_atari(replace(spec, args={**args, **spec.args}), game)
    if not colon:
        return _from_registry(spec, name)
    return _from_module(spec, kind, rest)


def note(name: Any) -> str | None:
    """What a name stands for, where it is made as something else."""
    if not isinstance(name, str):
        return None
    if newer := todays_name(name):
        return f"{name} is no longer made: {newer} takes its place, and its returns are not quite comparable"
    other = other_name(name)
    if other is None:
        return None
    game, args = other
    settings = "".join(f" with {key}={value:g}" for key, value in args.items()) or " without sticky actions"
    return f"{name} is made as atari:{game}{settings}"


def drawing(spec: EnvSpec) -> EnvSpec:
    """The same env drawing pictures, where it takes `render_mode`."""
    drawn = replace(spec, args={"render_mode": "rgb_array", **spec.args})
    try:
        resolve(drawn)
    except UsageError:
        return spec
    return drawn


def known() -> dict[str, list[str]]:
    """Every name that can be made here, by where it comes from."""
    import gymnasium

    from podium.envs import minatar
    from podium.envs.toys import TOYS

    names = {"gymnasium": sorted(gymnasium.registry), "toy": [f"toy:{name}" for name in TOYS], "outside": [EXTERNAL]}
    with suppress(MissingExtra):
        names["atari"] = [f"atari:{name}" for name in atari.games()]
    with suppress(MissingExtra):
        names["minatar"] = [f"minatar:{name}" for name in minatar.games()]
    with suppress(ImportError):
        import envpool

        names["envpool"] = [f"envpool:{name}" for name in sorted(envpool.list_all_envs())]
    return names


def _from_module(spec: EnvSpec, module: str, rest: str) -> Singles | Vector:
    """`module:function`, or gymnasium's own `module:Env-v0` where importing the module registers the id."""
    try:
        function = load_attribute(f"{module}:{rest}", "env")
    except UsageError as error:
        if sys.modules.get(module) is not None and _registered(rest):
            return _from_registry(spec, rest)
        raise MissingExtra(f"{module}:{rest}", EXTRAS[module]) if module in EXTRAS else error from None
    except ImportError as error:
        raise UsageError(f"env '{module}:{rest}': importing {module!r} failed: {error}") from error
    if not callable(function):
        raise UsageError(f"{module}:{rest} is a {type(function).__name__}, expected a function or a class")
    return _from_callable(spec, function)


def _from_envpool(spec: EnvSpec, task: str) -> Vector:
    from podium.envs.envpool import EnvPoolVector, checked_args

    checked_args(task, spec.args, spec.time_limit)
    return Vector(lambda n: EnvPoolVector(task, n, spec.args, spec.time_limit))


def lasting_args(spec: EnvSpec, args: dict[str, Any]) -> dict[str, Any]:
    """The env's arguments that may be written down."""
    secret = SECRETS.get(spec.name, ()) if isinstance(spec.name, str) else ()
    return {name: value for name, value in args.items() if name not in secret}


def _from_outside(spec: EnvSpec) -> Outside:
    for name in spec.args:
        if name not in EXTERNAL_ARGS:
            raise _no_argument(spec, name, EXTERNAL_ARGS)
    if "port" not in spec.args:
        raise UsageError(f"env {EXTERNAL}: on which port do simulators connect? give --port, 0 for any that is free")
    try:
        connecting = load_attribute(EXTERNAL_SOURCE, "env")
    except ImportError:
        raise MissingExtra(f"env {EXTERNAL}", "serve") from None
    return Outside(lambda n, algo: connecting(n, algo, **spec.args))


def _from_toys(spec: EnvSpec, toy: str) -> Vector:
    from podium.envs.toys import TOYS

    if toy not in TOYS:
        near = did_you_mean(toy, TOYS) or f"; there are {', '.join(TOYS)}"
        raise UsageError(f"unknown env 'toy:{toy}'{near}")
    _refuse_time_limit(spec)
    check_args(spec, TOYS[toy])
    return Vector(lambda n: TOYS[toy](num_envs=n, **spec.args))


def _from_atari(spec: EnvSpec, game: str) -> Vector:
    rom = atari.rom_of(game, describe(spec))
    vector = functools.partial(atari.make_games, rom, spec.time_limit)
    check_args(spec, vector)
    return Vector(lambda n: vector(num_envs=n, **spec.args), stacks=True)


def _from_minatar(spec: EnvSpec, game: str) -> Singles | Vector:
    from podium.envs import minatar

    minatar.module_of(game)
    return _from_callable(spec, functools.partial(minatar.MinAtar, game))


def _from_registry(spec: EnvSpec, name: str) -> Singles | Vector:
    import gymnasium
    from gymnasium.envs.registration import load_env_creator

    if not _registered(name):
        raise UsageError(f"unknown env {name!r}{did_you_mean(name, gymnasium.registry)}")
    entry = gymnasium.registry[name]
    own_vector = entry.vector_entry_point is not None and not entry.additional_wrappers
    if own_vector and spec.processes == 0:
        creator = _loading(spec, entry.vector_entry_point, load_env_creator)
        arguments = {**entry.kwargs, **spec.args}
        limit = spec.time_limit if spec.time_limit is not None else entry.max_episode_steps
        if limit is not None:
            arguments.setdefault("max_episode_steps", limit)
        check_args(spec, creator)
        return Vector(lambda n: _adapt(spec, _called(spec, lambda: creator(num_envs=n, **arguments))))
    if entry.entry_point is None:
        raise UsageError(f"{name} has no single env, which env processes need")
    check_args(spec, _loading(spec, entry.entry_point, load_env_creator))
    options: dict[str, Any] = {"disable_env_checker": True, **spec.args}
    if spec.time_limit is not None:
        options["max_episode_steps"] = spec.time_limit
    return Singles(lambda: _called(spec, lambda: gymnasium.make(name, **options)))


def _registered(name: str) -> bool:
    """Whether gymnasium knows the id, once Atari's games are there where they are asked for."""
    import gymnasium

    if name not in gymnasium.registry and name.startswith("ALE/"):
        try:
            gymnasium.register_envs(importlib.import_module("ale_py"))
        except ImportError:
            raise MissingExtra(name, "atari") from None
    return name in gymnasium.registry


def _loading(spec: EnvSpec, entry: Any, load: Callable[[str], Any]) -> Any:
    """The class or function behind a registry entry; what fails to import is a missing extra."""
    if callable(entry):
        return entry
    try:
        return load(entry)
    except Exception as error:
        raise _unmakeable(spec, entry, error) from error


def _unmakeable(spec: EnvSpec, entry: Any, error: Exception) -> Exception:
    import gymnasium

    if not isinstance(error, ImportError | gymnasium.error.DependencyNotInstalled):
        return error
    for module, extra in EXTRAS.items():
        if str(entry).startswith(module):
            return MissingExtra(describe(spec), extra)
    return UsageError(f"{describe(spec)} can't be made: {error}")


def _from_callable(spec: EnvSpec, function: Callable[..., Any]) -> Singles | Vector:
    import gymnasium

    check_args(spec, function)
    if VECTOR_ARGUMENT in (_parameters(function) or ()):
        _refuse_time_limit(spec)
        return Vector(lambda n: _adapt(spec, _called(spec, lambda: function(**{VECTOR_ARGUMENT: n}, **spec.args))))

    def single() -> Any:
        env = _called(spec, lambda: function(**spec.args))
        if not isinstance(env, gymnasium.Env):
            raise UsageError(
                f"{describe(spec)} returned a {type(env).__name__}, expected a gymnasium.Env; "
                f"one that returns a vector env takes an argument {VECTOR_ARGUMENT}"
            )
        return env if spec.time_limit is None else gymnasium.wrappers.TimeLimit(env, spec.time_limit)

    return Singles(single)


def _adapt(spec: EnvSpec, env: Any) -> VectorEnv:
    """A vector env that a user made: gymnasium's, or already ours."""
    import gymnasium

    from podium.envs.gym import GymVector

    if isinstance(env, gymnasium.vector.VectorEnv):
        return GymVector(env, describe(spec))
    data = ("n", "observation_space", "action_space", "masked", "autoreset")
    methods = ("reset", "step", "get_state", "set_state", "processes", "close")
    lacking = [name for name in (*data, *methods) if not hasattr(env, name)]
    if not lacking:
        return env
    raise UsageError(
        f"{describe(spec)} returned a {type(env).__name__}, expected a gymnasium.vector.VectorEnv "
        f"or a podium VectorEnv (which needs {', '.join(lacking)} too)"
    )


def _refuse_time_limit(spec: EnvSpec) -> None:
    if spec.time_limit is not None:
        raise UsageError(
            f"{describe(spec)} begins its episodes itself, so a time limit can't be put around it; "
            "give it one as an env argument"
        )


def _parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter] | None:
    try:
        return dict(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return None


def check_args(spec: EnvSpec, function: Callable[..., Any]) -> None:
    """Refuse arguments that the env's constructor doesn't take, where its signature tells."""
    parameters = _parameters(function)
    if parameters is None or any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return
    for name in spec.args:
        if name not in parameters or name == VECTOR_ARGUMENT:
            raise _no_argument(spec, name, parameters)


def _no_argument(spec: EnvSpec, name: str, known: Iterable[str]) -> UsageError:
    takes = [key for key in known if key not in (VECTOR_ARGUMENT, "self", "kwargs", "args")]
    near = did_you_mean(name, takes) or (f"; it takes {', '.join(takes)}" if takes else "; it takes none")
    return UsageError(f"{describe(spec)} has no argument {name!r}{near}")


def _called(spec: EnvSpec, make: Callable[[], Any]) -> Any:
    """Run a constructor; an argument that it refuses becomes one clear line, any other error stays as it is."""
    import gymnasium

    try:
        return make()
    except PodiumError:
        raise
    except TypeError as error:
        refused = re.search(r"unexpected keyword argument '(\w+)'", str(error))
        if refused and refused[1] in spec.args:
            raise _no_argument(spec, refused[1], []) from error
        if spec.args:
            raise UsageError(f"{describe(spec)} can't be made with {spec.args}: {error}") from error
        raise
    except (ImportError, gymnasium.error.DependencyNotInstalled) as error:
        entry = gymnasium.registry[spec.name].entry_point if spec.name in gymnasium.registry else ""
        raise _unmakeable(spec, entry, error) from error
