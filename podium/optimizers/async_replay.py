"""Asynchronous replay (Ape-X; Horgan et al., 2018): samplers play into shards of a replay, the learner learns from them."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from podium.core.errors import ArgumentLost, WorkerDied
from podium.engine.base import Engine, Handle, Ref
from podium.engine.pool import Finished, Pool
from podium.evaluation.replayed import DrawPlan
from podium.evaluation.sample import Report, merge_reports
from podium.evaluation.sharded import Held
from podium.optimizers.base import SgdPlan, State, pool_figures
from podium.optimizers.pace import Pace

WAITING = 4
"""Fragments of a sampler that may wait for those of the others who share its shard."""

LEARNS = 2
"""Calls of the learner under way: one that it works on and the next."""

PATIENCE_S = 1.0


@dataclass
class Shard:
    """What is known of a shard: which holder of its place, what it holds, minibatches and calls it was asked for and has
    not answered, and how far its draws are behind its share."""

    generation: int
    held: Held = Held()
    asked: int = 0
    calls: int = 0
    behind: float = 0.0


@dataclass(frozen=True)
class Minibatches:
    """`count` of them in one place, from a holder of a shard."""

    handed: Ref
    count: int
    shard: int
    generation: int


@dataclass(frozen=True)
class Learning:
    """A call of the learner: its report, what it tells the shard, and what it learns on."""

    report: Ref
    told: Ref
    on: Minibatches


class AsyncReplay:
    """The samplers' places and the shards are pools; a sampler's fragments all go to one shard, in their order. A shard
    takes a fragment of each of its samplers at a time, or of those that have one once somebody's wait in a full queue.

    Minibatches come `at_once` in a call, and `ahead` such calls are under way or wait for the learner, so that it never
    waits for a shard. Whose turn it is goes by what the shards' rows weigh: together they are drawn from as one replay.
    """

    def __init__(
        self,
        engine: Engine,
        learner: Handle,
        samplers: Pool,
        shards: Pool,
        fragment: int,
        sgd: SgdPlan,
        draws: DrawPlan,
        pace: Pace,
        *,
        at_once: int,
        ahead: int,
        broadcast_every: int,
    ) -> None:
        self.engine, self._learner, self.samplers, self.shards = engine, learner, samplers, shards
        self.fragment, self.sgd, self.draws, self.pace = fragment, sgd, draws, pace
        self.at_once, self.ahead, self.broadcast_every = at_once, ahead, broadcast_every
        self.updates = self.seen = self.rows_lost = 0
        self._begun = 0  # updates whose minibatches were asked for
        self._skipped = 0  # updates that were due when there was nothing to learn from
        self._played: dict[int, deque[Ref]] = {index: deque() for index in range(1, len(samplers) + 1)}
        self._turns = dict.fromkeys(self._played, 0)  # the number of each sampler's last call
        self._shards = {index: Shard(shards.generation(index)) for index in range(1, len(shards) + 1)}
        self._drawn: deque[Minibatches] = deque()
        self._learning: deque[Learning] = deque()
        self._weights: Ref | None = None
        self._coming: Ref | None = None  # weights that the learner has not given yet
        self._version = self._next_version = 0
        self._worked_s = 0.0

    def learner(self) -> Handle:
        return self._learner

    def sources(self, shard: int) -> list[int]:
        """The samplers whose fragments go to a shard."""
        return list(range(shard, len(self.samplers) + 1, len(self.shards)))

    def step(self, progress: float) -> Report:
        """Go on until as many fragments were played as there are samplers."""
        reports: list[Report] = []
        played, self._worked_s = 0, 0.0
        while played < len(self.samplers):
            self._play(progress)
            self._insert()
            self._draw(progress)
            self._learn(progress)
            played += self._take(reports)
        report = merge_reports(reports)
        report.timers["replay"] = self._worked_s
        report.samplers, report.learners, report.overlapping = len(self.samplers), 1, True
        return self._figures(pool_figures(report, self.samplers))

    # --- what is begun ---

    def _play(self, progress: float) -> None:
        """Call samplers, those first who were called longest ago: where the pace leaves room for one, they take turns. They
        go on with the weights that have come last."""
        version = self.updates + sum(learning.on.count for learning in self._learning)  # once the learner comes to it
        if self._coming is None and (self._weights is None or version - self._version >= self.broadcast_every):
            self._coming, self._next_version = self._learner.call("get_weights", progress), version
            if self._weights is None:
                self._weights, self._version = self._coming, self._next_version
        draws = self.draws(progress)
        for index in sorted(self.samplers.free, key=self._turns.__getitem__):
            under_way, learned = self.samplers.in_flight, self.updates + self._skipped
            if self._able(draws.rows) and not self.pace.may_play(self.seen, under_way, learned):
                return
            if len(self._played[index]) < WAITING:
                args = (self.fragment, self._weights, draws.gamma)
                self.samplers.call(index, "play", *args, tag=self._version, parts=1)
                self._turns[index] = max(self._turns.values()) + 1

    def _insert(self) -> None:
        """Give shards a fragment of each of their samplers, where all that are up have one or somebody's queue is full."""
        up = set(self.samplers.up)
        for shard in self.shards.free:
            sources = self.sources(shard)
            ready = [index for index in sources if self._played[index]]
            full = any(len(self._played[index]) >= WAITING for index in ready)
            if ready and (full or up.intersection(sources) <= set(ready)):
                refs = [self._played[index].popleft() for index in ready]
                places = [sources.index(index) + 1 for index in ready]
                self.shards.call(shard, "insert", refs, places, len(sources))

    def _draw(self, progress: float) -> None:
        """Ask for minibatches: full calls where the learner has something to do, and whatever is due where it has not."""
        draws = self.draws(progress)
        while sum(shard.calls for shard in self._shards.values()) + len(self._drawn) < self.ahead:
            due = self.pace.due(self.seen) - self._begun - self._skipped
            if due < 1 or (due < self.at_once and not self._idle):
                return
            able = self._able(draws.rows)
            if not able and self._idle and self.pace.learner_waits:
                self._skipped += due
            able = [index for index in self.shards.free if index in able]
            if not able:
                return
            index, count = self._next_shard(able), min(due, self.at_once)
            shard = self._shards[index]
            self.shards.call(index, "draw", count, draws, tag=count, parts=1)
            shard.asked, shard.calls, self._begun = shard.asked + count, shard.calls + 1, self._begun + count

    def _able(self, rows: int) -> list[int]:
        """The shards that minibatches can be drawn from."""
        return [index for index, shard in self._shards.items() if shard.held.size >= rows]

    @property
    def _idle(self) -> bool:
        """Whether the learner has nothing to do and nothing is on its way to it."""
        return not (self._learning or self._drawn or any(shard.calls for shard in self._shards.values()))

    def _next_shard(self, able: list[int]) -> int:
        """That which is furthest behind the share of draws that its rows' weight gives it."""
        total = sum(self._shards[index].held.total for index in able)
        for index in able:
            self._shards[index].behind += self._shards[index].held.total / total if total else 1 / len(able)
        chosen = max(able, key=lambda index: self._shards[index].behind)
        self._shards[chosen].behind -= 1.0
        return chosen

    def _learn(self, progress: float) -> None:
        while self._drawn and len(self._learning) < LEARNS:
            on = self._drawn.popleft()
            sgd = self.sgd(progress, self.updates)
            report, told = self._learner.split(2, "learn_handed", on.handed, on.count, sgd)
            self._learning.append(Learning(report, told, on))

    # --- what has ended ---

    def _take(self, reports: list[Report]) -> int:
        """Wait for something to end and take it in; how many fragments were played."""
        own = [learning.report for learning in self._learning] + ([] if self._coming is None else [self._coming])
        refs = [*self.samplers.under_way, *self.shards.under_way, *own]
        if not refs:
            return 0
        ready = self.engine.wait(refs, len(refs), 0.0)[0] or self.engine.wait(refs, 1, PATIENCE_S)[0]
        ended = set(ready)
        played = self.samplers.take(ended)
        for one in played:
            report: Report = self.engine.get(one.ref)
            report.metrics.mean("weight_lag", self.updates - one.tag)
            report.metrics.max("weight_lag_max", self.updates - one.tag)
            self._played[one.index].append(one.parts[0])
            self.seen += report.env_steps
            reports.append(report)
        for one in self.shards.take(ended):
            self._answered(one)
        self._note_lost_shards()
        if self._coming in ended:
            self.engine.check(self._coming)
            self._weights, self._version, self._coming = self._coming, self._next_version, None
        while self._learning and self._learning[0].report in ended:
            self._learned(self._learning.popleft(), reports)
        return len(played)

    def _answered(self, one: Finished) -> None:
        """A shard has kept, drawn or heard something; a draw is known by its tag."""
        shard = self._shards[one.index]
        shard.held = self.engine.get(one.ref)
        self._worked_s += shard.held.worked_s
        if one.tag is not None:
            shard.asked, shard.calls = shard.asked - one.tag, shard.calls - 1
            self._drawn.append(Minibatches(one.parts[0], one.tag, one.index, shard.generation))

    def _note_lost_shards(self) -> None:
        """Where a shard was replaced, what it held is lost, and what it was asked for is not begun."""
        for index, shard in self._shards.items():
            if shard.generation != self.shards.generation(index):
                self.rows_lost += shard.held.size
                self._begun -= shard.asked
                self._shards[index] = Shard(self.shards.generation(index))

    def _learned(self, learning: Learning, reports: list[Report]) -> None:
        """Count the updates and tell the shard about its rows, if it still is the one that drew them."""
        on = learning.on
        try:
            reports.append(self.engine.get(learning.report))
        except ArgumentLost:  # with the machine it lay on
            self.shards.lost += 1
            self._begun -= on.count
            return
        self.updates += on.count
        if self._shards[on.shard].generation == on.generation:
            self.shards.call(on.shard, "feedback", learning.told)

    def _figures(self, report: Report) -> Report:
        """The gauges: how full the queues are, what the shards hold and have lost, how many updates an env step has got."""
        metrics, shards = report.metrics, self._shards.values()
        metrics.last("replay_size", sum(shard.held.size for shard in shards))
        metrics.last("rows_lost", self.rows_lost)
        metrics.last("shards_up", len(self.shards.up))
        metrics.last("shards_replaced", self.shards.replaced)
        metrics.last("queue_depth", sum(map(len, self._played.values())))
        metrics.last("draws_waiting", len(self._drawn))
        metrics.last("calls_under_way", self.samplers.in_flight + self.shards.in_flight + len(self._learning))
        metrics.last("updates_per_step", self.updates / max(self.seen, 1))
        return report

    # --- state ---

    def get_state(self, restart: bool) -> State:
        """The learner's state: what the samplers are in the midst of has no order that could be had again."""
        state = self.engine.get(self._learner.call("get_state", restart))
        counts = {"updates": self.updates, "seen": self.seen, "skipped": self._skipped}
        return {**counts, "evaluators": [{**state, "exact": False}]}

    def set_state(self, state: State) -> None:
        self.engine.get(self._learner.call("set_state", state["evaluators"][0]))
        self.updates = self._begun = self._version = state["updates"]
        self.seen, self._skipped = state["seen"], state["skipped"]
        self._weights = self._coming = None

    def get_replay(self, known: Collection[str]) -> tuple[State, dict[str, Any]]:
        """The states of the shards, none for one that has just been lost, and the pieces of all."""
        calls = {index: self.shards.handle(index).call("get_replay", known) for index in self.shards.up}
        states: list[State | None] = [None] * len(self.shards)
        pieces: dict[str, Any] = {}
        for index, call in calls.items():
            try:
                states[index - 1], own = self.engine.get(call)
            except WorkerDied:
                continue  # its pool finds that out and replaces it
            pieces.update(own)
        return {"shards": states}, pieces

    def set_replay(self, state: Mapping[str, Any], pieces: Mapping[str, Any]) -> None:
        for (index, shard), saved in zip(self._shards.items(), state["shards"], strict=True):
            if saved is not None:
                names = [name for _, name in saved["rows"]["pieces"]] if saved["rows"] is not None else []
                own = {name: pieces[name] for name in names}
                shard.held = self.engine.get(self.shards.handle(index).call("set_replay", saved, own))

    def adopt(self, policy: State) -> None:
        self.engine.get(self._learner.call("start_from", policy))
        self._weights = self._coming = None

    def close(self) -> None:
        self.samplers.close()
        self.shards.close()
        self.engine.kill(self._learner)
