"""`podium bench NAME`: the benchmarks by name, and their flags."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from pathlib import Path

from podium.core.errors import UsageError, known_names

HELP = """podium bench NAME [--rounds N] [--seconds S] [--out FILE.json] [--json]

  sampling   env steps per second of one evaluator; --env NAME --envs N measures another env
  learning   env steps per second of whole PPO training on CartPole-v1
  controller calls per second of the controller on Ray, with workers that do nothing; --workers N
  scaling    env steps per second against workers on Ray, with an env that sleeps; --workers 1,8,64
  shards     what a parameter server moves, against its shards; --shards 1,2,4,8
  central    env steps per second of workers on Ray that ask one server, with a CNN; --workers N --envs N --threads N
  apex       Ape-X on Ray beside DQN in one process, and its learner's rate against --workers 2,64 whose env sleeps
  rpc        what asking a policy for actions costs, over every transport; podium bench rpc --help
  replay     transitions of stacked frames per second into a replay and out of it; --capacity N

Each measures Podium and what it is held against (the bare loop without it, where it is installed Stable-Baselines3, a
straight line, a plain copy) in alternation. It prints a table, writes the report as JSON and draws it beside."""

Words = Sequence[str]


def main(words: list[str], parser_class: type[argparse.ArgumentParser]) -> int:
    """Run one benchmark and return the exit code; a missed target is a finding, no failure."""
    if words and words[0] in ("-h", "--help"):
        print(HELP)
        return 0
    if not words:
        raise UsageError(f"expected `podium bench NAME`; known: {', '.join(BENCHMARKS)}")
    name, *_ = words
    if name not in BENCHMARKS:
        raise UsageError(f"unknown benchmark {name!r}{known_names(name, BENCHMARKS)}")
    return BENCHMARKS[name](words, parser_class)


def _sampling(words: Words, parser_class: type[argparse.ArgumentParser]) -> int:
    parser = _parser(
        "sampling", "Env steps per second of one evaluator, with 64x64 networks or the DQN paper's CNN.", parser_class
    )
    parser.add_argument(
        "--env", metavar="NAME", help="a gymnasium id, atari:NAME or envpool:NAME, instead of the pinned cases"
    )
    parser.add_argument("--envs", type=_count, metavar="N", help="how many of that env; 64")
    parser.add_argument("--fragment", type=_count, default=32, metavar="N", help="steps per env in a sample; 32")
    own = parser.parse_args(words[1:])
    from podium.bench import sampling
    from podium.bench.report import Report, check_out, publish

    check_out(own.out)
    report = Report("bench-sampling", words)
    sampling.run(report, sampling.cases(own.env, own.envs), own.rounds, own.seconds, own.fragment)
    publish(report, own.out, own.json)
    return 0


def _learning(words: Words, parser_class: type[argparse.ArgumentParser]) -> int:
    parser = _parser("learning", "Env steps per second of whole PPO training on CartPole-v1.", parser_class)
    own = parser.parse_args(words[1:])
    from podium.bench import learning
    from podium.bench.report import Report, check_out, publish

    check_out(own.out)
    report = Report("bench-learning", words)
    learning.run(report, own.rounds, own.seconds)
    publish(report, own.out, own.json)
    return 0


def _controller(words: Words, parser_class: type[argparse.ArgumentParser]) -> int:
    parser = _parser("controller", "Calls per second of the controller on Ray.", parser_class)
    parser.add_argument("--workers", type=_count, default=2, metavar="N", help="samplers that do nothing; 2")
    own = parser.parse_args(words[1:])
    from podium.bench import controller
    from podium.bench.report import Report, check_out, publish

    check_out(own.out)
    report = Report("bench-controller", words)
    controller.run(report, own.workers, own.rounds, own.seconds)
    publish(report, own.out, own.json)
    return 0


def _scaling(words: Words, parser_class: type[argparse.ArgumentParser]) -> int:
    what = "Env steps per second against the number of workers on Ray."
    parser = _parser("scaling", what, parser_class, rounds=1, seconds=4)
    default = "1,2,4,8,16,32,64"
    parser.add_argument("--workers", type=_counts, default=_counts(default), metavar="N,N", help=f"how many; {default}")
    parser.add_argument("--ms", type=_milliseconds, default=50.0, metavar="MS", help="a step of the env takes this; 50")
    own = parser.parse_args(words[1:])
    from podium.bench import scaling
    from podium.bench.report import Report, check_out, publish

    check_out(own.out)
    report = Report("bench-scaling", words)
    scaling.run(report, own.workers, own.ms, own.rounds, own.seconds)
    publish(report, own.out, own.json)
    return 0


def _shards(words: Words, parser_class: type[argparse.ArgumentParser]) -> int:
    parser = _parser("shards", "What a parameter server moves, against the number of shards.", parser_class, rounds=3)
    parser.add_argument("--shards", type=_counts, default=_counts("1,2,4,8"), metavar="N,N", help="how many; 1,2,4,8")
    parser.add_argument("--workers", type=_count, default=2, metavar="N", help="workers that push gradients; 2")
    parser.add_argument("--parameters", type=_count, default=10**7, metavar="N", help="of the model; 10000000")
    own = parser.parse_args(words[1:])
    from podium.bench import shards
    from podium.bench.report import Report, check_out, publish

    check_out(own.out)
    if max(own.shards) > own.parameters:
        raise UsageError(f"--shards {max(own.shards)}, expected at most --parameters, which is {own.parameters}")
    report = Report("bench-shards", words)
    shards.run(report, own.shards, own.workers, own.parameters, own.rounds, own.seconds)
    publish(report, own.out, own.json)
    return 0


def _central(words: Words, parser_class: type[argparse.ArgumentParser]) -> int:
    what = "Env steps per second of workers on Ray that ask one server, beside workers that hold their own policies."
    parser = _parser("central", what, parser_class, rounds=5, seconds=3)
    parser.add_argument("--workers", type=_count, default=2, metavar="N", help="how many; 2")
    parser.add_argument("--envs", type=_count, default=8, metavar="N", help="of each worker; 8")
    parser.add_argument("--fragment", type=_count, default=16, metavar="N", help="steps per env in a sample; 16")
    parser.add_argument("--threads", type=_count, default=2, metavar="N", help="compute threads of the server; 2")
    own = parser.parse_args(words[1:])
    from podium.bench import central
    from podium.bench.report import Report, check_out, publish

    check_out(own.out)
    report = Report("bench-central", words)
    central.run(report, own.workers, own.envs, own.fragment, own.threads, own.rounds, own.seconds)
    publish(report, own.out, own.json)
    return 0


def _replay(words: Words, parser_class: type[argparse.ArgumentParser]) -> int:
    what = "Transitions of 84x84x4 bytes per second into a prioritized replay, and out of it 256 at a time."
    parser = _parser("replay", what, parser_class, rounds=5)
    default = 100_000
    help = f"transitions in each replay; {default}, which takes sb3 5.3 GiB; a million takes podium 6.6 GiB"
    parser.add_argument("--capacity", type=_count, default=default, metavar="N", help=help)
    parser.add_argument("--alone", action="store_true", help="without sb3, whose buffer takes eight times the memory")
    own = parser.parse_args(words[1:])
    from podium.bench import replay
    from podium.bench.report import Report, check_out, publish

    check_out(own.out)
    report = Report("bench-replay", words)
    replay.run(report, own.capacity, own.alone, own.rounds, own.seconds)
    publish(report, own.out, own.json)
    return 0


def _apex(words: Words, parser_class: type[argparse.ArgumentParser]) -> int:
    what = "Ape-X on Ray beside DQN in one process, and its learner's rate against workers whose env sleeps."
    parser = _parser("apex", what, parser_class, rounds=3, seconds=8)
    default = "2,64"
    parser.add_argument("--workers", type=_counts, default=_counts(default), metavar="N,N", help=f"how many; {default}")
    parser.add_argument(
        "--ms", type=_milliseconds, default=200.0, metavar="MS", help="a step of the env takes this; 200"
    )
    own = parser.parse_args(words[1:])
    from podium.bench import apex
    from podium.bench.report import Report, check_out, publish

    check_out(own.out)
    report = Report("bench-apex", words)
    apex.run(report, own.workers, own.ms, own.rounds, own.seconds)
    publish(report, own.out, own.json)
    return 0


def _rpc(words: Words, parser_class: type[argparse.ArgumentParser]) -> int:
    from podium.bench.rpc.command import main as rpc

    return rpc(words, parser_class)


def _parser(
    name: str, what: str, parser_class: type[argparse.ArgumentParser], rounds: int = 9, seconds: float = 1.5
) -> argparse.ArgumentParser:
    parser = parser_class(prog=f"podium bench {name}", description=what, allow_abbrev=False)
    parser.add_argument(
        "--rounds", type=_count, default=rounds, metavar="N", help=f"measurements of each contender; {rounds}"
    )
    takes = f"how long one measurement is; {seconds:g}"
    parser.add_argument("--seconds", type=_seconds, default=seconds, metavar="S", help=takes)
    out = Path(f"bench-{name}.json")
    parser.add_argument("--out", type=Path, default=out, metavar="FILE", help=f"the report; {out}, its plot beside it")
    parser.add_argument("--json", action="store_true", help="print the report as JSON, and nothing else, on stdout")
    return parser


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


BENCHMARKS: dict[str, Callable[[Words, type[argparse.ArgumentParser]], int]] = {
    "sampling": _sampling,
    "learning": _learning,
    "controller": _controller,
    "scaling": _scaling,
    "shards": _shards,
    "central": _central,
    "apex": _apex,
    "rpc": _rpc,
    "replay": _replay,
}
