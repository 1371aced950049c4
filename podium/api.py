"""The Python API, in the command line's words: train, plan, resume, evaluate, load."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from podium import algorithms
from podium.algorithms.common.base import Algorithm, RunConfig
from podium.core import checkpoint, spaces
from podium.core.errors import UsageError
from podium.core.imports import attribute_name
from podium.core.seeding import integer
from podium.core.spaces import Columns, Leaf, Space
from podium.envs.check import mask_problem
from podium.envs.convert import MASK_KEY, mask_row
from podium.envs.make import EnvSpec, describe, make
from podium.envs.names import lasting_args, note
from podium.envs.numbers import Numbers
from podium.evaluation.play import play
from podium.planning.layout import warn
from podium.policies.base import Policy
from podium.run import remote
from podium.run.callbacks import Callback
from podium.run.folder import RunFolder, default_path

Env = str | Callable[..., Any]


@dataclass(frozen=True)
class Result:
    """What a run came to: the figures of result.json, where its files are, and its policy. A run at an address
    (`s3://...`) has its files there, and copies of them in `folder`."""

    folder: Path
    figures: Mapping[str, Any]
    env: Env
    algorithm: Algorithm
    address: str | None = None

    def __getitem__(self, name: str) -> Any:
        return self.figures[name]

    @property
    def policy(self) -> Player:
        return load(self.folder, algo=self.algorithm)


class Player:
    """A trained policy that acts on single observations or on rows of them, in the env's own form.

    `bounds` is the env's action space where the policy acts from -1 to 1 for it.
    """

    def __init__(
        self, policy: Policy, observation_space: Space, action_space: Leaf, bounds: spaces.Box | None = None
    ) -> None:
        self.policy, self.observation_space, self.action_space = policy, observation_space, action_space
        self.bounds = bounds
        self._numbers = Numbers(observation_space, action_space, bounds)
        self._state: Columns = {}

    def reset(self) -> None:
        """Forget what a recurrent policy remembers: a new episode begins."""
        self._state = {}

    def predict(self, obs: Any, mask: Any = None, stochastic: bool = False) -> Any:
        """The action for one observation, or the actions for rows of them. The mask may stand in the observation."""
        rows, single = self._rows(obs)
        n = len(next(iter(rows.values())))
        if not self._state or len(next(iter(self._state.values()))) != n:
            self._state = self.policy.initial_state(n)
        if mask is None and isinstance(obs, Mapping):
            mask = obs.get(MASK_KEY)
        acted = self.policy.act(rows, self._state, None if mask is None else self._legal(mask, n), explore=stochastic)
        self._state = acted.state
        action = self._numbers.action(acted.action)
        return action[0] if single else action

    def _rows(self, obs: Any) -> tuple[Columns, bool]:
        """The observation as columns of rows, and whether it was a single one."""
        leaves = spaces.leaves(self.observation_space, "obs")
        try:
            columns = spaces.flatten(self.observation_space, obs, "obs")
        except KeyError as error:
            raise UsageError(f"the observation has no {error.args[0]}, expected {self.observation_space}") from None
        path, leaf = next(iter(leaves.items()))
        single = columns[path].ndim == len(leaf.shape)
        rows = {name: np.ascontiguousarray(column[None] if single else column) for name, column in columns.items()}
        for name, expected in leaves.items():
            if rows[name].shape[1:] != expected.shape:
                shape = list(columns[name].shape)
                raise UsageError(f"{name} has shape {shape}, expected {list(expected.shape)} or rows of it")
            if len(rows[name]) != len(rows[path]):
                raise UsageError(f"{name} has {len(rows[name])} rows and {path} has {len(rows[path])}")
        return self._numbers.observed(rows), single

    def _legal(self, mask: Any, n: int) -> np.ndarray:
        rows = mask_row(mask).reshape(n, -1)
        problem = mask_problem(rows, self.action_space)
        if problem is not None:
            raise UsageError(f"a mask {problem}")
        return rows


def train(
    algo: str | Algorithm,
    env: Env | None = None,
    *,
    out: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    preset: str | None = None,
    env_args: Mapping[str, Any] | None = None,
    start_from: str | os.PathLike[str] | None = None,
    callbacks: Sequence[Callback] = (),
    progress: bool = True,
    **settings: Any,
) -> Result:
    """Train and return what it came to. `settings` are the fields of the algorithm's config."""
    from podium.driver import Run

    algorithm = algo if isinstance(algo, Algorithm) else algorithms.get(algo)
    if env is None:
        raise UsageError("train needs an env, such as CartPole-v1")
    config = algorithm.configure(preset, {**settings, **({"env_args": dict(env_args)} if env_args else {})})
    spec = env_spec(env, config)
    address = os.fspath(out) if out is not None and remote.is_remote(out) else None
    if address is not None:
        out, overwrite = remote.begin(address, overwrite), True
        callbacks = [*callbacks, remote.Mirror(out, address)]
    folder = RunFolder(out if out is not None else default_path(algorithm.name, describe(spec), config.seed))
    folder.check_free(overwrite)
    name = algo if isinstance(algo, str) else algorithm.name
    with closing(Run(algorithm, spec, config, folder, callbacks, progress)) as run:
        if start_from is not None:
            run.start_from(_policy_state(local(start_from), "latest")[0])
        RunFolder.create(folder.path, described_config(name, spec, run.config, start_from), overwrite)
        with folder.in_use():
            return Result(folder.path, run.train(), env, algorithm, address)


