"""A population as a search: its members are trials, its lineage and checkpoints stand in the run folder."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np

from podium.core import checkpoint, seeding
from podium.core.errors import ConfigError, PodiumError, UsageError
from podium.engine.base import Handle
from podium.optimizers.population import Descent, Population
from podium.planning import layout
from podium.run.folder import RunFolder, to_json, write_atomically
from podium.tuning.board import Board
from podium.tuning.ledger import Ledger
from podium.tuning.request import Asked
from podium.tuning.stage import Spawned, Stage
from podium.tuning.trial import Advanced

ATTEMPTS = 20
"""How often settings are explored that make no run, before the parent's are kept."""


class Members:
    """Trains a population in its folder, an interval of `--exploit-every` env steps at a time."""

    def __init__(self, stage: Stage, folder: RunFolder, board: Board) -> None:
        self.stage, self.folder, self.board, self.asked = stage, folder, board, stage.asked
        self.ledger = Ledger(folder, self.asked)
        self._spawned: dict[int, Spawned] = {}
        rng = seeding.generator(self.asked.config.seed, "members")
        drawn = [draw(self.asked, rng) for _ in range(self.asked.trials)]
        check_states_fit(self.asked, stage, drawn)
        with stage.signals.at_once():
            self.population = Population(
                stage.engine,
                self._spawn,
                drawn,
                partial(explore, self.asked),
                partial(score, self.asked),
                seed=self.asked.config.seed,
                at_once=stage.at_once.value,
                max_failures=self.asked.request.max_failed_trials,
            )
        self._figures: dict[int, dict[str, Any]] = {}

    def _spawn(self, index: int, params: Mapping[str, Any]) -> Handle:
        if index in self._spawned:
            self.stage.end(self._spawned.pop(index), kindly=False)
        self._spawned[index] = self.stage.spawn(index, params)
        return self._spawned[index].handle

    def run(self) -> None:
        """Advance, descend, advance: until the steps are done. What was killed goes on from the latest checkpoint."""
        if self.ledger.records:
            return  # it is over: every member has its line
        done = self._restore()
        if done == 0:
            self.folder.path.joinpath("lineage.jsonl").unlink(missing_ok=True)
            for index, params in enumerate(self.population.params):
                self.ledger.begin(index, params)
            self._note_descents(
                0, [Descent(0, i, None, None, None, None, p) for i, p in enumerate(self.population.params)]
            )
        self.stage.tell(self.folder)
        steps = self.asked.config.steps
        while done < steps:
            self.stage.check_signals()
            done = min(done + self.asked.every, steps)
            with self.stage.signals.at_once():
                news = self.population.advance(done)
            self._note(news)
            self.stage.tell(self.folder)
            if done < steps:
                with self.stage.signals.at_once():
                    descents = self.population.evolve()
                self._note_descents(done, descents)
                self._save(done)
        self._finish()

    def _note(self, news: list[Advanced | None]) -> None:
        causes = dict(self.population.failures)
        for index, advanced in enumerate(news):
            params = self.asked.space.settings(self.population.params[index])
            if advanced is None:
                self.board.say(f"member {index} failed and goes on from a better one: {causes[index]}")
                continue
            self.asked.goal.check(advanced.figures)
            self.ledger.write_rows(index, advanced.rows)
            self._figures[index] = advanced.figures
            self._spawned[index].processes = advanced.processes
            value = self.asked.goal.on_the_way(advanced.figures)
            self.board.update(index, params, "running", value=value, env_steps=int(advanced.figures["env_steps"]))

    def _note_descents(self, done: int, descents: list[Descent]) -> None:
        with open(self.folder.path / "lineage.jsonl", "a", encoding="utf-8") as file:
            for one in descents:
                file.write(to_json({"env_steps": done, **asdict(one)}) + "\n")
                if one.parent is not None:
                    self._figures[one.member] = self._figures[one.parent]

    # --- checkpoints ---

    def _save(self, done: int) -> None:
        """Every member whole, at a moment when all have reached the same env steps."""
        with self.stage.signals.at_once():
            state = self.population.get_state()
        members = {f"member-{index}": {"state": member} for index, member in enumerate(state.pop("members"))}
        name, figures = checkpoint.step_name(done), {str(index): one for index, one in self._figures.items()}
        info = {"algo": self.asked.algorithm.name, "env_steps": done, "exact": layout.ordered(self.asked.config)}
        checkpoint.save(
            self.folder.checkpoints / name,
            {**members, "population": {**state, "figures": figures, "rows": self.ledger.row_counts()}},
            info,
        )
        checkpoint.link(self.folder.checkpoints, "latest", name)
        checkpoint.prune(self.folder.checkpoints, 1)

    def _restore(self) -> int:
        """Back to the latest checkpoint, and the files with it; how far that was."""
        latest = self.folder.checkpoints / "latest"
        if not latest.exists():
            return 0
        parts, info = checkpoint.load(latest)
        state = dict(parts["population"])
        rows = state.pop("rows")
        self._figures = {int(index): one for index, one in state.pop("figures").items()}
        members = [parts[f"member-{index}"]["state"] for index in range(len(state["params"]))]
        with self.stage.signals.at_once():
            self.population.set_state({**state, "members": members})
        done = int(info["env_steps"])
        kept = [row for row in read_lineage(self.folder) if row["env_steps"] <= done]
        write_atomically(self.folder.path / "lineage.jsonl", "".join(to_json(row) + "\n" for row in kept))
        self.ledger.cut_rows(rows)
        return done

    # --- the end ---

    def _finish(self) -> None:
        """A line for each member, and its policy beside its curve."""
        goal = self.asked.goal
        for index, params in enumerate(self.population.params):
            figures = self._figures.get(index)
            try:
                if figures is None:
                    raise PodiumError("it never came as far as to report")
                more: dict[str, Any] = {"env_steps": int(figures["env_steps"])}
                value, state = goal.value(figures), "complete"
                handle = self.population.member(index)
                with self.stage.signals.at_once():
                    self.ledger.write_policy(index, self.stage.engine, handle, self.stage.traits, more["env_steps"])
            except PodiumError as error:
                value, state, more = None, "failed", {"cause": str(error)}
            shown = self.asked.space.settings(params)
            self.ledger.add({"number": index, "params": shown, "value": value, "state": state, **more})
            self.board.update(index, shown, state, value=value, **more)
        self.ledger.write_best()


