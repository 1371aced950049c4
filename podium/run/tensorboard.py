"""Scalars for TensorBoard, one event per row, without torch or tensorflow."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from podium.core.errors import MissingExtra


class TensorBoard:
    """An event file in `folder`. Events that earlier files hold beyond step `after` are void: readers drop them.

    Each row is handed to the operating system as it is written, without a thread: a killed run loses none of what its
    metrics.jsonl has. Files are numbered rather than timed, because readers take them in the order of their names.
    """

    def __init__(self, folder: Path, after: int = -1) -> None:
        try:
            from tensorboard.compat.proto.event_pb2 import Event, SessionLog
            from tensorboard.compat.proto.summary_pb2 import Summary
            from tensorboard.summary.writer.record_writer import RecordWriter
        except ImportError:
            raise MissingExtra("writing TensorBoard events", "all") from None
        self._event, self._summary = Event, Summary
        folder.mkdir(parents=True, exist_ok=True)
        index = len(list(folder.glob("events.out.tfevents.*")))
        self._records = RecordWriter(open(folder / f"events.out.tfevents.{index:010d}.podium", "xb"))
        self._add(file_version="brain.Event:2")
        self._add(step=after + 1, session_log=SessionLog(status=SessionLog.START))

    def write(self, row: Mapping[str, Any], step: int) -> None:
        """Write the row's numbers; text and empty values have no curve, and what is nested goes by its path."""
        values = [self._summary.Value(tag=tag, simple_value=number) for tag, number in _scalars(row)]
        if values:
            self._add(step=step, summary=self._summary(value=values))

    def close(self) -> None:
        if not self._records.closed:
            self._records.close()

    def _add(self, **content: Any) -> None:
        self._records.write(self._event(wall_time=time.time(), **content).SerializeToString())
        self._records.flush()


def _scalars(row: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    for name, value in row.items():
        if isinstance(value, Mapping):
            yield from _scalars(value, f"{prefix}{name}/")
        elif hasattr(value, "__float__") and not getattr(value, "shape", ()):  # arrays have no one value
            yield f"{prefix}{name}", float(value)
