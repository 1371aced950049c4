"""`podium bench NAME`: the benchmarks by name, and their flags."""

from __future__ import annotations

import argparse
import importlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from podium.core.errors import UsageError, known_names

HELP = """podium bench NAME [--rounds N] [--seconds S] [--out FILE.json] [--json]

  sampling   env steps per second of one evaluator; --env NAME --envs N measures another env
  learning   env steps per second of whole PPO training on CartPole-v1; --algo sac|td3 updates per second of theirs
  controller calls per second of the controller on Ray, with workers that do nothing; --workers N
  scaling    env steps per second against workers on Ray, with an env that sleeps; --workers 1,8,64
  shards     what a parameter server moves, against its shards; --shards 1,2,4,8
  central    env steps per second of workers on Ray that ask one server, with a CNN; --workers N --envs N --threads N
  apex       Ape-X on Ray beside DQN in one process, and its learner's rate against --workers 2,64 whose env sleeps
  rpc        what asking a policy for actions costs, over every transport; podium bench rpc --help
  replay     transitions of stacked frames per second into a replay and out of it; --capacity N
  curves     how well Podium and Stable-Baselines3 learn with the same settings; --algo NAME --env NAME --steps N

Each measures Podium and what it is held against (the bare loop without it, where they are installed other libraries, a
straight line, a plain copy) in alternation. It prints a table, writes the report as JSON and draws it beside."""


def _count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}, expected a whole number from 1")
    return int(text)


def _counts(text: str) -> list[int]:
    """Whole numbers from 1 with commas between them, each once, from the least to the greatest."""
    return sorted({_count(part) for part in text.split(",")})


def _seconds(text: str, unit: str = "seconds") -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r}, expected a number of {unit} above 0")
    return seconds


def _milliseconds(text: str) -> float:
    return _seconds(text, "milliseconds")


def _names(text: str) -> list[str]:
    return text.split(",")


@dataclass(frozen=True)
class Flag:
    """A flag of one benchmark: how its text is read, what stands where it isn't given, its word in help."""

    read: Callable[[str], Any]
    default: Any
    metavar: str
    help: str


@dataclass(frozen=True)
class Benchmark:
    """What is measured, and by which flags: its module of the same name has `run(report, **flags)`, among them `rounds`
    and `seconds` where speed is measured, again and again."""

    what: str
    flags: Mapping[str, Flag] = field(default_factory=dict)
    rounds: int | None = 9
    seconds: float = 1.5


