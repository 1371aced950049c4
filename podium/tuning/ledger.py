"""The files of a search: trials.jsonl, a folder for each trial, the best settings as `train --config` takes them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from optuna.trial import FrozenTrial, TrialState

from podium.api import described_config
from podium.core import checkpoint
from podium.core.errors import PodiumError
from podium.engine.base import Engine, Handle
from podium.envs.make import Traits, describe
from podium.run.folder import RunFolder, to_json, write_atomically
from podium.training import spaces_info
from podium.tuning.book import FINISHED
from podium.tuning.request import Asked, differing
from podium.tuning.space import Value
from podium.tuning.storage import cut_torn_line

STATES = {TrialState.COMPLETE: "complete", TrialState.PRUNED: "pruned", TrialState.FAIL: "failed"}

Record = dict[str, Any]


class Ledger:
    """One line for each finished trial, and never two; what the study knows and the file does not yet is added."""

    def __init__(self, folder: RunFolder, asked: Asked) -> None:
        self.folder, self.asked = folder, asked
        self.path = folder.path / "trials.jsonl"
        cut_torn_line(self.path)
        self.records: list[Record] = read_records(self.path)

    def sync(self, trials: Sequence[FrozenTrial]) -> list[Record]:
        """The records of trials that have finished since, in the order in which they did."""
        known = {record["number"] for record in self.records}
        new = [trial for trial in trials if trial.state in FINISHED and trial.number not in known]
        new.sort(key=lambda trial: (trial.datetime_complete is None, trial.datetime_complete, trial.number))
        return [self.add(self._record(trial)) for trial in new]

    def add(self, record: Record) -> Record:
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(to_json(record) + "\n")
        self.records.append(record)
        return record

    def _record(self, trial: FrozenTrial) -> Record:
        notes = trial.user_attrs
        state = "missed" if notes.get("missed") else STATES[trial.state]
        known: Record = {name: notes[name] for name in ("env_steps", "wall_s", "return", "cause") if name in notes}
        params = self.asked.space.settings(trial.params) if trial.params else {}
        value = trial.value if state == "complete" else notes.get("value")
        record: Record = {"number": trial.number, "params": params, "value": value, "state": state}
        return {**record, **known}

    # --- a trial's folder ---

    def place(self, number: int) -> Path:
        return self.folder.path / "trials" / f"{number:04d}"

    def begin(self, number: int, params: Mapping[str, Value]) -> None:
        """A folder for each run of the trial, as any other run has it."""
        for seed, config in zip(self.asked.seeds, self.asked.configs()(params), strict=True):
            described = described_config(self.asked.algo_name, self.asked.env, config)
            RunFolder.create(self._run_place(number, seed), described, overwrite=True)

    def _run_place(self, number: int, seed: int) -> Path:
        return self.place(number) / f"seed-{seed}" if len(self.asked.seeds) > 1 else self.place(number)

    def row_counts(self) -> list[int]:
        """How many rows each run's metrics.jsonl has."""
        return [len(folder.read_metrics()) for folder in self.run_folders()]

    def cut_rows(self, counts: Sequence[int]) -> None:
        """Cut them back to so many; what is kept stays as it is."""
        for folder, count in zip(self.run_folders(), counts, strict=True):
            if folder.metrics.exists():
                kept = folder.metrics.read_text(encoding="utf-8").splitlines(keepends=True)[:count]
                write_atomically(folder.metrics, "".join(kept))

    def policy_place(self, number: int) -> Path:
        """The run whose policy is kept: that of the first seed."""
        return self._run_place(number, self.asked.seeds[0])

    def run_folders(self) -> list[RunFolder]:
        """The folders of all runs of all trials."""
        return [RunFolder(path.parent) for path in sorted((self.folder.path / "trials").rglob("config.json"))]

    def write_rows(self, number: int, rows: Sequence[Sequence[Mapping[str, Any]]]) -> None:
        for seed, of_run in zip(self.asked.seeds, rows, strict=True):
            folder = RunFolder(self._run_place(number, seed))
            for row in of_run:
                folder.append_metrics(row)

    def write_policy(self, number: int, engine: Engine, trial: Handle, traits: Traits, env_steps: int) -> None:
        """The policy that came of it (of its first seed), ready to be evaluated, served or fine-tuned."""
        place = self.policy_place(number) / "checkpoints"
        policy = engine.get(trial.call("policy"))
        info = {"algo": self.asked.algorithm.name, "env_steps": env_steps, "exact": False}
        name = checkpoint.step_name(env_steps)
        checkpoint.save(place / name, {"policy": policy}, {**info, **spaces_info(self.asked.env, traits)})
        checkpoint.link(place, "latest", name)

    # --- the best ---

    def best(self) -> Record | None:
        """The best of those that are complete, the first of equals."""
        found: Record | None = None
        for record in sorted(self.records, key=lambda record: record["number"]):
            if record["state"] == "complete" and record["value"] is not None:
                if found is None or self.asked.goal.better(record["value"], found["value"]):
                    found = record
        return found

    def write_best(self) -> Path | None:
        """The settings of the best trial, all that are not the defaults, for `train --config`."""
        best = self.best()
        if best is None:
            return None
        config = self.asked.config.replace(**{**best["params"], "seed": self.asked.seeds[0]})
        path = self.folder.path / "best.json"
        described = described_config(self.asked.algo_name, self.asked.env, config)
        settings = {name: described[name] for name in differing(config)}
        text = to_json({"algo": described["algo"], "env": describe(self.asked.env), **settings}, indent=2) + "\n"
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            write_atomically(path, text)
        return path


def read_records(path: Path) -> list[Record]:
    """The lines of trials.jsonl, none where there is no such file."""
    if not path.exists():
        return []
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except ValueError:
        raise PodiumError(f"{path} is damaged: expected a JSON object on each line") from None
