"""The commands about runs: what each prints, and where the API is called with what was typed."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from podium.core.errors import ConfigError, PodiumError, UsageError, did_you_mean
from podium.run.folder import RunFolder, default_path, to_json


@dataclass
class TrainRequest:
    """What `podium train` was asked for; `flags` are those that are no settings of the algorithm,
    `in_file` is what the file `config` has of them."""

    algo: str | None
    env: str | None
    settings: dict[str, Any] = field(default_factory=dict)
    env_args: dict[str, Any] = field(default_factory=dict)
    out: str | None = None
    overwrite: bool = False
    preset: str | None = None
    start_from: str | None = None
    seeds: list[int] | None = None
    wandb: str | None = None
    quiet: bool = False
    flags: Sequence[str] = ()
    config: str | None = None
    in_file: dict[str, Any] = field(default_factory=dict)


@contextlib.contextmanager
def json_alone() -> Iterator[None]:
    """While it lasts, what envs and libraries print goes to stderr, so that stdout holds the JSON alone."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def for_people() -> contextlib.AbstractContextManager[None]:
    """While it lasts, anything may print."""
    return contextlib.nullcontext()


def train_command(request: TrainRequest, as_json: bool) -> int:
    """Train once, or once for each seed into a folder of its own."""
    if request.config is not None:
        _read_config(request)
    if request.start_from is not None:
        _inherit(request)
    if request.algo is None or request.env is None:
        raise UsageError("expected `podium train ALGO ENV`, such as `podium train ppo CartPole-v1`")
    with json_alone() if as_json else for_people():
        load(request.algo)
        _configure(request)
        check_known(request.algo, request.settings, request.flags)
        runs = [_train_one(request, request.out, request.settings)] if request.seeds is None else _train_seeds(request)
    return _report(runs, as_json, many=request.seeds is not None)


def plan_command(request: TrainRequest, as_json: bool) -> int:
    """Print what training would be."""
    if request.config is not None:
        _read_config(request)
    if request.algo is None or request.env is None:
        raise UsageError("expected `podium plan ALGO ENV`, such as `podium plan ppo CartPole-v1`")
    with json_alone() if as_json else for_people():
        load(request.algo)
        _configure(request)
        check_known(request.algo, request.settings, request.flags)
        from podium import api
        from podium.planning.page import lines

        found = api.plan(
            request.algo, request.env, preset=request.preset, env_args=request.env_args, **request.settings
        )
    for warning in found["warnings"]:
        print(f"podium: warning: {warning}", file=sys.stderr)
    print(to_json(found) if as_json else "\n".join(lines(found)))
    return 0


def _train_seeds(request: TrainRequest) -> list[dict[str, Any]]:
    """A run for each seed, once it is known that every folder is free."""
    assert request.algo is not None and request.env is not None and request.seeds is not None
    if "seed" in request.settings:
        raise UsageError("--seed and --seeds can't go together")
    root = Path(request.out) if request.out else default_path(request.algo, request.env, request.seeds[0])
    folders = {seed: root / f"seed-{seed}" for seed in request.seeds}
    for folder in folders.values():
        RunFolder(folder).check_free(request.overwrite)
    runs = [_train_one(request, str(path), {**request.settings, "seed": seed}) for seed, path in folders.items()]
    _draw(list(folders.values()), root / "plot.png")
    return runs


def load(algo: str | None = None) -> None:
    """Import what a run needs, once it is known that there is such an algorithm."""
    from podium.run.signals import held_back

    with held_back():
        if algo is not None and ":" not in algo:
            from podium import algorithms

            algorithms.get(algo)
        import podium.driver
        import podium.policies.torch  # noqa: F401


