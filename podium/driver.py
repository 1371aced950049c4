"""The driver of a run: build, step, log, evaluate, checkpoint, stop."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter
from typing import Any

from podium.algorithms.common.base import Algorithm, RunConfig
from podium.core import checkpoint
from podium.core.errors import PodiumError, TrainingError
from podium.engine.start import start
from podium.envs.check import check
from podium.envs.make import EnvSpec, describe, held, traits_of
from podium.optimizers.base import get_replay, set_replay
from podium.planning.outside import check_outside
from podium.planning.plan import check_at_once, check_memory, check_on_engine
from podium.run.callbacks import Callback
from podium.run.folder import RunFolder
from podium.run.progress import Progress
from podium.run.signals import Interrupted, Signals
from podium.run.tensorboard import TensorBoard
from podium.training import Training, spaces_info

KEEP_EVERY_S = 2.0
"""How old the state may become that is kept in memory, for a signal or an error in the middle of an iteration."""

TELL_EVERY_S = 0.5
"""How far processes.json may be behind."""

KEEP_SHARE = 50.0
"""Keeping it takes at most one part in so many of the time."""


class Run:
    """One run in its folder. `train` takes it from where it stands to its end; `close` ends its envs and processes.

    What can't run is refused before anything is made. `config` has a number of workers also where it was left open.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        env: EnvSpec,
        config: RunConfig,
        folder: RunFolder,
        callbacks: Sequence[Callback] = (),
        show_progress: bool = True,
    ) -> None:
        self.algorithm, self.env, self.config, self.folder = algorithm, env, config, folder
        self.callbacks = list(callbacks)
        self._saved_at = -1
        self._processes: list[dict[str, Any]] = []
        self._show_progress = show_progress
        check_at_once(config)
        check_outside(env, config)
        with ExitStack() as made:
            made.enter_context(held(env, algorithm.name))
            check(env, config.seed)
            traits = traits_of(env)
            self.spaces = traits[:2]
            check_memory(algorithm, env, config, self.spaces)
            self._spaces_info = spaces_info(env, traits)
            self._signals = made.enter_context(Signals())
            with self._signals.at_once():
                self.engine = start(config.engine, config.address)
                made.callback(self.engine.close)
                self.config = check_on_engine(algorithm, env, config, self.spaces)
                self.training = Training(algorithm, env, self.config, self.engine, traits)
                made.callback(self.training.close)
            self.counters, self.optimizer = self.training.counters, self.training.optimizer
            self._made = made.pop_all()

    # --- the loop ---

    def train(self) -> dict[str, Any]:
        """Iterate until the steps are done or something asks to stop; returns what result.json says."""
        with ExitStack() as stack:
            # What it says is past: a run that is killed from here on has no result.
            (self.folder.path / "result.json").unlink(missing_ok=True)
            self._write_processes()
            stack.callback(self.folder.write_processes, [])
            self._tensorboard = TensorBoard(self.folder.path / "tb", after=self.counters.env_steps)
            stack.callback(self._tensorboard.close)
            self._progress = Progress(self.config.steps, self.counters.env_steps, enabled=self._show_progress)
            stack.callback(self._progress.close)
            self._began, self._began_at = perf_counter(), self.counters.env_steps
            for callback in self.callbacks:
                callback.on_start(self)
            try:
                stopped_by = self._iterate(self._signals)
            except Interrupted as stop:
                self._finish("signal", "interrupted")
                stop.add_note(f"podium resume {self.folder.path} goes on")
                raise
            except Exception as error:
                where = "; ".join(getattr(error, "__notes__", []))
                self._finish("error", "failed", error=f"{type(error).__name__}: {error}", where=where)
                raise
            if self._saved_at < self.counters.env_steps:
                self._save(restart=False)
            return self._finish(stopped_by, "finished")

    def _write_processes(self) -> None:
        """Say what runs now, where that has changed."""
        now = self.engine.processes()
        if now != self._processes:
            self.folder.write_processes(now)
            self._processes = now

    def _iterate(self, signals: Signals) -> str:
        """Iterate until there is a reason to stop; a run that was killed after its last iteration has one already."""
        before, keep_after = self._kept()
        tell_after = perf_counter()
        stopped_by = self.training.stop_reason()
        while stopped_by is None:
            try:
                with signals.interruptible():
                    row, stopped_by = self._iteration()
            except SystemExit as leaving:
                self._fall_back(before)
                raise RuntimeError(f"something called sys.exit({leaving.code!r})") from leaving
            except TrainingError:
                self._fall_back(self._last_good(before))
                raise
            except BaseException:
                self._fall_back(before)
                raise
            if signals.pending is not None:
                self._save(restart=False)
                raise Interrupted(signals.pending)
            if stopped_by is None and self.training.crossed(self.config.checkpoint_every, row):
                self._save(restart=True)
            if perf_counter() > keep_after:
                before, keep_after = self._kept()
            if perf_counter() > tell_after:
                self._write_processes()
                tell_after = perf_counter() + TELL_EVERY_S
        return stopped_by

    def _kept(self) -> tuple[dict[str, Any], float]:
        """The state now, and when it is to be taken anew: where many workers have to give theirs, less often."""
        began = perf_counter()
        snapshot = self.training.get_state(restart=False)
        now = perf_counter()
        return snapshot, now + max(KEEP_EVERY_S, KEEP_SHARE * (now - began))

    def _last_good(self, before: dict[str, Any]) -> dict[str, Any]:
        """The state of a moment ago, but everyone's policy as the learner's is now: what it could not learn from was
        refused before the step."""
        try:
            newest = self.engine.get(self.optimizer.learner().call("policy_state", full=True))
        except PodiumError:
            return before

        def renewed(state: dict[str, Any] | None) -> dict[str, Any] | None:
            if state is None or "rng" not in state["policy"]:  # it has just died, or holds no policy of its own
                return state
            return {**state, "policy": {**newest, "rng": state["policy"]["rng"]}, "exact": False}

        evaluators = [renewed(state) for state in before["optimizer"]["evaluators"]]
        return {**before, "optimizer": {**before["optimizer"], "evaluators": evaluators}}

    def _fall_back(self, before: dict[str, Any]) -> None:
        """Save the state of a moment ago in the place of one that an iteration left half changed."""
        if before["counters"]["env_steps"] > self._saved_at:
            self.counters.set_state(before["counters"])
            self._write(before, replay_exact=False)

    def _iteration(self) -> tuple[dict[str, Any], str | None]:
        row = self.training.iterate()
        if "eval_return_mean" in row:
            for callback in self.callbacks:
                callback.on_evaluation(self, row)
        self.folder.append_metrics(row)
        self._tensorboard.write(row, self.counters.env_steps)
        self._progress.update(row)
        asked = [callback.on_iteration(self, row) for callback in self.callbacks]
        return row, self.training.stop_reason() or ("callback" if any(asked) else None)

    # --- checkpoints ---

    def _save(self, restart: bool) -> None:
        path = self._write(self.training.get_state(restart))
        for callback in self.callbacks:
            callback.on_checkpoint(self, path)

    def _write(self, snapshot: Mapping[str, Any], replay_exact: bool = True) -> Path:
        """The checkpoint of a snapshot; `best` first, so that a kill in between leaves a best that the run will remake.
        A replay is not part of snapshots, which are kept in memory: it is written as it is now, and of its pieces only
        those that the latest checkpoint does not have."""
        folder, counters = self.folder.checkpoints, snapshot["counters"]
        replay, linked = self._replay_parts()
        info = {
            "algo": self.algorithm.name,
            "env_steps": counters["env_steps"],
            "exact": all(state is not None and state["exact"] for state in snapshot["optimizer"]["evaluators"])
            and (replay_exact or not replay),
            **self._spaces_info,
        }
        if snapshot["best"] is not None:
            best_info = {**info, "return": counters["best_return"]}
            checkpoint.save(folder / "best", {"policy": snapshot["best"]}, best_info)
        name = checkpoint.step_name(counters["env_steps"])
        learner, *others = snapshot["optimizer"]["evaluators"]
        beside = {**snapshot["optimizer"], "evaluators": [{**learner, "policy": None}, *others]}
        parts = {"policy": learner["policy"], "optimizer": beside, "counters": counters, **replay}
        checkpoint.save(folder / name, parts, info, linked)
        checkpoint.link(folder, "latest", name)
        checkpoint.prune(folder, self.config.keep)
        self._saved_at = counters["env_steps"]
        return folder / name

    def _replay_parts(self) -> tuple[dict[str, Any], dict[str, Path]]:
        """The replay as parts of a checkpoint, and those that are there already; nothing where there is none."""
        latest = self.folder.checkpoints / "latest"
        found = get_replay(self.engine, self.optimizer, checkpoint.part_names(latest))
        if found is None:
            return {}, {}
        state, pieces = found
        linked = {name: latest for name, piece in pieces.items() if piece is None}
        return {"replay": state, **{name: piece for name, piece in pieces.items() if piece is not None}}, linked

    def restore(self) -> bool:
        """Go back to the latest checkpoint, and the run's files with it; False if there is none yet."""
        if not os.path.lexists(self.folder.checkpoints / "latest"):
            self.folder.cut_metrics(-1)
            return False
        parts, _ = checkpoint.load(self.folder.checkpoints / "latest")
        self.counters.set_state(parts["counters"])
        self.counters.resumed_from = self._saved_at = self.counters.env_steps
        parts["optimizer"]["evaluators"][0]["policy"] = parts["policy"]
        self.optimizer.set_state(parts["optimizer"])
        if "replay" in parts:
            pieces = {name: part for name, part in parts.items() if name.startswith("replay-")}
            set_replay(self.engine, self.optimizer, parts["replay"], pieces)
        if self.counters.best_return is not None:
            self.training.best = checkpoint.load(self.folder.checkpoints / "best")[0]["policy"]
        self.folder.cut_metrics(self.counters.env_steps)
        return True

    def start_from(self, policy: dict[str, Any]) -> None:
        """Begin with another run's weights and filter; counters, optimizer and envs are new."""
        self.optimizer.adopt(policy)

    # --- the end ---

    def _finish(self, stopped_by: str, status: str, **more: Any) -> dict[str, Any]:
        counters, seconds = self.counters, perf_counter() - self._began
        result = {
            "algo": self.algorithm.name,
            "env": describe(self.env),
            "engine": self.config.engine,
            "optimizer": self.config.optimizer,
            "seed": self.config.seed,
            "env_steps": counters.env_steps,
            "frames": self.training.frames,
            "episodes": counters.window.episodes,
            "updates": counters.updates,
            "return_mean": counters.window.mean,
            "eval_return_mean": counters.eval_return_mean,
            "best_return": counters.best_return,
            "wall_s": seconds,
            "steps_per_s": (counters.env_steps - self._began_at) / seconds,
            "stopped_by": stopped_by,
            "status": status,
            "resumed_from": counters.resumed_from,
            **more,
        }
        self.folder.write_result(result)
        for callback in self.callbacks:
            callback.on_end(self, result)
        return result

    def close(self) -> None:
        self._made.close()