def draw(asked: Asked, rng: np.random.Generator) -> dict[str, Any]:
    """Parameters that make a run."""
    for _ in range(ATTEMPTS):
        params = asked.space.draw(rng)
        if makes_a_run(asked, params):
            return params
    raise UsageError(f"of {ATTEMPTS} draws from what --search names none makes a run")


def explore(asked: Asked, params: Mapping[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Parameters near these that make a run."""
    for _ in range(ATTEMPTS):
        near = asked.space.explore(params, rng)
        if makes_a_run(asked, near):
            return near
    return dict(params)


def makes_a_run(asked: Asked, params: Mapping[str, Any]) -> bool:
    try:
        asked.configs()(params)
    except ConfigError:
        return False
    return True


def score(asked: Asked, advanced: Advanced) -> float:
    """More is better; who has nothing to show yet is no better than any."""
    found = asked.goal.on_the_way(advanced.figures)
    if found is None or math.isnan(found):
        return -1e300
    return found if asked.goal.direction == "maximize" else -found


def check_states_fit(asked: Asked, stage: Stage, drawn: list[dict[str, Any]]) -> None:
    """Refuse settings that make another network: a member could not take over the weights."""
    spaces, ends = stage.traits[:2], asked.space.dimensions
    first = drawn[0]
    for one in ends:
        policies = []
        for value in (one.ends[0], one.ends[-1]):
            if not makes_a_run(asked, params := {**first, one.name: value}):
                continue
            (config, *_) = asked.configs()(params)
            policies.append(asked.algorithm.policy(config.replace(device="cpu"), *spaces, config.seed))
        if len(policies) == 2:
            try:
                policies[1].set_state(policies[0].get_state(full=True))
            except Exception as error:
                raise UsageError(
                    f"--search {one.text}: members of a population take over each other's weights, and these would not fit: "
                    f"{error}"
                ) from None


def read_lineage(folder: RunFolder) -> list[dict[str, Any]]:
    """Who went on from whom."""
    path = folder.path / "lineage.jsonl"
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")
    return [json.loads(line) for line in lines[:-1]]
