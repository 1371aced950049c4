"""A run without its folder: an algorithm built on an engine, which is stepped, evaluated and counted."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

from podium.algorithms.common.base import Algorithm, RunConfig, Setup
from podium.core.metrics import EpisodeWindow
from podium.core.seeding import integer
from podium.engine.base import Engine
from podium.envs.make import EnvSpec, Traits, spaces_of
from podium.evaluation.sample import Report
from podium.optimizers import meter


@dataclass
class Counters:
    """What a run counts; all of it comes from the data and is part of the checkpoint but where this process began."""

    env_steps: int = 0
    updates: int = 0
    evaluations: int = 0
    best_return: float | None = None
    eval_return_mean: float | None = None
    resumed_from: int | None = None
    window: EpisodeWindow = field(default_factory=EpisodeWindow)

    def get_state(self) -> dict[str, Any]:
        state = {**vars(self), "window": self.window.get_state()}
        del state["resumed_from"]
        return state

    def set_state(self, state: Mapping[str, Any]) -> None:
        self.window.set_state(state["window"])
        vars(self).update({name: value for name, value in state.items() if name != "window"})


def spaces_info(env: EnvSpec, traits: Traits) -> dict[str, Any]:
    """What a checkpoint says of the spaces that its policy is for; where it acts from -1 to 1 also the env's own."""
    observation_space, action_space, _ = traits
    own = spaces_of(replace(env, rescale_actions=False))[1] if env.rescale_actions else action_space
    return {
        "observation_space": observation_space.to_json(),
        "action_space": action_space.to_json(),
        "env_action_space": own.to_json(),
    }


class Training:
    """What a run does between its start and its end, an iteration at a time; who calls decides what is kept of it.

    `best` is the policy of the best return so far, as far as acting goes.
    """

    def __init__(self, algorithm: Algorithm, env: EnvSpec, config: RunConfig, engine: Engine, traits: Traits) -> None:
        self.env, self.config, self.engine, self.traits = env, config, engine, traits
        self.counters = Counters()
        self.best: dict[str, Any] | None = None
        self.optimizer = algorithm.build(config, Setup(engine, env, *traits[:2]))

    def iterate(self) -> dict[str, Any]:
        """One step of the optimizer, and the evaluation that falls on it; returns its row of figures."""
        began, counters = perf_counter(), self.counters
        step = self.optimizer.step(min(counters.env_steps / self.config.steps, 1.0))
        counters.env_steps += step.env_steps
        counters.updates = self.optimizer.updates
        counters.window.add([r for r, _ in step.episodes], [length for _, length in step.episodes])
        row = self._row(step, perf_counter() - began)
        if self.crossed(self.config.eval_every, row):
            self._evaluate(row)
        self._remember_best()
        return row

    def _row(self, step: Report, seconds: float) -> dict[str, Any]:
        counters, shares = self.counters, meter.shares(step, seconds, self.engine.apart)
        return {
            "env_steps": counters.env_steps,
            "frames": self.frames,
            "episodes": counters.window.episodes,
            "updates": counters.updates,
            "return_mean": counters.window.mean,
            "length_mean": counters.window.length_mean,
            "steps_per_s": step.env_steps / seconds,
            "sampled_steps": step.env_steps,
            **step.metrics.values(),
            **{f"time_{name}_s": value for name, value in step.timers.items()},
            **{f"share_{name}": value for name, value in shares.items()},
            "limited_by": meter.limit(shares),
        }

    @property
    def frames(self) -> int:
        return self.counters.env_steps * self.traits.frames_per_step

    def crossed(self, every: int | None, row: Mapping[str, Any]) -> bool:
        """Whether this iteration passed a multiple of `every` env steps."""
        steps = self.counters.env_steps
        return every is not None and steps // every > (steps - row["sampled_steps"]) // every

    def stop_reason(self) -> str | None:
        """Why the run is over, if it is."""
        goal, target = self._goal(), self.config.stop_return
        if goal is not None and target is not None and goal >= target:
            return "stop_return"
        return "steps" if self.counters.env_steps >= self.config.steps else None

    def _goal(self) -> float | None:
        """The return that stopping and `best` go by."""
        if self.config.eval_every is not None:
            return self.counters.eval_return_mean
        return self.counters.window.mean if self.counters.window.full else None

    def _evaluate(self, row: dict[str, Any]) -> None:
        seed = integer(self.config.seed, "eval", self.counters.evaluations)
        self.counters.evaluations += 1
        began = perf_counter()
        call = self.optimizer.learner().call("evaluate", self.env, self.config.eval_episodes, seed)
        played = self.engine.get(call)
        self.counters.eval_return_mean = float(played.returns.mean())
        row["eval_return_mean"] = self.counters.eval_return_mean
        row["eval_return_std"] = float(played.returns.std())
        row["time_eval_s"] = perf_counter() - began

    def _remember_best(self) -> None:
        goal, best = self._goal(), self.counters.best_return
        if goal is not None and (best is None or goal > best):
            self.counters.best_return = goal
            self.best = self.policy()

    def policy(self) -> dict[str, Any]:
        """The policy as far as acting goes."""
        return self.engine.get(self.optimizer.learner().call("policy_state"))

    def get_state(self, restart: bool) -> dict[str, Any]:
        """All but the replay, which is too much to be kept in memory a second time."""
        state = self.optimizer.get_state(restart)
        return {"optimizer": state, "counters": copy.deepcopy(self.counters.get_state()), "best": self.best}

    def close(self) -> None:
        self.optimizer.close()
