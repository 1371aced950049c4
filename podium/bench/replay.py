"""`podium bench replay`: how fast transitions of stacked frames go in and out, beside SB3's and Tianshou's buffers."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np

from podium.bench.measure import Contender, alternate, rate
from podium.bench.report import Measured, Report, Target
from podium.core.batch import Batch
from podium.core.errors import UsageError, did_you_mean
from podium.core.spaces import Frames
from podium.engine.plan import GIB, count, memory
from podium.replay.prioritized import PrioritizedReplay

FRAME = (84, 84)
STACK = 4
ACTIONS = 6
ENVS = 8
FRAGMENT = 32
BATCH = 256
EPISODE = 200
FRAME_BYTES = FRAME[0] * FRAME[1]
TARGETS = (Target("sb3", 5.0), Target("tianshou", 5.0))
MOST_MEMORY = 1.1
NOTE = (
    "podium and tianshou draw by priority, with weights, and feed new priorities back; sb3's buffer is uniform, and keeps "
    "two whole stacks of each transition. All get stacks of 4 frames from 8 envs, and give 256 with the 256 that follow"
)
ABSENT = {
    "sb3": "pip install 'podium[bench]'",
    "tianshou": "its requirements exclude what podium's envs need: pip install --target FOLDER --no-deps tianshou numba "
    "llvmlite sensai-utils h5py overrides deepdiff cachebox orderly-set pettingzoo, and PYTHONPATH=FOLDER",
}


def fragments() -> Iterator[Batch]:
    """Endless play of envs whose frames are noise: a few fragments again and again, each as a collector gives it."""
    rng = np.random.default_rng(0)
    made = []
    frames = rng.integers(0, 256, (4 * FRAGMENT, ENVS, *FRAME), np.uint8)
    for index in range(4):
        shown = index * FRAGMENT + np.arange(FRAGMENT + 1)[:, None] + np.arange(-STACK + 1, 1)
        obs = np.ascontiguousarray(frames[shown % len(frames)].swapaxes(1, 2))
        ends = (np.arange(FRAGMENT)[:, None] + index * FRAGMENT + 25 * np.arange(ENVS)) % EPISODE == EPISODE - 1
        made.append(
            Batch(
                {
                    "obs": obs[:-1],
                    "action": rng.integers(ACTIONS, size=(FRAGMENT, ENVS)),
                    "reward": rng.random((FRAGMENT, ENVS), np.float32),
                    "terminated": ends,
                    "truncated": np.zeros_like(ends),
                    "start": np.concatenate([np.zeros((1, ENVS), bool), ends[:-1]]),
                },
                {},
                {"obs": obs[-1]},
            )
        )
    while True:
        yield from made


class Podium:
    """A prioritized replay, filled."""

    def __init__(self, capacity: int) -> None:
        self.replay = PrioritizedReplay(capacity, frames={"obs": Frames(STACK, 0)})
        self._fragments = fragments()
        for _ in range(capacity // (ENVS * FRAGMENT) + 1):
            self.insert()

    def insert(self) -> int:
        self.replay.insert([next(self._fragments)])
        return ENVS * FRAGMENT

    def sample(self) -> int:
        import torch

        drawn = self.replay.sample(BATCH, 0.99, 0.5)
        for column in drawn.batch.cols.values():
            torch.from_numpy(column)  # as a policy takes it
        self.replay.feedback(drawn.ids, np.ones(BATCH, np.float32))
        return BATCH

    @property
    def nbytes(self) -> int:
        return self.replay.nbytes


class SB3:
    """The buffer of its off-policy algorithms, as these call it, filled."""

    def __init__(self, capacity: int) -> None:
        from gymnasium.spaces import Box, Discrete
        from stable_baselines3.common.buffers import ReplayBuffer

        space = Box(0, 255, (STACK, *FRAME), np.uint8)
        self._buffer = ReplayBuffer(capacity, space, Discrete(ACTIONS), n_envs=ENVS, device="cpu")
        self._fragments = fragments()
        self._infos: list[dict[str, object]] = [{} for _ in range(ENVS)]
        for _ in range(capacity // (ENVS * FRAGMENT) + 1):
            self.insert()

    def insert(self) -> int:
        batch = next(self._fragments)
        after = np.concatenate([batch["obs"][1:], batch.last["obs"][None]])
        done = batch["terminated"]
        for t in range(FRAGMENT):
            self._buffer.add(batch["obs"][t], after[t], batch["action"][t], batch["reward"][t], done[t], self._infos)
        return ENVS * FRAGMENT

    def sample(self) -> int:
        self._buffer.sample(BATCH)
        return BATCH


class Tianshou:
    """The prioritized buffer of several envs, as its collector and its DQN call it, filled."""

    def __init__(self, capacity: int) -> None:
        from tianshou.data import Batch as Rows
        from tianshou.data import PrioritizedVectorReplayBuffer

        self._rows = Rows
        self._buffer = PrioritizedVectorReplayBuffer(
            capacity, ENVS, alpha=0.6, beta=0.5, stack_num=STACK, ignore_obs_next=True, save_only_last_obs=True
        )
        self._fragments = fragments()
        for _ in range(capacity // (ENVS * FRAGMENT) + 1):
            self.insert()

    def insert(self) -> int:
        batch = next(self._fragments)
        after = np.concatenate([batch["obs"][1:], batch.last["obs"][None]])
        for t in range(FRAGMENT):
            names = ("action", "reward", "terminated", "truncated")
            act, rew, terminated, truncated = (batch[name][t] for name in names)
            row = self._rows(
                obs=batch["obs"][t],
                act=act,
                rew=rew,
                terminated=terminated,
                truncated=truncated,
                obs_next=after[t],
                info={},
            )
            self._buffer.add(row)
        return ENVS * FRAGMENT

    def sample(self) -> int:
        _, rows = self._buffer.sample(BATCH)
        self._buffer.update_weight(rows, np.ones(BATCH, np.float32))
        return BATCH


class Measuring:
    """One thing that is done with a replay, again and again."""

    def __init__(self, what: Callable[[], int]) -> None:
        self._what = what

    def measure(self, seconds: float) -> float:
        return rate(self._what, seconds)

    def close(self) -> None:
        """The replay serves the next case, too."""


CONTENDERS: dict[str, tuple[type[Podium | SB3 | Tianshou], str, int]] = {
    "podium": (Podium, "podium", FRAME_BYTES),
    "sb3": (SB3, "stable_baselines3", 2 * STACK * FRAME_BYTES),
    "tianshou": (Tianshou, "tianshou", FRAME_BYTES),
}
"""Each one's class, module, and bytes of a transition."""


