"""Searches from their start or their middle to their result, in Python and as the command `podium tune`."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from podium.algorithms.common.base import Algorithm
from podium.api import Env, described_config
from podium.core.config import flag
from podium.core.errors import MissingExtra, UsageError
from podium.envs.make import describe
from podium.run.folder import RunFolder, default_path, to_json
from podium.run.signals import Interrupted
from podium.runs import check_known, for_people, json_alone, load
from podium.tuning.request import Asked, TuneRequest, asked, from_json
from podium.tuning.request import to_json as request_json


@dataclass(frozen=True)
class Found:
    """What a search came to: the figures of result.json, and where its files are."""

    folder: Path
    figures: Mapping[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.figures[name]

    @property
    def best(self) -> Mapping[str, Any] | None:
        """Number, settings and value of the best trial, if one came to its end."""
        return self.figures["best"]


def tune(
    algo: str | Algorithm,
    env: Env | None = None,
    *,
    search: Mapping[str, str] | Sequence[str] = (),
    out: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    preset: str | None = None,
    env_args: Mapping[str, Any] | None = None,
    seeds: Sequence[int] | None = None,
    progress: bool = True,
    **words: Any,
) -> Found:
    """Search for the settings that are best. `words` are the flags of `podium tune` (trials, metric, scheduler ...) and the
    settings that all trials have."""
    request, settings = _sorted_words(search, seeds, words)
    found = _asked(algo, env, request, preset, env_args, settings)
    place = out if out is not None else default_path(f"tune-{found.algo_name}", describe(found.env), found.config.seed)
    folder = RunFolder(place)
    folder.check_free(overwrite)
    from podium.tuning.stage import Stage
    from podium.tuning.storage import open_storage

    if request.storage is not None:
        open_storage(request.storage)  # one that can't be had is told before anything is made

    with closing(Stage(found)) as stage:
        config = described_config(found.algo_name, found.env, stage.asked.config)
        RunFolder.create(folder.path, {**config, "search": request_json(found)}, overwrite)
        with folder.in_use():
            return _run(stage, folder, progress)


def plan(
    algo: str | Algorithm,
    env: Env | None = None,
    *,
    search: Mapping[str, str] | Sequence[str] = (),
    preset: str | None = None,
    env_args: Mapping[str, Any] | None = None,
    seeds: Sequence[int] | None = None,
    **words: Any,
) -> dict[str, Any]:
    """How many trials such a search would run at once, and why; what can't be is refused."""
    request, settings = _sorted_words(search, seeds, words)
    found = _asked(algo, env, request, preset, env_args, settings)
    from podium.tuning.stage import Stage

    with closing(Stage(found)) as stage:
        return {**_head(stage.asked), "at_once": stage.at_once.to_json()}


def resume(
    folder: str | os.PathLike[str],
    trials: int | None = None,
    *,
    storage: str | None = None,
    env: Env | None = None,
    algo: Algorithm | None = None,
    progress: bool = True,
) -> Found:
    """Go on with a search: what was finished stays, what was under way is run anew; `trials` is a new number in all."""
    opened = RunFolder.open(folder)
    config = opened.config
    request = from_json(config["search"], trials=trials, storage=storage)
    if storage is None and ":***@" in (request.storage or ""):
        raise UsageError(f"{opened.path} does not keep the password of its storage: add --storage {request.storage}")
    stored = {
        name: value for name, value in config.items() if name not in ("algo", "env", "from", "search", "env_args")
    }
    searched = {text.partition("=")[0].removeprefix("--").replace("-", "_") for text in request.search}
    settings = {name: value for name, value in stored.items() if name not in searched}
    if request.seeds is not None:
        settings.pop("seed")
    found = _asked(algo or config["algo"], env or config["env"], request, None, config["env_args"], settings)
    done = opened.read_result()
    if done is not None and done["status"] == "finished" and found.trials <= done["trials"]:
        return Found(opened.path, done)
    from podium.tuning.stage import Stage

    with opened.in_use(), closing(Stage(found)) as stage:
        if trials is not None:
            opened.update_config({**config, "search": request_json(found)})
        return _run(stage, opened, progress)


def _sorted_words(
    search: Mapping[str, str] | Sequence[str], seeds: Sequence[int] | None, words: Mapping[str, Any]
) -> tuple[TuneRequest, dict[str, Any]]:
    """Flags of the search apart from settings of its trials."""
    texts = [f"{name}={text}" for name, text in search.items()] if isinstance(search, Mapping) else list(search)
    own = {name: value for name, value in words.items() if name in TuneRequest.__dataclass_fields__}
    settings = {name: value for name, value in words.items() if name not in own}
    return TuneRequest(texts, seeds=seeds, **own), settings


def _asked(
    algo: str | Algorithm,
    env: Env | None,
    request: TuneRequest,
    preset: str | None,
    env_args: Mapping[str, Any] | None,
    settings: Mapping[str, Any],
) -> Asked:
    if env is None:
        raise UsageError("tune needs an env, such as CartPole-v1")
    _need_optuna(request.sampler)
    return asked(algo, env, request, preset, {**settings, **({"env_args": dict(env_args)} if env_args else {})})


def _need_optuna(sampler: str | None) -> None:
    try:
        import optuna  # noqa: F401

        if sampler == "cmaes":
            import cmaes  # noqa: F401
    except ImportError:
        raise MissingExtra("podium tune", "tune") from None