def check_known(algo: str, settings: Mapping[str, Any], flags: Sequence[str]) -> None:
    """Refuse what is neither a setting of the algorithm nor a flag of the command, with the nearest of both."""
    from podium import algorithms
    from podium.core.config import flag

    fields = dataclasses.fields(algorithms.get(algo).config)
    known = [flag(field.name) for field in fields if not field.metadata["internal"]]
    for name in map(flag, settings):
        if name not in known:
            raise ConfigError(f"unknown setting {name}{did_you_mean(name, [*known, *flags])}")


OTHERS = ("algo", "env", "from", "search", "preset")
"""What a config.json has beside settings."""


def _read_config(request: TrainRequest) -> None:
    """Take ALGO and ENV from the file where they were not given."""
    assert request.config is not None
    try:
        found = json.loads(Path(request.config).read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"--config {request.config}: {error.strerror}") from None
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise UsageError(f"--config {request.config} is no JSON object of settings")
    request.algo, request.env = request.algo or found.get("algo"), request.env or found.get("env")
    request.in_file = {name: value for name, value in found.items() if name not in OTHERS}


def _configure(request: TrainRequest) -> None:
    """Put the file's settings, checked as flags are, under those that are given."""
    if not request.in_file:
        return
    from podium import algorithms

    assert request.algo is not None
    env_args = request.in_file.pop("env_args", {})
    try:
        check_known(request.algo, request.in_file, ())
        algorithms.get(request.algo).configure(None, request.in_file)
    except ConfigError as error:
        raise ConfigError(f"--config {request.config}: {error}") from None
    if request.seeds is not None:
        request.in_file.pop("seed", None)
    request.settings = {**request.in_file, **request.settings}
    request.env_args = {**env_args, **request.env_args}


def _inherit(request: TrainRequest) -> None:
    """Take what was not given from the run to start from."""
    assert request.start_from is not None
    from podium import api

    config = RunFolder.open(api.local(request.start_from)).config
    algo, env = config.pop("algo"), config.pop("env")
    config.pop("from", None)
    if request.algo in (None, algo) and request.env in (None, env):
        if request.preset is not None:
            raise UsageError(f"--preset and --from can't go together: the settings are those of {request.start_from}")
        env_args, _ = config.pop("env_args", {}), config.pop("preset", None)
        request.settings = {**config, **request.settings}
        request.env_args = {**env_args, **request.env_args}
        if request.seeds is not None:
            request.settings.pop("seed", None)
    request.algo, request.env = request.algo or algo, request.env or env


def _train_one(request: TrainRequest, out: str | None, settings: Mapping[str, Any]) -> dict[str, Any]:
    from podium import api
    from podium.run.callbacks import WandB

    assert request.algo is not None
    result = api.train(
        request.algo,
        request.env,
        out=out,
        overwrite=request.overwrite,
        preset=request.preset,
        env_args=request.env_args,
        start_from=request.start_from,
        callbacks=[WandB(request.wandb)] if request.wandb else [],
        progress=not request.quiet,
        **settings,
    )
    return _with_plot(result.folder, result.figures, result.address)


def _with_plot(folder: Path, figures: Mapping[str, Any], address: str | None) -> dict[str, Any]:
    plot = _draw([folder], folder / "plot.png")
    if plot is not None and address is not None:
        from podium.run import remote

        plot = remote.put(Path(plot), address)
    return {**figures, "folder": address or str(folder), "plot": plot}


def _draw(folders: list[Path], out: Path) -> str | None:
    """The plot's path, or None where a run ended before its first episode did."""
    from podium.run.plot import plot_runs

    try:
        return str(plot_runs(folders, out))
    except PodiumError as error:
        print(f"podium: no plot: {error}", file=sys.stderr)
        return None


def _report(runs: list[dict[str, Any]], as_json: bool, many: bool) -> int:
    if as_json:
        print(to_json(runs if many else runs[0]))
        return 0
    for run in runs:
        mean = "no episode ended" if run["return_mean"] is None else f"return {run['return_mean']:.1f}"
        print(
            f"{run['algo']} {run['env']} seed {run['seed']}: {mean} (last 100 episodes) after {run['env_steps']:,} steps, "
            f"{run['episodes']:,} episodes, {run['wall_s']:.1f} s, {run['steps_per_s']:,.0f} steps/s; "
            f"stopped by {run['stopped_by']}"
        )
        print(f"  run   {run['folder']}")
        if run["plot"]:
            print(f"  plot  {run['plot']}")
    return 0