def check(names: Sequence[str], capacity: int) -> None:
    """Refuse what would not fit into memory, with the arithmetic."""
    each = sum(CONTENDERS[name][2] for name in names)
    if capacity * each > memory():
        raise UsageError(
            f"--capacity {capacity} takes {count(capacity * each / GIB, 'GiB')}, {each:,} bytes each in {', '.join(names)}, "
            f"and there are {count(memory() / GIB, 'GiB')}: take a smaller one, or fewer with --contenders"
        )


def run(report: Report, capacity: int, contenders: Sequence[str], rounds: int, seconds: float) -> None:
    """Measure inserting and drawing, and how much memory it takes, and put them into the report."""
    for name in contenders:
        if name not in CONTENDERS:
            raise UsageError(
                f"--contenders {name!r}, expected some of {', '.join(CONTENDERS)}{did_you_mean(name, CONTENDERS)}"
            )
    if "podium" not in contenders:
        raise UsageError(f"--contenders {','.join(contenders)}, expected podium among them: it is what is measured")
    missing = [name for name in contenders if importlib.util.find_spec(CONTENDERS[name][1]) is None]
    names = [name for name in contenders if name not in missing]
    check(names, capacity)
    report.note(NOTE)
    for name in missing:
        report.note(f"no {name}, it is not installed ({ABSENT[name]})")
    ours = Podium(capacity)
    made = {name: ours if name == "podium" else CONTENDERS[name][0](capacity) for name in names}
    for title in ("insert", "sample"):
        makers: dict[str, Callable[[], Contender]] = {
            name: partial(Measuring, getattr(replay, title)) for name, replay in made.items()
        }
        case = f"{title}, {capacity:,} transitions of {FRAME[0]}x{FRAME[1]}x{STACK}"
        report.cases.append(Measured(case, alternate(makers, rounds, seconds), TARGETS, "transitions/s"))
    taken, frames = ours.nbytes, capacity * FRAME_BYTES
    ratio = taken / frames
    report.note(
        f"memory: {taken:,} bytes, {ratio:.3f} of the {frames:,} of one frame for each transition "
        f"(at most {MOST_MEMORY}: {'met' if ratio <= MOST_MEMORY else 'missed'})"
    )
