"""An env's state as plain data, for the kinds that can give and take it exactly."""

from __future__ import annotations

from typing import Any

import numpy as np

from podium.core import seeding
from podium.core.errors import UsageError

OWNED = ("gymnasium.envs.classic_control", "gymnasium.envs.toy_text")
MUJOCO = "gymnasium.envs.mujoco"
WRAPPERS_WITH_STATE = {"TimeLimit", "OrderEnforcing", "PassiveEnvChecker"}
WRAPPERS_WITHOUT = {
    "ClipAction",
    "ClipReward",
    "DtypeObservation",
    "FilterObservation",
    "FlattenObservation",
    "RescaleAction",
    "RescaleObservation",
    "ReshapeObservation",
}
DRAWING = {"render_mode", "screen", "screens", "surf", "clock", "isopen", "window_surface", "cell_size", "fps"}
# What MuJoCo's envs read before the next step recomputes it, and which its integration state doesn't hold.
DERIVED = (
    "xpos", "xquat", "xmat", "xipos", "ximat", "geom_xpos", "site_xpos", "subtree_com", "cinert", "cvel", "cfrc_ext",
    "qfrc_actuator", "actuator_force", "sensordata", "qacc",
)  # fmt: skip


def capture(env: Any) -> dict[str, Any] | None:
    """The state of a gymnasium env (single or vector) through its wrappers; None where a layer can't give it."""
    layers = []
    while True:
        if has_own_state(env):
            layers.append({"own": encode(env.get_state(), f"get_state() of {type(env).__name__}")} | _rng(env))
            return {"layers": layers}
        inner = env.__dict__.get("env")
        if inner is None:
            base = _capture_base(env)
            return None if base is None else {"layers": [*layers, base]}
        if not _known_wrapper(env):
            return None
        layers.append({"fields": _fields(env) if type(env).__name__ in WRAPPERS_WITH_STATE else {}})
        env = inner


def restore(env: Any, state: dict[str, Any]) -> None:
    """Put a captured state into an env made the same way."""
    for layer in state["layers"]:
        if "rng" in layer:
            seeding.set_state(env.unwrapped.np_random, layer["rng"])
        if "own" in layer:
            env.set_state(decode(layer["own"]))
            return
        for name, value in layer["fields"].items():
            setattr(env, name, decode(value))
        if "mujoco" in layer:
            _restore_mujoco(env, layer)
        env = env.__dict__.get("env")


def has_own_state(env: Any) -> bool:
    """Whether the env's author wrote `get_state` and `set_state`."""
    return callable(getattr(type(env), "get_state", None)) and callable(getattr(type(env), "set_state", None))


def encode(value: Any, what: str) -> Any:
    """Plain data with tuples and numpy scalars marked, since they would come back from a file as something else."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        return value.copy()
    if isinstance(value, np.generic) and value.dtype.kind in "biuf":
        return {"numpy scalar": np.array([value])}
    if isinstance(value, tuple):
        return {"tuple": [encode(item, what) for item in value]}
    if isinstance(value, list):
        return [encode(item, what) for item in value]
    if isinstance(value, dict) and all(type(key) is str for key in value):
        return {"dict": {key: encode(item, what) for key, item in value.items()}}
    raise UsageError(f"{what} holds a {type(value).__name__}, expected dicts with text keys, lists, arrays and numbers")


def decode(value: Any) -> Any:
    """What `encode` was given."""
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, list):
        return [decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    ((mark, body),) = value.items()
    if mark == "numpy scalar":
        return body[0]
    if mark == "tuple":
        return tuple(decode(item) for item in body)
    return {key: decode(item) for key, item in body.items()}


def _known_wrapper(env: Any) -> bool:
    kind = type(env)
    return kind.__module__.startswith("gymnasium.wrappers") and kind.__name__ in WRAPPERS_WITH_STATE | WRAPPERS_WITHOUT


def _capture_base(env: Any) -> dict[str, Any] | None:
    module = type(env).__module__
    if module.startswith(OWNED):
        return {"fields": _fields(env)} | _rng(env)
    if module.startswith(MUJOCO) and hasattr(env, "data") and hasattr(env, "model"):
        return {"fields": _fields(env)} | _rng(env) | _capture_mujoco(env)
    return None


def _rng(env: Any) -> dict[str, Any]:
    rng = getattr(env.unwrapped, "_np_random", None)
    return {"rng": seeding.get_state(rng)} if isinstance(rng, np.random.Generator) else {}


def _fields(env: Any) -> dict[str, Any]:
    """The attributes that are plain data; spaces, tables and drawing stay as the constructor made them."""
    fields = {}
    for name, value in vars(env).items():
        if name not in DRAWING and not isinstance(value, dict):
            try:
                fields[name] = encode(value, name)
            except UsageError:
                continue
    return fields


def _capture_mujoco(env: Any) -> dict[str, Any]:
    import mujoco

    kind = mujoco.mjtState.mjSTATE_INTEGRATION
    state = np.empty(mujoco.mj_stateSize(env.model, kind), np.float64)
    mujoco.mj_getState(env.model, env.data, state, kind)
    return {"mujoco": state, "derived": {name: np.array(getattr(env.data, name)) for name in DERIVED}}


def _restore_mujoco(env: Any, layer: dict[str, Any]) -> None:
    import mujoco

    kind = mujoco.mjtState.mjSTATE_INTEGRATION
    mujoco.mj_setState(env.model, env.data, layer["mujoco"], kind)
    mujoco.mj_forward(env.model, env.data)
    # Some versions move the solver's warm start in `mj_forward`, and it belongs to the state.
    mujoco.mj_setState(env.model, env.data, layer["mujoco"], kind)
    for name, value in layer["derived"].items():
        getattr(env.data, name)[:] = value
