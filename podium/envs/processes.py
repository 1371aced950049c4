"""Single envs stepped in worker processes; observations and rewards come back through shared memory."""

from __future__ import annotations

import mmap
import multiprocessing
import os
import pickle
import signal
import tempfile
import threading
import time
import traceback
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing import connection, reduction, resource_tracker, util
from typing import Any, Literal

import numpy as np

from podium.core.errors import PodiumError, UsageError, WorkerDied
from podium.core.spaces import Columns
from podium.envs.base import Stepped
from podium.envs.make import EnvSpec, describe
from podium.envs.names import Singles, resolve
from podium.envs.sync import Layout, SyncVector

SILENT_S = 120.0
CLOSE_S = 2.0
ALIGNMENT = 64
STEP, DONE = b"s", b"d"
Shapes = dict[str, tuple[tuple[int, ...], np.dtype]]


class ProcessVector:
    """`n` envs in up to `processes` workers. A worker that dies or says nothing for two minutes ends in WorkerDied."""

    autoreset: Literal["same", "next"] = "same"

    def __init__(self, spec: EnvSpec, n: int, processes: int) -> None:
        if processes < 1:
            raise UsageError(f"{processes} env processes, expected at least 1")
        self.n = n
        self._name = describe(spec)
        self._conns: list[Any] = []
        self._workers: list[Any] = []
        bounds = [n * i // min(processes, n) for i in range(min(processes, n) + 1)]
        self._slices = [slice(*pair) for pair in zip(bounds, bounds[1:], strict=False)]
        # At exit multiprocessing asks workers to end by SIGTERM, which they don't hear: end them before.
        util.Finalize(self, _end, args=(self._conns, self._workers), exitpriority=10)
        try:
            self._start(replace(spec, processes=processes))
            layout = [self._answer(i) for i in range(len(self._workers))][0]
            self._share(layout)
        except BaseException:
            self.close()
            raise
        self.observation_space = layout.observation_space
        self.action_space = layout.action_space
        self.masked = layout.masked

    def _start(self, spec: EnvSpec) -> None:
        try:
            pickle.dumps(spec)
        except Exception as error:
            raise UsageError(
                f"{self._name} can't be sent to env processes; define it at a module's top level"
            ) from error
        context = multiprocessing.get_context("spawn")
        # A worker inherits the blocked signals: from its start on, they are the parent's to handle. The tracker has to run
        # before, since its own start lets them through again.
        resource_tracker.ensure_running()
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
        try:
            for part in self._slices:
                ours, theirs = context.Pipe()
                self._conns.append(ours)
                worker = context.Process(target=work, args=(theirs, spec, part.start, part.stop), daemon=True)
                worker.start()
                self._workers.append(worker)
                theirs.close()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)

    def _share(self, layout: Layout) -> None:
        """Memory that has no name, so that nothing can leave it behind; each worker gets its descriptor."""
        shapes = layout.arrays(self.n)
        with tempfile.TemporaryFile(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as file:
            file.truncate(total_bytes(shapes))
            for index, (conn, worker) in enumerate(zip(self._conns, self._workers, strict=True)):
                try:
                    reduction.send_handle(conn, file.fileno(), worker.pid)
                    conn.send(self.n)
                except OSError:
                    raise self._died(index) from None
            arrays = map_arrays(file.fileno(), shapes)
        for index in range(len(self._workers)):
            self._answer(index)
        self._columns = {name[5:]: array for name, array in arrays.items() if name.startswith("step/")}
        self._finals = {name[6:]: array for name, array in arrays.items() if name.startswith("final/")}
        self._reward, self._terminated, self._truncated = (arrays[k] for k in ("reward", "terminated", "truncated"))
        self._actions = arrays["action"]

    def reset(self, seeds: Sequence[int]) -> Columns:
        self._call([("reset", [int(seed) for seed in seeds[part]]) for part in self._slices])
        return self._columns

    def step(self, actions: np.ndarray) -> Stepped:
        self._actions[:] = actions
        for index, conn in enumerate(self._conns):
            try:
                conn.send_bytes(STEP)
            except OSError:
                raise self._failed(self._died(index)) from None
        self._answers()
        rows = np.flatnonzero(self._terminated | self._truncated)
        if not len(rows):
            return Stepped(self._columns, self._reward, self._terminated, self._truncated)
        finals = {path: final[rows] for path, final in self._finals.items()}
        return Stepped(self._columns, self._reward, self._terminated, self._truncated, rows, finals)

    def get_state(self) -> dict[str, Any] | None:
        parts = self._call([("get_state",)] * len(self._conns))
        if any(part is None for part in parts):
            return None
        columns = {path: np.concatenate([p["columns"][path] for p in parts]) for path in self._columns}
        return {"steps": parts[0]["steps"], "columns": columns, "envs": [env for p in parts for env in p["envs"]]}

    def set_state(self, state: dict[str, Any]) -> Columns:
        parts = []
        for part in self._slices:
            columns = {path: column[part] for path, column in state["columns"].items()}
            parts.append(("set_state", {"steps": state["steps"], "columns": columns, "envs": state["envs"][part]}))
        self._call(parts)
        return self._columns

    def render(self) -> np.ndarray:
        """The first env's picture."""
        self._send(0, ("render",))
        return self._answer(0)

    def processes(self) -> list[int]:
        """The workers' process ids."""
        return [worker.pid for worker in self._workers]

    def close(self) -> None:
        """End every worker; one that doesn't end by itself is killed."""
        _end(self._conns, self._workers)

    def _call(self, requests: list[tuple[Any, ...]]) -> list[Any]:
        for index, request in enumerate(requests):
            self._send(index, request)
        return self._answers()

    def _send(self, index: int, request: tuple[Any, ...]) -> None:
        try:
            self._conns[index].send_bytes(pickle.dumps(request))
        except OSError:
            raise self._failed(self._died(index)) from None

    def _answers(self) -> list[Any]:
        """Every worker's answer; after an error the vector is closed, since its envs no longer stand side by side."""
        try:
            return [self._answer(index) for index in range(len(self._conns))]
        except Exception as error:
            raise self._failed(error) from error.__cause__

    def _answer(self, index: int) -> Any:
        conn = self._conns[index]
        try:
            if not conn.poll(SILENT_S):
                raise WorkerDied(f"{self._label(index)} of {self._name} said nothing for {SILENT_S:.0f} s")
            message = conn.recv_bytes()
        except (EOFError, OSError):
            raise self._died(index) from None
        if message == DONE:
            return None
        kind, body = pickle.loads(message)
        if kind == "error":
            raise revive(body)
        return body

    def _failed(self, error: Exception) -> Exception:
        self.close()
        return error

    def _died(self, index: int) -> WorkerDied:
        self._workers[index].join(timeout=1.0)
        code = self._workers[index].exitcode
        how = f"killed by {signal.Signals(-code).name}" if code is not None and code < 0 else f"exit code {code}"
        return WorkerDied(f"{self._label(index)} of {self._name} died ({how})")

    def _label(self, index: int) -> str:
        part = self._slices[index]
        return f"env process {index} (envs {part.start} to {part.stop - 1}, pid {self._workers[index].pid})"


def _end(conns: list[Any], workers: list[Any]) -> None:
    for conn in conns:
        conn.close()
    until = time.monotonic() + CLOSE_S
    for worker in workers:
        worker.join(timeout=max(0.0, until - time.monotonic()))
        if worker.is_alive():
            worker.kill()
            worker.join()
        worker.close()
    conns.clear()
    workers.clear()


def work(conn: Any, spec: EnvSpec, start: int, stop: int) -> None:
    """A worker's life: build its slice of the envs, then answer until the pipe ends."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        source = resolve(spec)
        assert isinstance(source, Singles)
        vector = SyncVector([source.make] * (stop - start), describe(spec), first=start)
    except Exception as error:
        _send_quietly(conn, _error(error))
        return
    try:
        conn.send_bytes(pickle.dumps(("value", vector.layout)))
        handle = reduction.recv_handle(conn)
        arrays = map_arrays(handle, vector.layout.arrays(conn.recv()))
        os.close(handle)
        mine = {name: array[start:stop] for name, array in arrays.items()}
        vector.write_to(mine)
        conn.send_bytes(DONE)
        while True:
            conn.send_bytes(_obey(vector, conn.recv_bytes(), mine["action"]))
    except (EOFError, OSError):
        vector.close()


def _obey(vector: SyncVector, message: bytes, actions: np.ndarray) -> bytes:
    """Do what the parent asks; the answer holds what shared memory doesn't."""
    try:
        if message == STEP:
            vector.step(actions)
            return DONE
        method, *args = pickle.loads(message)
        result = getattr(vector, method)(*args)
        return pickle.dumps(("value", result)) if method in ("get_state", "render") else DONE
    except Exception as error:
        return _error(error)


def _end_with_parent() -> None:
    """End at once when the parent is gone, even in the midst of a step that never returns."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)


def _send_quietly(conn: Any, message: bytes) -> None:
    try:
        conn.send_bytes(message)
    except OSError:
        return


def _error(error: Exception) -> bytes:
    return pickle.dumps(("error", packed(error)))


def packed(error: Exception) -> dict[str, Any]:
    """An exception as something that surely can be pickled."""
    whole: bytes | None
    try:
        whole = pickle.dumps(error)
        pickle.loads(whole)
    except Exception:
        whole = None
    try:
        kind = pickle.dumps(type(error))
    except Exception:
        kind = None
    notes = list(getattr(error, "__notes__", []))
    lines = "".join(traceback.format_exception(error))
    return {
        "whole": whole,
        "kind": kind,
        "name": type(error).__name__,
        "text": str(error),
        "notes": notes,
        "trace": lines,
    }


class RemoteTraceback(Exception):
    """Where in the worker an error arose; it stands as the error's cause."""


def revive(body: dict[str, Any]) -> Exception:
    """The worker's exception here: itself, else one of its type with its text, else a PodiumError that quotes it."""
    error: Exception
    if body["whole"] is not None:
        error = pickle.loads(body["whole"])
    elif body["kind"] is not None:
        kind = pickle.loads(body["kind"])
        error = kind.__new__(kind)
        error.args = (body["text"],)
    else:
        error = PodiumError(f"{body['name']}: {body['text']}")
    if not getattr(error, "__notes__", []):
        for note in body["notes"]:
            error.add_note(note)
    error.__cause__ = RemoteTraceback(body["trace"])
    return error


def total_bytes(shapes: Shapes) -> int:
    return sum(_size(*shape) for shape in shapes.values())


def map_arrays(descriptor: int, shapes: Shapes) -> dict[str, np.ndarray]:
    """The named arrays inside one piece of shared memory."""
    memory = mmap.mmap(descriptor, total_bytes(shapes))
    arrays, offset = {}, 0
    for name, (shape, dtype) in shapes.items():
        arrays[name] = np.ndarray(shape, dtype, memory, offset)
        offset += _size(shape, dtype)
    return arrays


def _size(shape: tuple[int, ...], dtype: np.dtype) -> int:
    """Bytes of one array, rounded up so that the next one is aligned."""
    return -(-int(np.prod(shape)) * dtype.itemsize // ALIGNMENT) * ALIGNMENT