def _run(stage: Any, folder: RunFolder, progress: bool) -> Found:
    """The search itself, with its result in the folder however it ends."""
    from podium.tuning.board import Board

    began, found = perf_counter(), stage.asked
    title = f"{found.algo_name} {describe(found.env)}"
    board = Board(found.goal, found.trials, title, progress)
    board.say(f"{title}: {stage.at_once.value} at once: {stage.at_once.reason}")
    (folder.path / "result.json").unlink(missing_ok=True)
    work: Any = None

    def finish(status: str, **more: Any) -> dict[str, Any]:
        result = _result(stage, folder, work, perf_counter() - began, status, **more)
        folder.write_processes([])
        folder.write_result(result)
        return result

    try:
        if found.request.scheduler == "population":
            from podium.tuning.members import Members

            work = Members(stage, folder, board)
        else:
            from podium.tuning.search import Search

            work = Search(stage, folder, board)
        work.run()
    except Interrupted as stop:
        finish("interrupted")
        stop.add_note(f"podium resume {folder.path} goes on")
        raise
    except Exception as error:
        finish("failed", error=f"{type(error).__name__}: {error}")
        raise
    finally:
        board.close()
    return Found(folder.path, finish("finished", plots=_draw(folder, work)))


def _draw(folder: RunFolder, work: Any) -> list[str]:
    from podium.tuning import plots
    from podium.tuning.members import read_lineage

    study = getattr(getattr(work, "book", None), "study", None)
    return [
        str(path) for path in plots.write(folder.path, work.asked, work.ledger.records, study, read_lineage(folder))
    ]


def _head(found: Asked) -> dict[str, Any]:
    request = found.request
    return {
        "algo": found.algo_name,
        "env": describe(found.env),
        "engine": found.config.engine,
        "scheduler": request.scheduler,
        "sampler": None if request.scheduler == "population" else found.sampler,
        "metric": found.goal.metric,
        "direction": found.goal.direction,
        "every": found.every,
        "steps": found.config.steps,
        "seeds": found.seeds,
    }


def _result(stage: Any, folder: RunFolder, work: Any, seconds: float, status: str, **more: Any) -> dict[str, Any]:
    records = work.ledger.records if work is not None else []
    best = work.ledger.best() if work is not None else None
    path = work.ledger.write_best() if work is not None else None
    counts = Counter(record["state"] for record in records)
    run = None if best is None else str(work.ledger.policy_place(best["number"]))
    return {
        **_head(stage.asked),
        "seed": stage.asked.config.seed,
        "trials": stage.asked.trials,
        **{state: counts[state] for state in ("complete", "pruned", "missed", "failed")},
        "env_steps": sum(record.get("env_steps", 0) for record in records),
        "best": None if best is None else {**best, "run": run},
        "config": None if path is None else str(path),
        "at_once": stage.at_once.to_json(),
        "wall_s": seconds,
        "status": status,
        **more,
    }


# --- the command ---


def report(found: Found, as_json: bool) -> int:
    """Print what it came to."""
    figures = found.figures
    if as_json:
        print(to_json({**figures, "folder": str(found.folder)}))
        return 0
    counts = ", ".join(
        f"{figures[state]} {state}" for state in ("complete", "pruned", "missed", "failed") if figures[state]
    )
    print(f"{figures['algo']} {figures['env']}: {counts or 'no trial'}; {figures['wall_s']:.1f} s")
    best = figures["best"]
    if best is None:
        print("  no trial came to its end: there is no best")
    else:
        params = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in best["params"].items())
        print(f"  best    trial {best['number']}: {figures['metric']} {best['value']:g} with {params}")
        print(f"  config  {figures['config']}: podium train --config {figures['config']}")
        print(f"  policy  {best['run']}")
    for path in figures.get("plots", []):
        print(f"  plot    {path}")
    return 0


def print_plan(found: Mapping[str, Any], as_json: bool) -> int:
    """Print how many trials would run at once."""
    if as_json:
        print(to_json(found))
        return 0
    at_once = found["at_once"]
    print(f"{found['algo']} {found['env']}: engine {found['engine']}, {found['scheduler']}")
    print(f"  looks    every {found['every']:,} of {found['steps']:,} env steps")
    print(f"  at once  {at_once['value']}: {at_once['reason']}")
    return 0


def tune_command(words: Mapping[str, Any], settings: Mapping[str, Any], as_json: bool, only_plan: bool) -> int:
    """`podium tune`, with its words and the settings of its trials; `plan` says how many would run at once."""
    with json_alone() if as_json else for_people():
        load(words["algo"])
        check_known(words["algo"], settings, [flag(name) for name in (*TuneRequest.__dataclass_fields__, "plan")])
        if only_plan:
            kept = {name: value for name, value in words.items() if name not in ("out", "overwrite", "progress")}
            planned = plan(**kept, **settings)
        else:
            found = tune(**words, **settings)
    return print_plan(planned, as_json) if only_plan else report(found, as_json)


def resume_command(folder: str, trials: int | None, storage: str | None, as_json: bool, quiet: bool) -> int:
    """Go on with a search."""
    with json_alone() if as_json else for_people():
        load()
        before = RunFolder.open(folder).read_result()
        found = resume(folder, trials, storage=storage, progress=not quiet)
        if found.figures == before:
            how = "" if before["scheduler"] == "population" else ": add --trials N to go on"
            print(f"{folder} is finished{how}", file=sys.stderr)
    return report(found, as_json)
