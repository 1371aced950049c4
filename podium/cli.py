"""The command line: words and flags become the Python API's arguments, errors become one line and an exit code."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from podium import __version__
from podium.core.errors import PodiumError, UsageError, did_you_mean

USAGE = f"""Podium {__version__}: distributed reinforcement learning

  podium train ALGO ENV [--SETTING VALUE ...]   train; `podium train ALGO --help` shows its settings
  podium resume DIR [--steps N] [--trials N]    go on with a run or a search
  podium evaluate DIR [--episodes N]            play with a trained policy; --video FILE films it
  podium serve DIR [--port N] [--follow]        answer questions about actions over gRPC
  podium tune ALGO ENV --search NAME=RANGE      search for the settings that are best
  podium plan ALGO ENV [--SETTING VALUE ...]    what train would run, what it takes up, how fast it goes
  podium plot DIR|FILE... [--out PNG]           draw learning curves or benchmark reports
  podium list [algorithms|envs|runs]            what there is
  podium bench sampling|learning|rpc|...        measure speed beside bare loops; `podium bench --help` names them all
  podium verify [ALGO ...] [--quick]            check that the algorithms still learn

Each command has --help. Exit codes: 0 done, 2 usage, 1 failed, 130 and 143 interrupted after a checkpoint."""


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        flags = [flag for action in self._actions for flag in action.option_strings]
        unknown = message.removeprefix("unrecognized arguments: ").split()[0]
        hint = did_you_mean(unknown, flags) if message.startswith("unrecognized") and unknown.startswith("-") else ""
        raise UsageError(f"{message}{hint}")


class Once(argparse.Action):
    """A flag with a value that may be given once."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        if getattr(namespace, self.dest) != self.default:
            raise UsageError(f"{option_string} is given twice")
        setattr(namespace, self.dest, values)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    try:
        return _dispatch(words)
    except PodiumError as error:
        code, line = error.exit_code, str(error)
        trace: BaseException = error
    except KeyboardInterrupt as stop:
        code, line = getattr(stop, "exit_code", 128 + signal.SIGINT), (str(stop) or "interrupted") + _notes(stop)
        trace = stop
    except BrokenPipeError:
        sys.stderr.close()
        return 1
    except Exception as error:
        code, line = 1, f"{type(error).__name__}: {error}{_notes(error)}"
        trace = error
    if debug:
        import traceback

        traceback.print_exception(trace)
    print("podium: " + " ".join(line.split()), file=sys.stderr)
    return code


def _notes(error: BaseException) -> str:
    """Where it happened, or what to do next, as far as that was noted."""
    notes = "; ".join(getattr(error, "__notes__", []))
    return f" ({notes})" if notes else ""


def _dispatch(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        print(USAGE)
        return 0
    if words[0] == "--version":
        print(f"podium {__version__}")
        return 0
    command, *rest = words
    if command not in COMMANDS:
        hint = did_you_mean(command, COMMANDS) or f"; there are {', '.join(COMMANDS)}"
        raise UsageError(f"unknown command {command!r}{hint}")
    return COMMANDS[command](rest)


def _train(words: list[str]) -> int:
    parser = Parser(prog="podium train", add_help=False, allow_abbrev=False)
    for name in ("--out", "--from", "--preset", "--config", "--seeds", "--wandb"):
        parser.add_argument(name, action=Once)
    _add_env_args(parser)
    for name in ("--overwrite", "--json", "--quiet", "--help", "-h"):
        parser.add_argument(name, action="store_true")
    own, others = parser.parse_known_args(words)
    names, settings = _split_settings(others)
    if own.help or own.h:
        print(_train_help(names[0] if names else None))
        return 0
    from podium.runs import TrainRequest, train_command

    algo, env = _algo_env("train", names)
    request = TrainRequest(
        algo=algo,
        env=env,
        settings=settings,
        env_args=_env_args(own),
        out=own.out,
        overwrite=own.overwrite,
        preset=own.preset,
        config=own.config,
        start_from=getattr(own, "from"),
        seeds=_seeds(own.seeds) if own.seeds is not None else None,
        wandb=own.wandb,
        quiet=own.quiet,
        flags=[flag for action in parser._actions for flag in action.option_strings],
    )
    return train_command(request, own.json)


def _tune(words: list[str]) -> int:
    parser = Parser(prog="podium tune", add_help=False, allow_abbrev=False)
    parser.add_argument("--search", action="append", default=[])
    for name in ("metric", "direction", "scheduler", "sampler", "storage", "study", "out", "preset", "seeds"):
        parser.add_argument(f"--{name}", action=Once)
    for name in ("trials", "parallel", "report-every", "max-failed-trials", "population", "exploit-every"):
        parser.add_argument(f"--{name}", action=Once, type=_whole)
    _add_env_args(parser)
    for name in ("--overwrite", "--plan", "--json", "--quiet", "--help", "-h"):
        parser.add_argument(name, action="store_true")
    own, others = parser.parse_known_args(words)
    if own.help or own.h:
        print(TUNE_HELP)
        return 0
    names, settings = _split_settings(others)
    algo, env = _algo_env("tune", names)
    if algo is None or env is None:
        raise UsageError("expected `podium tune ALGO ENV --search NAME=RANGE`, such as `--search lr=log:1e-5:1e-2`")
    from podium.tuning.command import tune_command

    asked = {name: value for name in TUNE_WORDS if (value := getattr(own, name)) is not None}
    asked["seeds"] = _seeds(own.seeds) if own.seeds is not None else None
    asked |= {"algo": algo, "env": env, "search": own.search, "env_args": _env_args(own), "preset": own.preset}
    asked |= {"out": own.out, "overwrite": own.overwrite, "progress": not own.quiet}
    return tune_command(asked, settings, own.json, own.plan)


def _whole(text: str) -> int:
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r}, expected a whole number from 0")
    return int(text)


