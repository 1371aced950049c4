"""The search: trials are taken from the book, nested on the engine, looked at now and then, stopped early or told."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import optuna
from optuna.trial import TrialState

from podium.core.errors import PodiumError
from podium.engine.base import Ref
from podium.run.folder import RunFolder
from podium.tuning.board import Board
from podium.tuning.book import Book
from podium.tuning.goal import UnknownMetric
from podium.tuning.ledger import Ledger
from podium.tuning.request import Asked
from podium.tuning.samplers import PerTrial, pruner
from podium.tuning.stage import Spawned, Stage
from podium.tuning.storage import check_own
from podium.tuning.trial import Advanced

LOOK_S = 0.5
"""How long the controller waits for trials before it looks at signals and at what others have done."""


@dataclass
class Running:
    """A trial under way: how far it was told to go, and what it will say when it is there."""

    trial: optuna.Trial
    target: int
    spawned: Spawned | None = None
    ref: Ref | None = None


class Search:
    """One controller of a search, in a folder of its own; others may work at the same storage."""

    def __init__(self, stage: Stage, folder: RunFolder, board: Board) -> None:
        self.stage, self.folder, self.board = stage, folder, board
        self.asked = stage.asked
        self.ledger = Ledger(folder, self.asked)
        self.book = open_book(self.asked, folder)
        self._running: dict[int, Running] = {}
        self._failures: list[str] = []

    def run(self) -> None:
        """Until nothing waits any more; what is under way when it ends otherwise waits for whoever goes on."""
        self.book.claim()
        self.book.fill(self.asked.trials, self.asked.space.grid() if self.asked.sampler == "grid" else None)
        self._sync()
        try:
            while self._start_more() or self._running or self._is_more():
                self.stage.check_signals()
                self.book.is_seen()
                self.stage.tell(self.folder)
                if self._running:
                    self._look()
        finally:
            for running in list(self._running.values()):
                self._end(running, kindly=False)
                self.book.give_back(running.trial)
            self._sync()

    def _is_more(self) -> bool:
        """Whether others have left something, or may have."""
        unsure = self.book.claim()
        if unsure:
            time.sleep(LOOK_S)
        return unsure or any(trial.state == TrialState.WAITING for trial in self.book.trials())

    def _start_more(self) -> bool:
        """Let as many run as may; whether there was one to start."""
        started = False
        while len(self._running) < self.stage.at_once.value:
            self.stage.check_signals()
            trial = self.book.take()
            if trial is None:
                break
            started = True
            running = self._running[trial.number] = Running(trial, 0)
            try:
                with self.stage.signals.at_once():
                    self.ledger.begin(trial.number, trial.params)
                    running.spawned = self.stage.spawn(trial.number, trial.params)
                self._go_on(running)
            except Exception as error:
                self._failed(running, error)
        return started

    def _go_on(self, running: Running) -> None:
        assert running.spawned is not None
        running.target += self.asked.every
        self._show(running, "running")
        with self.stage.signals.at_once():  # the engine of this process advances it right here
            running.ref = running.spawned.handle.call("advance", running.target)

    def _look(self) -> None:
        refs = {id(one.ref): one for one in self._running.values()}
        with self.stage.signals.at_once():
            ready, _ = self.stage.engine.wait([one.ref for one in refs.values() if one.ref is not None], 1, LOOK_S)
        for ref in ready:
            running = refs[id(ref)]
            try:
                with self.stage.signals.at_once():
                    news: Advanced = self.stage.engine.get(ref)
                assert running.spawned is not None
                running.spawned.processes = news.processes
                value = self._value(running, news)
            except UnknownMetric as error:
                self._tell(running, "failed", cause=str(error))
                raise
            except Exception as error:
                self._failed(running, error)
            else:
                self._news(running, news, value)

    def _value(self, running: Running, news: Advanced) -> float | None:
        """What a trial came to, once it is over and has not missed the return that it was to reach; with its policy kept."""
        goal, figures = self.asked.goal, news.figures
        self.ledger.write_rows(running.trial.number, news.rows)
        goal.check(figures)
        if not news.over or (goal.spends and not news.reached):
            return None
        value = goal.value(figures)
        self._write_policy(running, int(figures["env_steps"]))
        return value

    def _news(self, running: Running, news: Advanced, value: float | None) -> None:
        goal, figures = self.asked.goal, news.figures
        so_far = goal.on_the_way(figures)
        stop = so_far is not None and self.book.report(running.trial, running.target, so_far)
        spent = {"env_steps": int(figures["env_steps"]), "wall_s": round(figures["wall_s"], 3)}
        if goal.spends and so_far is not None:
            spent["return"] = -so_far
        shown = {} if goal.spends else {"value": so_far}
        if value is not None:
            self._tell(running, "complete", value=value, **spent)
        elif news.over:
            self._tell(running, "missed", missed=True, **spent)
        elif stop:
            self._tell(running, "pruned", **shown, **spent)
        else:
            self._show(running, "running", **shown, **spent)
            self._go_on(running)

    def _write_policy(self, running: Running, env_steps: int) -> None:
        assert running.spawned is not None
        engine, trial = self.stage.engine, running.spawned.handle
        self.ledger.write_policy(running.trial.number, engine, trial, self.stage.traits, env_steps)

    def _tell(self, running: Running, state: str, **notes: Any) -> None:
        """The end of a trial: in the study first, which decides what is finished, then in the files."""
        del self._running[running.trial.number]
        self._end(running, kindly=True)
        value = notes.pop("value") if state == "complete" else None
        self.book.tell(running.trial, TOLD[state], value, notes)
        self._sync()

    def _failed(self, running: Running, error: Exception) -> None:
        where = "; ".join(getattr(error, "__notes__", []))
        cause = " ".join(f"{type(error).__name__}: {error}{where and f' ({where})'}".split())
        self._failures.append(f"trial {running.trial.number}: {cause}")
        self._tell(running, "failed", cause=cause)
        if len(self._failures) > self.asked.request.max_failed_trials:
            raise PodiumError(
                f"{len(self._failures)} trials failed, --max-failed-trials is {self.asked.request.max_failed_trials}; "
                f"the first was {self._failures[0]}"
            )

    def _end(self, running: Running, kindly: bool) -> None:
        spawned, running.spawned = running.spawned, None
        if spawned is not None:
            self.stage.end(spawned, kindly)

    def _sync(self) -> None:
        """What has finished since, here or at another controller, into the files and the table."""
        for record in self.ledger.sync(self.book.trials()):
            known = {name: value for name, value in record.items() if name not in ("number", "params", "state")}
            self.board.update(record["number"], record["params"], record["state"], **known)
        self.ledger.write_best()

    def _show(self, running: Running, state: str, **figures: Any) -> None:
        params: Mapping[str, Any] = self.asked.space.settings(running.trial.params)
        self.board.update(running.trial.number, params, state, **figures)


TOLD = {
    "complete": TrialState.COMPLETE,
    "pruned": TrialState.PRUNED,
    "missed": TrialState.PRUNED,
    "failed": TrialState.FAIL,
}
"""What Optuna knows a trial's end as: one that missed the return is no better than one that was stopped."""


def open_book(asked: Asked, folder: RunFolder) -> Book:
    """The study that was asked for: in the folder's own journal, or in a storage that others may share."""
    own = folder.path / "journal.log"
    if asked.sampler == "cmaes":
        check_own(own)
    return Book(
        asked.request.storage or str(own),
        asked.request.storage is None,
        asked.study,
        asked.space,
        asked.facts(),
        asked.goal.direction,
        PerTrial(asked.sampler, asked.config.seed),
        pruner(asked.request.scheduler, asked.every, asked.config.steps),
    )