BENCHMARKS = {
    "sampling": Benchmark(
        "Env steps per second of one evaluator, with 64x64 networks or the DQN paper's CNN.",
        {
            "env": Flag(str, None, "NAME", "a gymnasium id, atari:NAME or envpool:NAME, instead of the pinned cases"),
            "envs": Flag(_count, None, "N", "how many of that env; 64"),
            "fragment": Flag(_count, 32, "N", "steps per env in a sample; 32"),
        },
    ),
    "learning": Benchmark(
        "Env steps per second of whole PPO training on CartPole-v1, or updates per second of SAC or TD3 on HalfCheetah-v5.",
        {"algo": Flag(str, "ppo", "NAME", "ppo, sac or td3; ppo")},
    ),
    "controller": Benchmark(
        "Calls per second of the controller on Ray.",
        {"workers": Flag(_count, 2, "N", "samplers that do nothing; 2")},
    ),
    "scaling": Benchmark(
        "Env steps per second against the number of workers on Ray.",
        {
            "workers": Flag(_counts, _counts("1,2,4,8,16,32,64"), "N,N", "how many; 1,2,4,8,16,32,64"),
            "ms": Flag(_milliseconds, 50.0, "MS", "a step of the env takes this; 50"),
        },
        rounds=1,
        seconds=4,
    ),
    "shards": Benchmark(
        "What a parameter server moves, against the number of shards.",
        {
            "shards": Flag(_counts, _counts("1,2,4,8"), "N,N", "how many; 1,2,4,8"),
            "workers": Flag(_count, 2, "N", "workers that push gradients; 2"),
            "parameters": Flag(_count, 10**7, "N", "of the model; 10000000"),
        },
        rounds=3,
    ),
    "central": Benchmark(
        "Env steps per second of workers on Ray that ask one server, beside workers that hold their own policies.",
        {
            "workers": Flag(_count, 2, "N", "how many; 2"),
            "envs": Flag(_count, 8, "N", "of each worker; 8"),
            "fragment": Flag(_count, 16, "N", "steps per env in a sample; 16"),
            "threads": Flag(_count, 2, "N", "compute threads of the server; 2"),
        },
        rounds=5,
        seconds=3,
    ),
    "apex": Benchmark(
        "Ape-X on Ray beside DQN in one process, and its learner's rate against workers whose env sleeps.",
        {
            "workers": Flag(_counts, _counts("2,64"), "N,N", "how many; 2,64"),
            "ms": Flag(_milliseconds, 200.0, "MS", "a step of the env takes this; 200"),
        },
        rounds=3,
        seconds=8,
    ),
    "replay": Benchmark(
        "Transitions of 84x84x4 bytes per second into a prioritized replay, and out of it 256 at a time.",
        {
            "capacity": Flag(_count, 100_000, "N", "transitions in each; 100000. A million takes podium 6.6 GiB"),
            "contenders": Flag(
                _names, ["podium", "sb3", "tianshou"], "A,B", "podium, sb3 (which takes 8 times the memory), tianshou"
            ),
        },
        rounds=5,
    ),
    "curves": Benchmark(
        "How well Podium and Stable-Baselines3 learn with the same settings, seed by seed.",
        {
            "algo": Flag(str, "dqn", "NAME", "dqn, ddpg, td3 or sac; dqn"),
            "env": Flag(str, "minatar:Breakout", "NAME", "a gymnasium id or minatar:NAME; minatar:Breakout"),
            "preset": Flag(str, None, "NAME", "the algorithm's named settings"),
            "steps": Flag(_count, 1_000_000, "N", "env steps of a run; 1000000"),
            "every": Flag(_count, 50_000, "N", "env steps between evaluations; 50000"),
            "seeds": Flag(_counts, _counts("1,2,3"), "N,N", "one run of each contender for each; 1,2,3"),
            "contenders": Flag(_names, ["podium", "sb3"], "A,B", "podium, sb3"),
            "runs": Flag(
                Path, Path("bench-curves"), "DIR", "the runs' folders, where finished ones are taken as they are"
            ),
        },
        rounds=None,
    ),
}
KNOWN = [*BENCHMARKS, "rpc"]


def main(words: list[str], parser_class: type[argparse.ArgumentParser]) -> int:
    """Run one benchmark and return the exit code; a missed target is a finding, no failure."""
    if words and words[0] in ("-h", "--help"):
        print(HELP)
        return 0
    if not words:
        raise UsageError(f"expected `podium bench NAME`; known: {', '.join(KNOWN)}")
    name, *_ = words
    if name not in KNOWN:
        raise UsageError(f"unknown benchmark {name!r}{known_names(name, KNOWN)}")
    if name == "rpc":
        from podium.bench.rpc.command import main as rpc

        return rpc(words, parser_class)
    benchmark = BENCHMARKS[name]
    given = vars(_parser(name, benchmark, parser_class).parse_args(words[1:]))
    out, as_json = given.pop("out"), given.pop("json")
    from podium.bench.report import Report, check_out, publish

    check_out(out)
    report = Report(f"bench-{name}", words)
    importlib.import_module(f"podium.bench.{name}").run(report, **given)
    publish(report, out, as_json)
    return 0


def _parser(name: str, benchmark: Benchmark, parser_class: type[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    parser = parser_class(prog=f"podium bench {name}", description=benchmark.what, allow_abbrev=False)
    for flag, is_ in benchmark.flags.items():
        parser.add_argument(f"--{flag}", type=is_.read, default=is_.default, metavar=is_.metavar, help=is_.help)
    rounds, seconds = benchmark.rounds, benchmark.seconds
    if rounds is not None:
        parser.add_argument(
            "--rounds", type=_count, default=rounds, metavar="N", help=f"measurements of each contender; {rounds}"
        )
        takes = f"how long one measurement is; {seconds:g}"
        parser.add_argument("--seconds", type=_seconds, default=seconds, metavar="S", help=takes)
    out = Path(f"bench-{name}.json")
    parser.add_argument("--out", type=Path, default=out, metavar="FILE", help=f"the report; {out}, its plot beside it")
    parser.add_argument("--json", action="store_true", help="print the report as JSON, and nothing else, on stdout")
    return parser
