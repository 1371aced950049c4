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

Each measures Podium, the bare loop without it and, where it is installed, Stable-Baselines3, in alternation. It prints
a table, writes the report as JSON and draws it beside."""

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
    parser = _parser("sampling", "Env steps per second of one evaluator with 64x64 networks.", parser_class)
    parser.add_argument("--env", metavar="NAME", help="a gymnasium id or envpool:NAME, instead of the pinned cases")
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


def _parser(name: str, what: str, parser_class: type[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    parser = parser_class(prog=f"podium bench {name}", description=what, allow_abbrev=False)
    parser.add_argument("--rounds", type=_count, default=9, metavar="N", help="measurements of each contender; 9")
    parser.add_argument("--seconds", type=_seconds, default=1.5, metavar="S", help="how long one measurement is; 1.5")
    out = Path(f"bench-{name}.json")
    parser.add_argument("--out", type=Path, default=out, metavar="FILE", help=f"the report; {out}, its plot beside it")
    parser.add_argument("--json", action="store_true", help="print the report as JSON, and nothing else, on stdout")
    return parser


def _count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}, expected a whole number from 1")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r}, expected a number of seconds above 0")
    return seconds


BENCHMARKS: dict[str, Callable[[Words, type[argparse.ArgumentParser]], int]] = {
    "sampling": _sampling,
    "learning": _learning,
}
