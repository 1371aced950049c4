"""Kill a training command at a random moment, resume it, and compare it with one that ran through.

`python -m tests.resume_tools --times 10` does it ten times for each case and prints what it found.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from podium.core import checkpoint
from podium.run.folder import RunFolder

ROOT = Path(__file__).parents[1]
WALL_CLOCK = ("wall_s", "steps_per_s", "limited_by")
DEADLINE_S = 120.0

SMALL_PPO = "--fragment 32 --minibatch 256 --epochs 4"  # many small iterations, so that a kill falls anywhere
CASES: dict[str, list[str]] = {
    name: words.split()
    for name, words in {
        "vector": f"ppo CartPole-v1 --steps 9000 {SMALL_PPO} --eval-every 3000 --eval-episodes 4",
        "normalized": f"ppo Pendulum-v1 --steps 8000 {SMALL_PPO} --normalize-obs --lr 1e-3->0",
        "recurrent": f"ppo toy:cartpole-hidden --steps 6000 {SMALL_PPO} --memory lstm",
        "a2c": "a2c CartPole-v1 --steps 12000",
        "pg": "pg CartPole-v1 --steps 12000 --fragment 128",
        "restarting": f"ppo envpool:CartPole-v1 --steps 9000 {SMALL_PPO}",
        "processes": f"ppo MountainCar-v0 --steps 8000 {SMALL_PPO} --env-processes 2",
        "workers": f"ppo Acrobot-v1 --steps 8000 {SMALL_PPO} --workers 2 --envs 4 --normalize-obs",
        "allreduce": f"ppo CartPole-v1 --steps 8000 {SMALL_PPO} --workers 2 --optimizer allreduce --normalize-obs",
        "devices": f"ppo CartPole-v1 --steps 8000 {SMALL_PPO} --workers 2 --optimizer multi_device",
        "central": f"ppo CartPole-v1 --steps 8000 {SMALL_PPO} --workers 2 --inference central --memory gru",
        "shards": "a2c CartPole-v1 --steps 8000 --workers 2 --optimizer parameter_server --synchronous --shards 3",
        "replay": "dqn CartPole-v1 --steps 5000 --buffer 1500 --learning-starts 200 --train-every 8 --eval-every 2000 "
        "--eval-episodes 2 --prioritized --n-step 3 --noisy --normalize-obs",
        "replay workers": "dqn CartPole-v1 --steps 5000 --buffer 3000 --learning-starts 200 --train-every 8 --workers 2 "
        "--fragment 4 --envs 3 --frame-stack 3 --double",
        "sequences": "r2d2 toy:cue --steps 5000 --buffer 1500 --learning-starts 200 --train-every 32 "
        "--batch 8 --sequence 12 --burn-in 4 --sequence-every 4 --eval-every 2000 --eval-episodes 2 --noisy",
        "actor and critics": "sac Pendulum-v1 --steps 5000 --hidden 32,32 --learning-starts 200 --train-every 4 --batch 64 "
        "--buffer 1500 --eval-every 2000 --eval-episodes 2 --n-step 3 --prioritized --normalize-obs --critic-dropout 0.1",
        "delayed": "td3 Pendulum-v1 --steps 5000 --hidden 32,32 --learning-starts 200 --train-every 4 --batch 64 --noise-kind ou "
        "--eval-every 2000 --eval-episodes 2",
        "es": "es CartPole-v1 --steps 9000 --population 16 --envs 8 --eval-every 3000 --eval-episodes 2 --sample-actions",
        "ars": "ars envpool:Pendulum-v1 --steps 14000 --directions 4 --top 2 --envs 4 --workers 2",
        "cem": "cem Pendulum-v1 --steps 40000 --population 16 --envs 8 --elites 4 --normalize-obs --workers 2",
        "stacked": f"ppo CartPole-v1 --steps 8000 {SMALL_PPO} --frame-stack 2",
    }.items()
}


@dataclass
class Killed:
    """How a run was killed: after how many env steps, and what its latest checkpoint was (None before the first)."""

    at: int
    checkpoint: int | None


def environment() -> dict[str, str]:
    """A command's environment: this checkout's podium, one compute thread."""
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg", "COLUMNS": "100"}


def start(*words: object, **options: Any) -> subprocess.Popen[str]:
    """A podium command as a process of its own session, with its outputs as text pipes, that Ctrl-C ends: also where a
    shell has started the tests in the background, and so without it."""
    return subprocess.Popen(
        [sys.executable, "-m", "podium.cli", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        **options,
    )


def run(*words: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """A podium command until its end."""
    process = start(*words, **options)
    try:
        out, err = process.communicate(timeout=DEADLINE_S)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def steps_done(folder: Path) -> int:
    """The env steps of the last whole row of metrics.jsonl."""
    try:
        lines = (folder / "metrics.jsonl").read_bytes().split(b"\n")
    except OSError:
        return 0
    return json.loads(lines[-2])["env_steps"] if len(lines) > 1 else 0


def wait_until(reached: Any, process: subprocess.Popen[str], seconds: float = DEADLINE_S) -> None:
    """Poll quickly until `reached()`, or until the process ends."""
    limit = time.monotonic() + seconds
    while not reached() and process.poll() is None:
        assert time.monotonic() < limit, "the moment never came"
        time.sleep(0.002)


def kill_at(words: Sequence[object], folder: Path, steps: int, delay: float = 0.0) -> Killed:
    """Start a command, and SIGKILL it (and what it started) `delay` seconds after `folder` shows `steps` env steps."""
    process = start(*words)
    try:
        wait_until(lambda: steps_done(folder) >= steps, process)
        time.sleep(delay)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        _, err = process.communicate()
    assert process.returncode == -signal.SIGKILL, f"ended before it could be killed ({process.returncode}): {err}"
    latest = folder / "checkpoints" / "latest"
    return Killed(steps_done(folder), int(latest.resolve().name.removeprefix("step-")) if latest.exists() else None)


def train_words(case: str, folder: Path, seed: int, every: int = 2000) -> list[object]:
    return ["train", *CASES[case], "--out", folder, "--seed", seed, "--checkpoint-every", every, "--quiet"]


def differences(mine: Path, theirs: Path) -> list[str]:
    """What differs between two finished runs, wall-clock figures and `resumed_from` aside: none if they are equal."""
    one, other = RunFolder.open(mine), RunFolder.open(theirs)
    found = [f"{name}: {a} and {b}" for name, a, b in _final_checkpoints(one, other) if not _equal(a, b)]
    rows, others = ([_lasting(row) for row in run.read_metrics()] for run in (one, other))
    if len(rows) != len(others):
        found.append(f"metrics.jsonl has {len(rows)} and {len(others)} rows")
    found += [f"metrics row {i}: {a} and {b}" for i, (a, b) in enumerate(zip(rows, others, strict=False)) if a != b][:1]
    results = [{**_lasting(run.read_result() or {}), "resumed_from": None} for run in (one, other)]
    if results[0] != results[1]:
        found.append(f"result.json: {results[0]} and {results[1]}")
    names = [sorted(path.name for path in run.checkpoints.iterdir()) for run in (one, other)]
    if names[0] != names[1]:
        found.append(f"checkpoints: {names[0]} and {names[1]}")
    return found


def _final_checkpoints(one: RunFolder, other: RunFolder) -> Iterator[tuple[str, Any, Any]]:
    for name in ("latest", "best"):
        if (one.checkpoints / name).exists() != (other.checkpoints / name).exists():
            yield f"{name} exists", (one.checkpoints / name).exists(), (other.checkpoints / name).exists()
        elif (one.checkpoints / name).exists():
            trees = [dict(_leaves(checkpoint.load(run.checkpoints / name), name)) for run in (one, other)]
            for path in trees[0] | trees[1]:
                if not path.endswith("/resumed_from"):
                    yield path, trees[0].get(path, "nothing"), trees[1].get(path, "nothing")


def _leaves(tree: Any, path: str) -> Iterator[tuple[str, Any]]:
    children = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list | tuple) else None
    if children is None:
        yield path, tree
        return
    for key, inner in children:
        yield from _leaves(inner, f"{path}/{key}")


def _equal(mine: Any, theirs: Any) -> bool:
    if isinstance(mine, np.ndarray) and isinstance(theirs, np.ndarray):
        return mine.dtype == theirs.dtype and mine.shape == theirs.shape and mine.tobytes() == theirs.tobytes()
    return type(mine) is type(theirs) and mine == theirs


def _lasting(row: dict[str, Any]) -> dict[str, Any]:
    return {
        key: value for key, value in row.items() if key not in WALL_CLOCK and not key.startswith(("time_", "share_"))
    }


def kill_and_resume(case: str, folder: Path, seed: int, rng: random.Random, kills: int = 1) -> list[Killed]:
    """Run a case, killing it `kills` times at random moments and resuming it after each."""
    steps = int(CASES[case][CASES[case].index("--steps") + 1])
    moments = sorted(rng.uniform(0.1, 0.95) * steps for _ in range(kills))
    killed = []
    words: list[object] = train_words(case, folder, seed)
    for moment in moments:
        killed.append(kill_at(words, folder, int(moment), rng.uniform(0, 0.03)))
        words = ["resume", folder, "--quiet"]
    done = run(*words, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["resumed_from"] == killed[-1].checkpoint
    return killed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=10, help="kills per case, each with a seed of its own")
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--seed", type=int, default=0, help="decides the moments of the kills")
    own = parser.parse_args()
    wrong = 0
    with tempfile.TemporaryDirectory() as root:
        for case in own.cases:
            whole = Path(root, case)
            done = run(*train_words(case, whole, own.seed))
            assert done.returncode == 0, done.stderr
            for time_ in range(own.times):
                folder = Path(root, f"{case}-{time_}")
                (killed,) = kill_and_resume(case, folder, own.seed, random.Random(f"{own.seed} {case} {time_}"))
                found = differences(whole, folder)
                wrong += bool(found)
                print(
                    f"{case} {time_ + 1}/{own.times}: killed at {killed.at}, resumed from {killed.checkpoint}: ", end=""
                )
                print("; ".join(found)[:500] if found else "bit-equal", flush=True)
    print(f"{wrong} of {own.times * len(own.cases)} differ")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