TUNE_WORDS = (
    *("trials", "metric", "direction", "scheduler", "sampler", "parallel", "report_every", "max_failed_trials"),
    *("storage", "study", "population", "exploit_every"),
)
TUNE_HELP = """podium tune ALGO ENV --search NAME=RANGE [--search ...] [--SETTING VALUE ...]

  NAME=RANGE              lr=log:1e-5:1e-2, gamma=0.9:0.999, epochs=int:1:20, minibatch=logint:16:512, clip=0.1,0.2,0.3,
                          hidden=64,64|128,128, memory=none,lstm; lr=log:1e-5:1e-2->0 begins a schedule
  --trials 30             how many in all
  --metric return_mean    a figure of metrics.jsonl; env_steps with --stop-return R is how soon R is reached
  --direction D           maximize or minimize; by default what suits the metric
  --scheduler median      stops trials early: median, halving, hyperband, none; population trains a population instead
  --sampler tpe           what to try next: tpe, random, grid, cmaes
  --parallel N            trials at once; by default as many as keep the machine busy (engine ray), or 1 (local)
  --report-every N        env steps between two looks at a trial; by default a twentieth of --steps
  --max-failed-trials 5   more that fail end the search
  --seeds 1-3             runs of each trial, whose mean counts
  --storage URL|FILE      where trials are kept, to share the search; by default journal.log in the run folder
  --study NAME            the search's name there; by default ALGO-ENV
  --population 8, --exploit-every N   with --scheduler population: members, and env steps between exploits
  --out DIR, --overwrite, --preset NAME, --env-arg K=V, --quiet, --json   as in train
  --plan                  only say how many trials would run at once, and why

All other flags are settings that every trial has: `podium train ALGO --help` lists them."""


def _plan(words: list[str]) -> int:
    parser = Parser(prog="podium plan", add_help=False, allow_abbrev=False)
    for name in ("--preset", "--config"):
        parser.add_argument(name, action=Once)
    _add_env_args(parser)
    for name in ("--json", "--help", "-h"):
        parser.add_argument(name, action="store_true")
    own, others = parser.parse_known_args(words)
    if own.help or own.h:
        print(PLAN_HELP)
        return 0
    names, settings = _split_settings(others)
    from podium.runs import TrainRequest, plan_command

    algo, env = _algo_env("plan", names)
    flags = [flag for action in parser._actions for flag in action.option_strings]
    request = TrainRequest(algo, env, settings, _env_args(own), preset=own.preset, flags=flags, config=own.config)
    return plan_command(request, own.json)


PLAN_HELP = """podium plan ALGO ENV [--SETTING VALUE ...] [--preset NAME] [--config FILE] [--env-arg K=V] [--json]

What `podium train` with the same settings would run: processes, cores, GPUs, memory, bytes on the way, the expected
bottleneck and env steps per second from a measurement of a second or so, how it resumes, and the --workers and --envs
that suit this machine. What can't run is refused, here as by train. `podium train ALGO --help` lists the settings."""