def is_search(folder: str) -> bool:
    """Whether a folder holds a search, and not a single run."""
    from podium.run import remote

    return not remote.is_remote(folder) and "search" in RunFolder.open(folder).config


def resume_command(own: argparse.Namespace) -> int:
    """Go on with a run; one that is finished says so."""
    load()
    from podium import api
    from podium.run.callbacks import WandB

    with json_alone() if own.json else for_people():
        before = RunFolder.open(api.local(own.dir)).read_result()
        callbacks = [WandB(own.wandb)] if own.wandb else []
        result = api.resume(own.dir, own.steps, callbacks=callbacks, progress=not own.quiet)
        if result.figures == before:
            print(f"{own.dir} is finished: add --steps N to go on", file=sys.stderr)
        figures = _with_plot(result.folder, result.figures, result.address)
    return _report([figures], own.json, many=False)


def evaluate_command(own: argparse.Namespace) -> int:
    """Play with a run's policy and print what it got."""
    load()
    from podium import api

    with json_alone() if own.json else for_people():
        played = api.evaluate(
            own.dir,
            own.episodes,
            checkpoint_name=own.checkpoint,
            stochastic=own.stochastic,
            seed=own.seed,
            video=own.video,
        )
    if own.json:
        print(to_json(played))
        return 0
    print(
        f"{own.dir} {own.checkpoint}: return {played['return_mean']:.2f} +- {played['return_std']:.2f} "
        f"({played['return_min']:.1f} to {played['return_max']:.1f}) over {played['episodes']} episodes "
        f"of {played['length_mean']:.0f} steps"
    )
    if own.video:
        print(f"  video {own.video}")
    return 0


def plot_command(files: list[str], out: str | None, metric: str | None) -> int:
    """Draw and say where."""
    from podium.run import remote
    from podium.run.plot import plot_runs

    places = [remote.fetch(file) if remote.is_remote(file) else Path(file) for file in files]
    print(plot_runs(places, Path(out) if out else None, metric))
    return 0


def list_command(what: str, root: str, as_json: bool) -> int:
    """List algorithms, envs or runs."""
    rows = {"algorithms": _algorithm_rows, "envs": _env_rows, "runs": lambda: _run_rows(Path(root))}[what]()
    if as_json:
        print(json.dumps(rows))
    elif rows:
        from podium.run.table import table

        table(rows, list(rows[0]))
    else:
        print(f"no {what} in {root}")
    return 0


def _algorithm_rows() -> list[dict[str, Any]]:
    import importlib

    from podium import algorithms

    docs = {name: importlib.import_module(f"podium.algorithms.{name}").__doc__ or "" for name in algorithms.names()}
    return [{"algorithm": name, "what it is": doc.splitlines()[0]} for name, doc in docs.items()]


def _env_rows() -> list[dict[str, Any]]:
    from podium.envs.names import known

    return [{"env": name, "from": source} for source, names in known().items() for name in names]


def _run_rows(root: Path) -> list[dict[str, Any]]:
    rows = []
    for path in sorted(root.glob("**/config.json")):
        folder = RunFolder(path.parent)
        config, result = folder.config, folder.read_result() or {}
        if "algo" not in config:
            continue
        last = (folder.read_metrics() or [{}])[-1]
        rows.append(
            {
                "run": str(path.parent),
                "algo": config["algo"],
                "env": config["env"],
                "seed": config["seed"],
                "env_steps": last.get("env_steps", 0),
                "return_mean": last.get("return_mean"),
                "status": result.get("status", "unfinished"),
            }
        )
    return rows
