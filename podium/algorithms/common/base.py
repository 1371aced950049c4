"""What an algorithm is: its settings, its policy, and how it is put together over an engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from podium.core.config import Config, flag, setting
from podium.core.errors import ConfigError, UsageError, known_names
from podium.core.spaces import Leaf, Space
from podium.engine.base import Engine, Resources
from podium.engine.plan import GIB
from podium.envs.make import EnvSpec
from podium.optimizers.base import Optimizer

OptimizerName = Literal[
    "sync_samples",
    "allreduce",
    "multi_device",
    "async_gradients",
    "parameter_server",
    "async_samples",
    "sync_replay",
    "async_replay",
    "evolution",
]
OPTIMIZERS: tuple[str, ...] = get_args(OptimizerName)
Workers = int | Literal["auto"]
CENTRAL = ("inference", ("central",))
CENTRAL_OPTIMIZERS = ("sync_samples", "multi_device", "async_samples")
REPLAY_OPTIMIZERS = ("sync_replay", "async_replay")
EVOLUTION_OPTIMIZERS = ("evolution",)
NEED_WORKERS = ("allreduce", "async_gradients", "parameter_server", "async_samples", "async_replay")


def workers(default: int) -> Any:
    """The setting of that name, with a default that fits the algorithm."""
    help = "evaluators that sample beside the learner; with none the learner samples; auto takes what the plan suggests"
    return setting(default, help, low=0, high=4096)


def optimizer(default: str) -> Any:
    """The setting of that name, with a default that fits the algorithm."""
    return setting(default, "the distribution strategy")


@dataclass(frozen=True)
class RunConfig(Config):
    """The settings that every algorithm has."""

    steps: int = setting(1_000_000, "end after the first iteration with this many env steps", unit="env steps", low=1)
    seed: int = setting(0, "every random number comes from it", low=0)
    stop_return: float | None = setting(None, "end when the mean return reaches this")
    envs: int = setting(8, "envs per evaluator, stepped together", low=1)
    fragment: int = setting(128, "steps per env in a sample", unit="steps", low=1)
    workers: Workers = workers(0)
    engine: Literal["local", "ray"] = setting("local", "where the evaluators run: in this process, or on Ray")
    address: str | None = setting(
        None, "a running Ray cluster, host:port or auto; none starts one here", only=("engine", ("ray",))
    )
    cpus_per_worker: float = setting(0.0, "cores that a worker reserves for itself", low=0, only=("engine", ("ray",)))
    gpus_per_worker: float = setting(0.0, "GPUs that a worker reserves", low=0, only=("engine", ("ray",)))
    memory_per_worker: float = setting(
        0.0, "memory that a worker reserves", unit="GiB", low=0, only=("engine", ("ray",))
    )
    max_failures: int = setting(3, "workers that may fail with nothing finished between them", low=0)
    worker_timeout: float = setting(300.0, "a worker whose call takes longer is replaced", unit="s", above=0)
    optimizer: OptimizerName = optimizer("sync_samples")
    learners: int = setting(2, "devices that learn together", low=1, high=1024, only=("optimizer", ("multi_device",)))
    device_memory: float | None = setting(
        None,
        "of a device, for its share of a sample; none asks it",
        unit="GiB",
        above=0,
        only=("optimizer", ("multi_device",)),
    )
    shards: int = setting(1, "parts of the parameters", low=1, high=1024, only=("optimizer", ("parameter_server",)))
    synchronous: bool = setting(
        False,
        "apply the mean of all workers' gradients, not each as it comes",
        only=("optimizer", ("parameter_server",)),
    )
    samples: int = setting(1, "fragments in an update", low=1, only=("optimizer", ("async_samples",)))
    queue: int = setting(8, "fragments that may wait for the learner", low=1, only=("optimizer", ("async_samples",)))
    max_lag: int | None = setting(
        None, "drop fragments whose weights are older", unit="updates", low=0, only=("optimizer", ("async_samples",))
    )
    inference: Literal["local", "central"] = setting(
        "local", "where workers' policies are: with each its own, or on one server that all of them ask"
    )
    inference_batch: int | None = setting(
        None, "a pass has so many at most; none is those of all workers", unit="rows", low=1, only=CENTRAL
    )
    inference_wait_ms: float = setting(
        0.0, "how long the first row waits for a full pass; 0 takes what is there", unit="ms", low=0, only=CENTRAL
    )
    device: str = setting("cpu", "where the networks live: cpu, cuda, cuda:1, auto")
    threads: int = setting(1, "compute threads of the learner", low=1, high=1024)
    checkpoint_every: int | None = setting(
        50_000, "between checkpoints; none writes only the last", unit="env steps", low=1
    )
    keep: int = setting(3, "checkpoints that stay, beside latest and best", low=1)
    eval_every: int | None = setting(None, "between evaluations on separate, uncounted envs", unit="env steps", low=1)
    eval_episodes: int = setting(20, "episodes per evaluation", low=1)
    preset: Any = setting(None, "the named set that the settings began with, and its origin", internal=True)
    env_args: Any = setting({}, "arguments of the env, as --env-arg k=v", internal=True)
    env_processes: int = setting(0, "processes that step the envs; 0 steps them in the evaluator", low=0, high=1024)
    frame_stack: int = setting(1, "observations in a row that the policy sees", low=1)
    time_limit: int | None = setting(None, "cut episodes after this many steps", unit="steps", low=1)
    rescale_actions: bool = setting(False, "let the policy act from -1 to 1 whatever the env's bounds")

    @property
    def each_worker(self) -> Resources:
        """What every worker reserves."""
        return Resources(self.cpus_per_worker, self.gpus_per_worker, int(self.memory_per_worker * GIB))

    def check(self) -> None:
        if self.env_processes > self.envs:
            raise ConfigError(f"--env-processes is {self.env_processes}, expected at most --envs, which is {self.envs}")
        if self.optimizer == "multi_device" and self.envs < self.learners:
            raise ConfigError(
                f"--learners is {self.learners}, expected at most --envs, which is {self.envs}: they share them"
            )
        if self.optimizer in NEED_WORKERS and not self.workers:
            raise ConfigError(f"--workers is 0, expected at least 1: with --optimizer {self.optimizer} workers play")
        if self.inference == "central":
            self._check_central()

    def _check_central(self) -> None:
        if self.optimizer in REPLAY_OPTIMIZERS:
            raise ConfigError(
                f"--inference central does not fit --optimizer {self.optimizer}: each env of a worker explores by a share "
                "of its own, which a server of all workers' rows can't tell; expected local"
            )
        if self.optimizer in EVOLUTION_OPTIMIZERS:
            raise ConfigError(
                f"--inference central does not fit --optimizer {self.optimizer}: each row of a worker acts by parameters of "
                "its own; expected local"
            )
        if self.optimizer not in CENTRAL_OPTIMIZERS:
            raise ConfigError(
                f"--inference central does not fit --optimizer {self.optimizer}: its workers learn, and hold the policy "
                f"for that; expected one of {', '.join(CENTRAL_OPTIMIZERS)}"
            )
        if not self.workers:
            raise ConfigError("--workers is 0, expected at least 1: with --inference central they ask the server")
        for name in ("inference_batch", "inference_wait_ms") if self.engine == "local" else ():
            if getattr(self, name) != getattr(type(self), name):
                raise ConfigError(
                    f"{flag(name)} would not be read: with --engine local workers play one after the other, and nobody "
                    "is waited for"
                )
        if self.gpus_per_worker:
            raise ConfigError(
                f"--gpus-per-worker {self.gpus_per_worker:g} would not be read: with --inference central the server "
                "has the policy, on --device"
            )


@dataclass(frozen=True)
class Setup:
    """What a run brings to an algorithm: where to run, the env, its spaces."""

    engine: Engine
    env: EnvSpec
    observation_space: Space
    action_space: Leaf


PolicyMaker = Callable[[Any, Space, Leaf, int], Any]  # a Policy, or whatever acts for an optimizer that asks for less
Build = Callable[[Any, Setup], Optimizer]


@dataclass(frozen=True)
class Algorithm:
    """A frozen config, a policy and a way to build; presets are named sets of settings, `origin` says of one where it is
    from."""

    name: str
    config: type[RunConfig]
    policy: PolicyMaker
    build: Build
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)  # optimizers that make no sense under it, and why

    def configure(self, preset: str | None, given: Mapping[str, Any]) -> RunConfig:
        """The checked settings: what was given, over the preset's, over the defaults."""
        if preset is not None and preset not in self.presets:
            raise UsageError(f"{self.name} has no preset {preset!r}{known_names(preset, self.presets)}")
        chosen = dict(self.presets[preset]) if preset is not None else {}
        origin = {"preset": {"name": preset, "origin": chosen.pop("origin", None)}} if preset is not None else {}
        settings = {**chosen, **given, **origin}
        if (reason := self.refused.get(settings.get("optimizer", ""))) is not None:
            fitting = [name for name in OPTIMIZERS if name not in self.refused]
            raise ConfigError(
                f"--optimizer {settings['optimizer']} does not fit {self.name}: {reason}; "
                f"expected one of {', '.join(fitting)}"
            )
        return self.config.build(settings)