def _algo_env(command: str, names: Sequence[str]) -> tuple[str | None, str | None]:
    if len(names) > 2:
        raise UsageError(f"unexpected argument {names[2]!r}, expected `podium {command} ALGO ENV` and flags")
    algo, env = [*names, None, None][:2]
    return algo, env


def _split_settings(words: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """Positional words, and `--name value`, `--name=value` or a bare `--name` (true) as settings."""
    names: list[str] = []
    settings: dict[str, Any] = {}
    waiting = list(words)
    while waiting:
        word = waiting.pop(0)
        if not word.startswith("--"):
            names.append(word)
            continue
        name, equals, value = word[2:].partition("=")
        if not equals:
            value = waiting.pop(0) if waiting and not waiting[0].startswith("--") else "true"
        key = name.replace("-", "_")
        if key in settings:
            raise UsageError(f"--{name} is given twice")
        settings[key] = value
    return names, settings


PLACE = ("port", "host", "token", "wait")
"""Arguments of the env `external` that are flags too."""


def _add_env_args(parser: Parser) -> None:
    parser.add_argument("--env-arg", action="append", default=[])
    for name in PLACE:
        parser.add_argument(f"--{name}", action=Once)


def _env_args(own: argparse.Namespace) -> dict[str, Any]:
    args: dict[str, Any] = {name: value for name in PLACE if (value := getattr(own, name)) is not None}
    for pair in own.env_arg:
        key, value = _key_value(pair)
        if key in args:
            raise UsageError(f"--env-arg {key} is given twice")
        args[key] = value
    return args


def _key_value(pair: str) -> tuple[str, Any]:
    key, equals, text = pair.partition("=")
    if not equals or not key:
        raise UsageError(f"--env-arg is {pair!r}, expected key=value")
    try:
        return key, json.loads(text)
    except ValueError:
        return key, {"True": True, "False": False, "None": None}.get(text, text)


def _seeds(text: str) -> list[int]:
    """`1-5` or `1,3,7`."""
    try:
        first, dash, last = text.partition("-")
        seeds = list(range(int(first), int(last) + 1)) if dash else [int(part) for part in text.split(",")]
    except ValueError:
        seeds = []
    if not seeds or min(seeds) < 0 or len(set(seeds)) < len(seeds):
        raise UsageError(f"--seeds is {text!r}, expected a range such as 1-5 or a list such as 1,3,7")
    return seeds


def _train_help(algo: str | None) -> str:
    from podium import algorithms
    from podium.core.config import help_lines

    lines = [
        "podium train ALGO ENV [--SETTING VALUE ...]",
        "",
        "  ALGO  " + ", ".join(algorithms.names()) + ", or your own as module:attribute",
        "  ENV   a gymnasium id, atari:NAME, minatar:NAME, envpool:NAME, toy:NAME, your own as module:function, or external",
        "",
        "  --out DIR          the run's folder; by default one under runs/",
        "  --overwrite        replace the run that the folder holds",
        "  --seeds 1-5        one run for each seed",
        "  --from DIR         start with the weights of another run (ALGO and ENV may then be left out)",
        "  --preset NAME      a named set of settings",
        "  --config FILE      settings as JSON, under those that are given; ALGO and ENV may stand in it",
        "  --env-arg K=V      an argument of the env; may be repeated",
        "  --port P           with ENV external: where simulators connect; --host H, --token T, --wait SECONDS",
        "  --wandb PROJECT    log to Weights & Biases too",
        "  --json, --quiet    the result as JSON on stdout; no progress bar",
        "",
        "A number marked ~ also takes a schedule: 3e-4->0, or 0.2->0.1@0.5->0 with the progress where a value is reached.",
        "",
    ]
    if algo is None:
        return "\n".join([*lines, "`podium train ALGO --help` lists the algorithm's settings."])
    algorithm = algorithms.get(algo)
    presets = [f"Presets: {', '.join(algorithm.presets)}", ""] if algorithm.presets else []
    return "\n".join([*lines, *presets, f"Settings of {algorithm.name}:", "", *help_lines(algorithm.config)])


def _resume(words: list[str]) -> int:
    parser = Parser(
        prog="podium resume",
        description="Go on with a run from its latest checkpoint, or a search.",
        allow_abbrev=False,
    )
    parser.add_argument("dir", metavar="DIR")
    parser.add_argument("--trials", type=_positive, help="of a search: a new number of trials in all")
    parser.add_argument("--storage", help="of a search: its storage, where that needs a password")
    parser.add_argument("--steps", help="a new end of the run, in env steps")
    parser.add_argument("--wandb", metavar="PROJECT", help="go on logging to Weights & Biases")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quiet", action="store_true")
    own = parser.parse_args(words)
    from podium.runs import is_search, resume_command

    if is_search(own.dir):
        _refuse(own, "a search", "steps", "wandb")
        from podium.tuning.command import resume_command as resume_search

        return resume_search(own.dir, own.trials, own.storage, own.json, own.quiet)
    _refuse(own, "a run", "trials", "storage")
    return resume_command(own)


def _refuse(own: argparse.Namespace, what: str, *names: str) -> None:
    for name in names:
        if getattr(own, name) is not None:
            raise UsageError(f"--{name} would not be read: {own.dir} holds {what}")


def _evaluate(words: list[str]) -> int:
    parser = Parser(prog="podium evaluate", description="Play episodes with a trained policy.", allow_abbrev=False)
    parser.add_argument("dir", metavar="DIR")
    parser.add_argument("--episodes", type=_positive, default=20)
    parser.add_argument("--checkpoint", default="latest", help="latest, best, or a folder's name in checkpoints/")
    parser.add_argument("--stochastic", action="store_true", help="sample actions instead of taking the likeliest")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--video", metavar="FILE", help="film the episodes: .mp4 or .gif")
    parser.add_argument("--json", action="store_true")
    own = parser.parse_args(words)
    from podium.runs import evaluate_command

    return evaluate_command(own)


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}, expected a whole number from 1")
    return int(text)


