"""The documentation holds: its links, its code, its commands, its tables of settings and keys, its examples."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

from podium import algorithms, api, cli, runs
from podium.algorithms.common.base import OPTIMIZERS
from podium.bench.command import BENCHMARKS
from podium.core.config import flag
from podium.core.errors import UsageError
from podium.envs.toys import TOYS
from podium.tuning import command, request
from podium.tuning.request import TuneRequest

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("*.md")])
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
SOURCE = re.compile(r"(?<![\w/.-])(?:podium|tests|docs|examples|benchmarks)/[\w/.-]*\w\.(?:py|toml|md)\b")
ALGORITHMS = (
    "ppo",
    "a2c",
    "pg",
    "a3c",
    "impala",
    "appo",
    "dqn",
    "apex",
    "r2d2",
    "sac",
    "td3",
    "ddpg",
    "es",
    "ars",
    "cem",
)


def blocks(page: Path, *languages: str) -> list[str]:
    return [body for language, body in FENCED.findall(page.read_text()) if language in languages]


def shell_lines(block: str) -> Iterator[str]:
    """The commands of a block, with continued lines joined and without comments."""
    for line in block.replace("\\\n", " ").splitlines():
        if words := shlex.split(line, comments=True):
            yield shlex.join(words)


def commands(page: Path) -> list[str]:
    return [line for block in blocks(page, "sh") for line in shell_lines(block) if line.startswith("podium ")]


def own_files(page: Path) -> dict[str, str]:
    """The python blocks that begin with a comment of their file's name."""
    named = [(re.match(r"# (\w+)\.py\n", body), body) for body in blocks(page, "python")]
    return {found[1]: body for found, body in named if found}


