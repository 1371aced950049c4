"""Where a search's trials run: an engine that was asked once for what is there, and trials nested on it."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from podium.engine.base import Engine, Handle
from podium.engine.start import start
from podium.envs.check import check
from podium.envs.make import traits_of
from podium.planning import layout
from podium.planning.outside import refuse_outside
from podium.planning.plan import check_at_once, check_memory, check_on_engine
from podium.run.folder import RunFolder
from podium.run.signals import Interrupted, Signals
from podium.tuning.capacity import AtOnce, at_once, reserved
from podium.tuning.request import Asked
from podium.tuning.trial import Trial

CLOSE_S = 5.0


@dataclass
class Spawned:
    """A trial, and the engine that it was given."""

    handle: Handle
    child: Engine
    processes: Sequence[dict[str, Any]] = ()


class Stage:
    """What can't run is refused before anything is made; `asked` has a number of workers from then on."""

    def __init__(self, asked: Asked) -> None:
        refuse_outside(asked.env)
        check_at_once(asked.config)
        check(asked.env, asked.config.seed)
        self.traits = traits_of(asked.env)
        check_memory(asked.algorithm, asked.env, asked.config, self.traits[:2])
        self._spawned: list[Spawned] = []
        self._told: list[dict[str, Any]] = []
        with ExitStack() as made:
            self.signals = made.enter_context(Signals())
            with self.signals.at_once():
                self.engine = start(asked.config.engine, asked.config.address)
                made.callback(self.engine.close)
                config = check_on_engine(asked.algorithm, asked.env, asked.config, self.traits[:2])
                self.asked = replace(asked, config=config)
                self._machine = layout.machine_of(config)
                self.at_once: AtOnce = at_once(
                    asked.request.parallel,
                    asked.trials,
                    asked.algorithm,
                    asked.env,
                    config,
                    self.traits,
                    self._machine,
                )
            made.callback(self._end_all)
            self._made = made.pop_all()

    def spawn(self, number: int, params: Mapping[str, Any]) -> Spawned:
        """A trial with an engine of its own, and everything that it will reserve there reserved together."""
        asked = self.asked
        (config, *_) = asked.configs()(params)
        child = self.engine.child(reserved(config, self._machine))
        try:
            handle = self.engine.spawn(
                Trial, child, asked.algo, asked.env, self.traits, asked.configs(), dict(params), name=f"trial-{number}"
            )
        except BaseException:
            child.close()
            raise
        self._spawned.append(Spawned(handle, child))
        return self._spawned[-1]

    def end(self, spawned: Spawned, kindly: bool = True) -> None:
        """Close a trial, which has a moment for it, and give back what it reserved."""
        self._spawned.remove(spawned)
        if kindly:
            with contextlib.suppress(Exception):
                self.engine.get(spawned.handle.call("close"), timeout=CLOSE_S)
        with contextlib.suppress(Exception):
            self.engine.kill(spawned.handle)
        with contextlib.suppress(Exception):
            spawned.child.close()

    def tell(self, folder: RunFolder) -> None:
        """Say in processes.json what runs now, where that has changed; each process once, whoever names it."""
        nested = [process for spawned in self._spawned for process in spawned.processes]
        now = list({process["pid"]: process for process in [*nested, *self.engine.processes()]}.values())
        if now != self._told:
            folder.write_processes(now)
            self._told = now

    def check_signals(self) -> None:
        """For where nothing is under way that could be given up."""
        if self.signals.pending is not None:
            raise Interrupted(self.signals.pending)

    def _end_all(self) -> None:
        for spawned in list(self._spawned):
            self.end(spawned, kindly=False)

    def close(self) -> None:
        self._made.close()