def plan(
    algo: str | Algorithm,
    env: Env | None = None,
    *,
    preset: str | None = None,
    env_args: Mapping[str, Any] | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """What `train` with the same words would run, what it would take up and how fast it would be; nothing is trained."""
    from podium.planning.plan import plan

    algorithm, spec, config = _asked(algo, env, preset, env_args, settings)
    return plan(algorithm, spec, config)


def _asked(
    algo: str | Algorithm,
    env: Env | None,
    preset: str | None,
    env_args: Mapping[str, Any] | None,
    settings: Mapping[str, Any],
) -> tuple[Algorithm, EnvSpec, RunConfig]:
    """What was asked for, with its settings checked."""
    algorithm = algo if isinstance(algo, Algorithm) else algorithms.get(algo)
    if env is None:
        raise UsageError("expected an env, such as CartPole-v1")
    config = algorithm.configure(preset, {**settings, **({"env_args": dict(env_args)} if env_args else {})})
    return algorithm, env_spec(env, config), config


def resume(
    folder: str | os.PathLike[str],
    steps: int | str | None = None,
    *,
    env: Env | None = None,
    algo: Algorithm | None = None,
    callbacks: Sequence[Callback] = (),
    progress: bool = True,
) -> Result:
    """Go on with a run from its latest checkpoint; `steps` sets a new end. A finished run is returned as it is."""
    from podium.driver import Run

    address = os.fspath(folder) if remote.is_remote(folder) else None
    opened = RunFolder.open(local(folder))
    if address is not None:
        callbacks = [*callbacks, remote.Mirror(opened.path, address)]
    algorithm, spec, config = settings_of(opened, env, algo)
    done = opened.read_result()
    if steps is not None:
        config = config.replace(steps=steps)
    if done is not None and done["status"] == "finished" and (steps is None or done["env_steps"] >= config.steps):
        return Result(opened.path, done, env or describe(spec), algorithm, address)
    if done is not None and done["status"] == "finished":
        config = config.replace(stop_return=None)  # it has been reached, and more is asked for
    start = opened.config.get("from")
    with opened.in_use(), closing(Run(algorithm, spec, config, opened, callbacks, progress)) as run:
        if not run.restore() and start is not None:
            run.start_from(_policy_state(local(start), "latest")[0])
        if steps is not None:
            opened.update_config(described_config(opened.config["algo"], spec, config, start))
        return Result(opened.path, run.train(), env or describe(spec), algorithm, address)


def load(folder: str | os.PathLike[str], checkpoint_name: str = "latest", algo: Algorithm | None = None) -> Player:
    """The policy of a run, ready to act: `podium.load(DIR).predict(obs)`."""
    folder = local(folder)
    state, info = _policy_state(folder, checkpoint_name)
    opened = RunFolder.open(folder)
    algorithm, _, config = settings_of(opened, None, algo)
    observation_space = spaces.from_json(info["observation_space"])
    action_space: Any = spaces.from_json(info["action_space"])
    stretched: Any = spaces.from_json(info["env_action_space"]) if config.rescale_actions else None
    policy = algorithm.policy(config, observation_space, action_space, config.seed)
    policy.set_state(state)
    return Player(policy, observation_space, action_space, stretched)


def evaluate(
    folder: str | os.PathLike[str],
    episodes: int = 20,
    *,
    checkpoint_name: str = "latest",
    stochastic: bool = False,
    seed: int | None = None,
    video: str | os.PathLike[str] | None = None,
    env: Env | None = None,
    algo: Algorithm | None = None,
) -> dict[str, Any]:
    """Play whole episodes with a run's policy, deterministically unless `stochastic`; optionally film the first."""
    from podium.run.video import Recorder

    folder = local(folder)
    player = load(folder, checkpoint_name, algo)
    _, spec, config = settings_of(RunFolder.open(folder), env, algo)
    base = config.seed if seed is None else seed
    with ExitStack() as stack:
        recorder = stack.enter_context(Recorder(video)) if video is not None else None
        vector = make(spec, min(episodes, 1 if video else 16), render=video is not None)
        stack.callback(vector.close)
        seeds = [integer(base, "evaluate", i) for i in range(vector.n)]
        played = play(
            vector, player.policy, episodes, seeds, stochastic, recorder.frame if recorder is not None else None
        )
    return {
        "return_mean": float(played.returns.mean()),
        "return_std": float(played.returns.std()),
        "return_min": float(played.returns.min()),
        "return_max": float(played.returns.max()),
        "episodes": len(played.returns),
        "length_mean": float(played.lengths.mean()),
        "checkpoint": checkpoint_name,
        "stochastic": stochastic,
    }


def local(folder: str | os.PathLike[str]) -> Path:
    """A run's folder on this machine; one at an address is fetched."""
    return remote.fetch(os.fspath(folder)) if remote.is_remote(folder) else Path(folder)


def env_spec(env: Env, config: RunConfig) -> EnvSpec:
    """The env with the settings that shape it."""
    if said := note(env):
        warn(said)
    return EnvSpec(
        env,
        args=dict(config.env_args),
        frame_stack=config.frame_stack,
        time_limit=config.time_limit,
        rescale_actions=config.rescale_actions,
        processes=config.env_processes,
    )


def described_config(algo: str, spec: EnvSpec, config: RunConfig, start: Any = None) -> dict[str, Any]:
    """What config.json holds: every setting, also the defaults; the user's own objects by their importable name. Secrets
    stay out of it."""
    fields = {name: attribute_name(value) if callable(value) else value for name, value in config.to_json().items()}
    fields["env_args"] = lasting_args(spec, config.env_args)
    return {"algo": algo, "env": describe(spec), "from": os.fspath(start) if start is not None else None, **fields}


def settings_of(folder: RunFolder, env: Env | None, algo: Algorithm | None) -> tuple[Algorithm, EnvSpec, RunConfig]:
    """The algorithm, env and settings that a run's folder names; objects that have no name to import are given again."""
    stored = dict(folder.config)
    _check_one_run(folder)
    algorithm = algo or algorithms.get(stored.pop("algo"))
    name = stored.pop("env")
    config = algorithm.config.build({k: v for k, v in stored.items() if k not in ("algo", "from")})
    return algorithm, env_spec(env or name, config), config


def _check_one_run(folder: RunFolder) -> None:
    if "search" in folder.config:
        raise UsageError(f"{folder.path} holds a search, whose runs are in {folder.path / 'trials'}")


def _policy_state(folder: str | os.PathLike[str], checkpoint_name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    opened = RunFolder.open(folder)
    _check_one_run(opened)
    path = opened.checkpoints / checkpoint_name
    if not path.exists():
        known = sorted(entry.name for entry in opened.checkpoints.iterdir()) if opened.checkpoints.exists() else []
        raise UsageError(
            f"{opened.path} has no checkpoint {checkpoint_name!r}; there are: {', '.join(known) or 'none yet'}"
        )
    parts, info = checkpoint.load(path, only=("policy",))
    return parts["policy"], info