def slugs(page: Path) -> set[str]:
    """What an anchor may be: headings in small letters, spaces as dashes."""
    headings = re.findall(r"^#+ (.+)$", FENCED.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(page: Path) -> list[str]:
    broken = []
    for target in LINK.findall(FENCED.sub("", page.read_text())):
        path, _, anchor = target.partition("#")
        file = (page.parent / path) if path else page
        if "://" not in target and not (file.exists() and (not anchor or anchor in slugs(file))):
            broken.append(target)
    return broken


def table_rows(page: str) -> Iterator[list[str]]:
    """The cells of every table's rows."""
    for line in (ROOT / "docs" / page).read_text().splitlines():
        if line.startswith("|") and not line.startswith("| ---"):
            yield [cell.strip() for cell in line.strip("|").split("|")]


def named_in(page: str) -> set[str]:
    """Every word that stands in backticks."""
    return {
        word for quoted in re.findall(r"`([^`\n]+)`", (ROOT / "docs" / page).read_text()) for word in quoted.split()
    }


class Parsed(Exception):
    """A command's words were understood."""


class Stopping(cli.Parser):
    """Understands a command's words, and stops before anything is done with them."""

    seen: set[str]

    def parse_known_args(self, *args: Any, **how: Any) -> Any:
        type(self).seen = {option for action in self._actions for option in action.option_strings}
        return super().parse_known_args(*args, **how)

    def parse_args(self, *args: Any, **how: Any) -> NoReturn:
        super().parse_args(*args, **how)
        raise Parsed


@pytest.fixture
def understand(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that raises what is wrong with a command line, and runs nothing."""

    def stop(train: runs.TrainRequest, *_: Any) -> NoReturn:
        if train.algo is not None and train.env is not None:
            algorithm = algorithms.get(train.algo)
            algorithm.configure(train.preset, train.settings)
        raise Parsed

    def stop_search(asked: dict[str, Any], settings: dict[str, Any], *_: Any) -> NoReturn:
        own = {name: asked[name] for name in asked.keys() & TuneRequest.__dataclass_fields__}
        request.asked(asked["algo"], asked["env"], TuneRequest(**own), asked["preset"], settings)
        raise Parsed

    monkeypatch.setattr(cli, "Parser", Stopping)
    monkeypatch.setattr(runs, "train_command", stop)
    monkeypatch.setattr(runs, "plan_command", stop)
    monkeypatch.setattr(command, "tune_command", stop_search)

    def check(line: str) -> None:
        _, *words = shlex.split(line)
        if "--help" in words:
            assert cli._dispatch(words) == 0
            return
        with pytest.raises(Parsed):
            cli._dispatch(words)

    return check


@pytest.fixture
def beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder with the files that the pages tell the reader to write."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    for page in PAGES:
        for name, body in own_files(page).items():
            (tmp_path / f"{name}.py").write_text(body)
            monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


def own_code_commands() -> list[str]:
    names = {name for page in PAGES for name in own_files(page)}
    lines = [line for page in PAGES for line in commands(page) if "--help" not in line]
    return [line for line in lines if any(f"{name}:" in line for name in names)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_resolve(page: Path) -> None:
    assert broken_links(page) == []


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# One heading\n[a](#one-heading) [b](#other) [c](page.md#one-heading) [d](none.md) [e](https://x.example)"
    )
    assert broken_links(page) == ["#other", "none.md"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_named_files_exist(page: Path) -> None:
    assert [name for name in SOURCE.findall(page.read_text()) if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_blocks_compile(page: Path) -> None:
    for body in blocks(page, "python"):
        ast.parse(body)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_are_understood(page: Path, understand: Any, beside: Path) -> None:
    for line in commands(page):
        understand(line)


def test_pages_show_commands() -> None:
    shown = [line for page in PAGES for line in commands(page)]
    assert {line.split()[1] for line in shown} == set(cli.COMMANDS)


@pytest.mark.parametrize(
    "line",
    [
        "podium train ppo CartPole-v1 --clipp 0.1",
        "podium train ppo CartPole-v1 --clip high",
        "podium train ppo CartPole-v1 --preset none-such",
        "podium tune ppo CartPole-v1 --search clipp=0.1,0.2",
        "podium trian ppo CartPole-v1",
        "podium evaluate runs/a --episode 3",
        "podium bench sampling --round 3",
    ],
)
def test_a_wrong_command_is_found(line: str, understand: Any) -> None:
    with pytest.raises(UsageError):
        understand(line)


def test_every_flag_is_documented(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "Parser", Stopping)
    documented = {
        word for line in (ROOT / "docs/commands.md").read_text().splitlines() for word in re.findall(r"--[\w-]+", line)
    }
    lines = [
        "train --help",
        "plan --help",
        "tune --help",
        "resume x",
        "evaluate x",
        "serve x",
        "plot x",
        "list",
        *(f"bench {name}" for name in BENCHMARKS),
        "verify",
    ]
    for line in lines:
        Stopping.seen = set()
        try:
            cli._dispatch(line.split())
        except Parsed:
            pass
        assert Stopping.seen, line
        assert {option for option in Stopping.seen if option.startswith("--")} <= documented, line


@pytest.mark.parametrize("name", ["train", "resume", "evaluate", "load"])
def test_the_api_is_documented_with_its_parameters(name: str) -> None:
    line = re.search(rf"^\| `podium\.{name}\((.*?)\)`", (ROOT / "docs/commands.md").read_text(), re.MULTILINE)
    assert line is not None
    shown = re.findall(r"\w+", line[1])
    assert shown == list(inspect.signature(getattr(api, name)).parameters)


def test_every_target_of_make_exists() -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    named = {
        target
        for page in PAGES
        for target in re.findall(r"\bmake ([a-z-]+)(?=`|\s+#|$)", page.read_text(), re.MULTILINE)
    }
    assert {"demo", "test"} <= named <= set(targets)


GROUPS = {
    "on-policy": {"ppo", "a2c", "pg", "a3c", "impala", "appo"},
    "values": {"dqn", "apex", "r2d2"},
    "actors": {"sac", "td3", "ddpg"},
    "searches": {"es", "ars", "cem"},
    "all": set(ALGORITHMS),
}
"""What docs/settings.md calls several algorithms."""


def named(words: str) -> set[str]:
    """The algorithms that a cell names, by groups or one by one."""
    return set().union(*(GROUPS.get(word, {word}) for word in words.split(", ")))


def defaults(cell: str, of: set[str]) -> dict[str, str]:
    """`8; 1 actors, dqn`: the value of each algorithm."""
    usual, *others = cell.split("; ")
    found = dict.fromkeys(of, usual)
    for other in others:
        value, words = other.split(" ", 1)
        found |= dict.fromkeys(named(words), value)
    return found


@pytest.mark.parametrize("name", ALGORITHMS)
def test_settings_and_their_defaults_are_documented(name: str) -> None:
    algorithm = algorithms.get(name)
    rows = {cells[0].split()[0].strip("`"): cells for cells in table_rows("settings.md") if cells[0].startswith("`--")}
    fields = {
        flag(field.name): field for field in dataclasses.fields(algorithm.config) if not field.metadata["internal"]
    }
    assert sorted(fields.keys() - rows.keys()) == []
    for word, (_, default, of, *_) in rows.items():
        assert (word in fields) == (name in named(of)), f"{name} and {word}"
        if word not in fields:
            continue
        field, shown = fields[word], defaults(default, named(of))[name]
        if field.default is None:
            assert shown == "none", f"the default of {name} {word}"
        else:
            typed = getattr(algorithm.config.build({field.name: shown}), field.name)
            assert typed == field.default, f"the default of {name} {word}"


def test_the_groups_of_the_settings_are_all_algorithms() -> None:
    assert set(ALGORITHMS) == set(algorithms.names())
    text = (ROOT / "docs/settings.md").read_text().replace("\n", " ")
    for group in GROUPS.keys() - {"all"}:
        words = re.search(rf"`{group}` \(([^)]*)\)", text)
        assert words is not None and set(words[1].split(", ")) == GROUPS[group]


def test_the_optimizers_that_fit_are_documented() -> None:
    shown = {name: cells[1] for cells in table_rows("settings.md") if len(cells) == 2 for name in cells[0].split(", ")}
    for name in ALGORITHMS:
        fitting = set(OPTIMIZERS) - set(algorithms.get(name).refused)
        quoted = {other for other in OPTIMIZERS if f"`{other}`" in shown[name]}
        assert fitting == (set(OPTIMIZERS) - quoted if shown[name].startswith("all") else quoted), name


def test_presets_are_documented() -> None:
    shown = {
        (cells[0], cells[1].strip("`")): cells[2].strip("`") for cells in table_rows("settings.md") if len(cells) == 3
    }
    for name in algorithms.names():
        for preset, chosen in algorithms.get(name).presets.items():
            settings = {key: value for key, value in chosen.items() if key != "origin"}
            assert chosen["origin"]
            _, typed = cli._split_settings(shlex.split(shown[name, preset]))
            build = algorithms.get(name).config.build
            assert build(typed) == build(settings)


def test_toys_are_documented() -> None:
    assert {f"toy:{name}" for name in TOYS} <= named_in("envs.md")


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_keys_of_the_run_folder_are_documented(algo: str, tmp_path: Path) -> None:
    from podium.run.folder import RunFolder

    out = tmp_path / "run"
    words = [
        "train",
        algo,
        "toy:continuous" if algo in ("td3", "ddpg") else "toy:match",
        "--steps",
        "64",
        "--envs",
        "4",
        "--quiet",
        "--out",
        str(out),
    ]
    if "evolution" in algorithms.get(algo).refused:
        words += ["--fragment", "32"]
    assert cli.main([*words, "--eval-every", "32", "--eval-episodes", "2"]) == 0
    folder = RunFolder(out)
    keys = {key for row in folder.read_metrics() for key in row}
    keys |= (folder.read_result() or {}).keys() | {entry.name for entry in out.iterdir()} - {"checkpoints", "tb"}
    manifest = json.loads((out / "checkpoints/latest/manifest.json").read_text())
    keys |= manifest.keys() | manifest["info"].keys() | manifest["parts"].keys()
    text = (ROOT / "docs/run-folder.md").read_text()
    assert sorted(key for key in keys if not re.search(rf"(?<![\w-]){re.escape(key)}\b", text)) == []


@pytest.mark.parametrize("line", own_code_commands())
def test_the_readers_own_code_runs(line: str, beside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = shlex.split(re.sub(r" --(steps|out) \S+", "", line))[1:]
    assert cli.main([*words, "--steps", "300", "--out", "run", "--json", "--quiet"]) == 0
    assert json.loads(capsys.readouterr().out)["env_steps"] >= 300
    if "--model" in words or "ppo_penalty" in line:
        assert cli.main(["evaluate", "run", "--episodes", "2", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["episodes"] == 2


def test_there_is_code_of_the_readers_own() -> None:
    assert {line.split()[2] for line in own_code_commands()} >= {"ppo", "three:ALGORITHM", "ppo_penalty:ALGORITHM"}


def run_python(folder: Path, *arguments: str) -> str:
    """What a process of its own prints."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=env, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def few_steps(source: str) -> str:
    """The same code with every number of thousands, which here are env steps, cut down to one thousand."""
    short, count = re.subn(r"\b\d+_000\b", "1_000", source)
    assert count
    return short


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.stem)
def test_examples_run_and_are_short(example: Path, tmp_path: Path) -> None:
    source = example.read_text()
    assert len([line for line in source.splitlines() if line.strip()]) < 40
    script = tmp_path / example.name
    script.write_text(few_steps(source))
    assert run_python(tmp_path, str(script)).strip()


@pytest.mark.parametrize("page", ["README.md", "docs/extending.md", "docs/serving.md", "docs/tuning.md"])
def test_python_of_a_page_runs(page: str, tmp_path: Path) -> None:
    """The blocks that are no file of their own, in order, with few steps."""
    bodies = [body for body in blocks(ROOT / page, "python") if not re.match(r"# \w+\.py\n", body)]
    script = tmp_path / "page.py"
    script.write_text(few_steps("\n".join(bodies)))
    run_python(tmp_path, str(script))
