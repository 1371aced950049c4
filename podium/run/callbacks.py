"""Hooks into a run: a base class whose hooks do nothing, and Weights & Biases as one that logs."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from podium.core.errors import MissingExtra, UsageError, did_you_mean
from podium.run.folder import RunFolder, write_atomically

MODES = ("online", "offline", "disabled")


class Run(Protocol):
    """What a callback may count on in the run that it is called by."""

    folder: RunFolder


class Callback:
    """Called by the driver as a run goes on. Override what is needed."""

    def on_start(self, run: Any) -> None:
        """The run is built, and its first iteration comes next."""

    def on_iteration(self, run: Any, row: Mapping[str, Any]) -> bool | None:
        """An iteration's metrics are written. Returning True asks the run to stop."""

    def on_checkpoint(self, run: Any, path: Path) -> None:
        """A checkpoint stands complete at `path`."""

    def on_evaluation(self, run: Any, row: Mapping[str, Any]) -> None:
        """Evaluation episodes were played; their figures are in the row, which `on_iteration` gets next."""

    def on_end(self, run: Any, result: Mapping[str, Any]) -> None:
        """The run is over, and result.json is written."""


class WandB(Callback):
    """Logs every row to Weights & Biases, by env step; a resumed run goes on in the W&B run that it began."""

    def __init__(self, project: str = "podium", name: str | None = None, mode: str = "online") -> None:
        if mode not in MODES:
            raise UsageError(f"W&B mode is {mode!r}, expected one of {', '.join(MODES)}{did_you_mean(mode, MODES)}")
        try:
            import wandb
        except ImportError:
            raise MissingExtra("logging to Weights & Biases", "wandb") from None
        self._wandb: Any = wandb
        self._project, self._name, self._mode = project, name, mode
        self._run: Any = None

    def on_start(self, run: Run) -> None:
        folder = run.folder
        try:
            self._run = self._wandb.init(
                project=self._project,
                name=self._name or folder.path.name,
                mode=self._mode,
                dir=folder.path,
                config=folder.config,
                id=_stored_id(folder.path / "wandb.json"),
                resume="allow",
                settings=self._wandb.Settings(
                    console="off"
                ),  # its capture of the terminal would tear the progress line
            )
        except self._wandb.Error as error:
            raise UsageError(f"W&B refused to start the run: {str(error).splitlines()[0]}") from None

    def on_iteration(self, run: Run, row: Mapping[str, Any]) -> None:
        self._run.log(dict(row), step=row["env_steps"])

    def on_end(self, run: Run, result: Mapping[str, Any]) -> None:
        self._run.summary.update(dict(result))
        self._run.finish(exit_code=0 if result.get("status") == "finished" else 1)


def _stored_id(path: Path) -> str:
    """The W&B run's id, drawn once and kept in the run folder."""
    if path.exists():
        return str(json.loads(path.read_text(encoding="utf-8"))["id"])
    drawn = secrets.token_hex(4)
    write_atomically(path, json.dumps({"id": drawn}) + "\n")
    return drawn