def _serve(words: list[str]) -> int:
    parser = Parser(prog="podium serve", description="Answer for a trained policy over gRPC.", allow_abbrev=False)
    parser.add_argument("dir", metavar="DIR")
    parser.add_argument("--checkpoint", default="latest", help="latest, best, or a folder's name in checkpoints/")
    parser.add_argument("--host", default="127.0.0.1", help="another than the loopback interface needs a token")
    parser.add_argument("--port", type=int, default=0, help="0 takes any that is free")
    parser.add_argument("--token", action=Once, help="what every call must carry")
    parser.add_argument("--token-file", action=Once, metavar="FILE", help="a file that holds it")
    parser.add_argument("--max-batch", type=_positive, default=256, metavar="ROWS", help="rows in a pass")
    parser.add_argument("--max-wait-ms", type=_milliseconds, default=0.0, metavar="MS", help="to wait for as many")
    parser.add_argument("--follow", action="store_true", help="take the weights of newer checkpoints as they come")
    parser.add_argument("--json", action="store_true")
    own = parser.parse_args(words)
    from podium.serve import ServeRequest, serve_command

    given = {name: value for name, value in vars(own).items() if name not in ("dir", "json")}
    return serve_command(ServeRequest(own.dir, **given), own.json)


def _milliseconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 60_000:
        raise argparse.ArgumentTypeError(f"{text!r}, expected a number from 0 to 60000")
    return value


def _plot(words: list[str]) -> int:
    parser = Parser(prog="podium plot", description="Draw learning curves or benchmark reports.", allow_abbrev=False)
    parser.add_argument("files", nargs="+", metavar="DIR|FILE")
    parser.add_argument("--out", metavar="PNG|SVG")
    parser.add_argument("--metric", help="a column of metrics.jsonl; by default the returns")
    own = parser.parse_args(words)
    from podium.runs import plot_command

    return plot_command(own.files, own.out, own.metric)


def _list(words: list[str]) -> int:
    parser = Parser(prog="podium list", description="What there is.", allow_abbrev=False)
    parser.add_argument("what", nargs="?", default="algorithms", choices=("algorithms", "envs", "runs"))
    parser.add_argument("--root", default="runs", help="the folder whose runs are listed")
    parser.add_argument("--json", action="store_true")
    own = parser.parse_args(words)
    from podium.runs import list_command

    return list_command(own.what, own.root, own.json)


def _bench(words: list[str]) -> int:
    from podium.bench.command import main as bench

    return bench(words, Parser)


def _verify(words: list[str]) -> int:
    from podium.verify import main as verify

    return verify(words, Parser)


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "train": _train,
    "resume": _resume,
    "tune": _tune,
    "evaluate": _evaluate,
    "plan": _plan,
    "serve": _serve,
    "plot": _plot,
    "list": _list,
    "bench": _bench,
    "verify": _verify,
}


if __name__ == "__main__":
    sys.exit(main())
