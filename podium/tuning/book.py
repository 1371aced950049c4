"""The book of a search: its trials in an Optuna study, taken one by one, told, given back, and claimed from the dead."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

import optuna
from optuna.exceptions import DuplicatedStudyError, UpdateFinishedTrialError
from optuna.trial import FrozenTrial, TrialState

from podium.core.errors import UsageError
from podium.tuning.goal import Direction
from podium.tuning.space import Space, Value
from podium.tuning.storage import open_storage, owner_name, runs, shown

SEEN_EVERY_S = 10.0
LOST_S = 600.0
"""How long a controller on another machine may say nothing before its trials are taken from it."""

UNOWNED_S = 3.0
"""How long a trial may be taken and not say by whom; what is written between is written at once."""

QUEUE_S = 30.0
"""How long a controller that joins waits for the first one to write what there is to do."""

FINISHED = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)


class Book:
    """Every trial is in the study from the start, waiting: whoever takes one is the only one that has it, there are as many
    as were asked for, and one that was under way when its controller died waits again, with the parameters it had."""

    def __init__(
        self,
        where: str,
        alone: bool,
        name: str,
        space: Space,
        facts: Mapping[str, Any],
        direction: Direction,
        sampler: Any,
        pruner: Any,
    ) -> None:
        self.space, self._alone, self._me = space, alone, owner_name()
        self._seen = 0.0
        storage = open_storage(where)
        written = json.dumps(facts, sort_keys=True)
        try:
            self.study = optuna.create_study(
                storage=storage, study_name=name, direction=direction, sampler=sampler, pruner=pruner
            )
            self.study.set_user_attr("podium", written)
            self.created = True
        except DuplicatedStudyError:
            self.study = optuna.load_study(storage=storage, study_name=name, sampler=sampler, pruner=pruner)
            self.created = False
            self._await("podium")
            found = self.study.user_attrs.get("podium")
            if found != written:
                raise UsageError(_other(shown(where), name, found, facts)) from None

    def _await(self, attribute: str) -> None:
        limit = time.monotonic() + QUEUE_S
        while attribute not in self.study.user_attrs and time.monotonic() < limit:
            time.sleep(0.2)

    # --- what there is to do ---

    def fill(self, trials: int, points: list[dict[str, Value]] | None = None) -> None:
        """See that there are so many trials; those of a grid at its points. Whoever joins leaves that to who began."""
        if not self.created:
            self._await("trials")
        wanted = max(trials, self.study.user_attrs.get("trials", 0))
        for number in range(len(self.study.get_trials(deepcopy=False)), wanted):
            self.study.enqueue_trial(dict(points[number]) if points is not None else {})
        self.study.set_user_attr("trials", wanted)

    def take(self) -> optuna.Trial | None:
        """The next trial that waits, with its parameters drawn; None where none does."""
        storage = self.study._storage
        for waiting in self.study.get_trials(deepcopy=False, states=(TrialState.WAITING,)):
            try:
                if not storage.set_trial_state_values(waiting._trial_id, state=TrialState.RUNNING):
                    continue
            except UpdateFinishedTrialError:
                continue
            storage.set_trial_user_attr(waiting._trial_id, "owner", self._me)
            trial = optuna.Trial(self.study, waiting._trial_id)
            for one in self.space.dimensions:
                if one.choices:
                    trial.suggest_categorical(one.name, one.choices)
                elif one.whole:
                    trial.suggest_int(one.name, int(one.low), int(one.high), log=one.log)
                else:
                    trial.suggest_float(one.name, one.low, one.high, log=one.log)
            return trial
        return None

    def give_back(self, trial: optuna.Trial) -> None:
        """Let a trial wait again that was not finished."""
        if self._mine(trial):
            self.study._storage.set_trial_state_values(trial._trial_id, state=TrialState.WAITING)

    def claim(self) -> bool:
        """Let those wait again whose controllers are gone; True while it is not known of one whether it is."""
        unsure = False
        for trial in self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            lives = self._lives(trial)
            if lives is False:
                self.study._storage.set_trial_state_values(trial._trial_id, state=TrialState.WAITING)
            unsure |= lives is None
        return unsure

    def _lives(self, trial: FrozenTrial) -> bool | None:
        owner = trial.user_attrs.get("owner")
        if owner is None:  # somebody is about to write it, or was killed right there
            began = trial.datetime_start
            recent = began is not None and time.time() - began.timestamp() < UNOWNED_S
            return None if recent and not self._alone else False
        found = runs(owner)
        if found is not None:
            return found
        return time.time() - self.study.user_attrs.get(f"seen {owner}", 0.0) < LOST_S

    def is_seen(self) -> None:
        """Tell those on other machines, now and then, that this one is there."""
        if time.monotonic() - self._seen > SEEN_EVERY_S:
            self.study.set_user_attr(f"seen {self._me}", time.time())
            self._seen = time.monotonic()

    # --- what came of it ---

    def report(self, trial: optuna.Trial, step: int, value: float) -> bool:
        """Note a value on the way; True if the trial is to stop. What a trial that was begun anew says again is known."""
        if step in self.study._storage.get_trial(trial._trial_id).intermediate_values:
            return False
        trial.report(value, step)
        return trial.should_prune()

    def tell(self, trial: optuna.Trial, state: TrialState, value: float | None, notes: Mapping[str, Any]) -> None:
        """The end of a trial, with what else is to be known of it, unless it is somebody else's by now."""
        if not self._mine(trial):
            return
        for name, note in notes.items():
            trial.set_user_attr(name, note)
        self.study.tell(trial, value, state)

    def _mine(self, trial: optuna.Trial) -> bool:
        found = self.study._storage.get_trial(trial._trial_id)
        return found.state == TrialState.RUNNING and found.user_attrs.get("owner") == self._me

    def trials(self) -> list[FrozenTrial]:
        return self.study.get_trials(deepcopy=False)


def _other(where: str, name: str, found: str | None, facts: Mapping[str, Any]) -> str:
    """How the search that has the name there differs."""
    theirs = json.loads(found) if found else {}
    for fact, mine in json.loads(json.dumps(facts)).items():
        if theirs.get(fact) != mine:
            return f"{where} has another search {name!r}, whose {fact} is {theirs.get(fact)!r} and not {mine!r}: add --study NAME"
    return f"{where} has another search {name!r}: add --study NAME"
