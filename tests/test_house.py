"""What holds for the whole house: how files begin, what may be loaded when, and what no tracked file may say."""

from __future__ import annotations

import ast
import fnmatch
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PODIUM = ROOT / "podium"
HEAVY = {"ray", "torch", "gymnasium"}
PICKLES = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "shelve", "marshal", "joblib"}
MAY_PICKLE = ("engine/", "envs/processes.py")
MAY_LOAD_MUCH = {
    "engine/ray.py",
    *(
        f"policies/{name}.py"
        for name in (
            *("acting", "actor_q", "actor_q_networks", "adam", "distributions", "groups", "networks"),
            *("q", "q_networks", "q_sequences", "replayed", "torch", "values"),
        )
    ),
}
REGISTRY = re.compile(r"pypi\.org|pythonhosted\.org|download\.pytorch\.org|anaconda\.org")
MACHINE_PATH = re.compile(r"(?<![\w.}~/-])/(?:work|home|root|opt|mnt|Users)/\w|file:/{3}")


def modules() -> list[Path]:
    """Those that somebody wrote: not the messages that are generated from the protocol."""
    return sorted(path for path in PODIUM.rglob("*.py") if not path.stem.endswith("_pb2"))


def imported_packages(source: str) -> set[str]:
    """The top-level packages that a source imports, wherever in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module)
    return {name.partition(".")[0] for name in names}


def project_texts() -> Iterator[tuple[str, str]]:
    """Each text file of the project by its relative path, without what .gitignore leaves out."""
    lines = (ROOT / ".gitignore").read_text().splitlines()
    ignored = [".git", *(line.rstrip("/") for line in lines if line and not line.startswith("#"))]
    for folder, inside, files in os.walk(ROOT):
        inside[:] = [name for name in inside if not any(fnmatch.fnmatch(name, pattern) for pattern in ignored)]
        for name in files:
            path = Path(folder, name)
            body = path.read_bytes()
            if b"\0" not in body and not any(fnmatch.fnmatch(name, pattern) for pattern in ignored):
                yield path.relative_to(ROOT).as_posix(), body.decode(errors="replace")


def loaded_by(*arguments: str) -> set[str]:
    """The top-level packages that an interpreter loads when it runs with these arguments."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", *arguments], cwd=ROOT, capture_output=True, text=True, check=True
    )
    rows = [line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")]
    return {name.partition(".")[0] for name in rows}


def quickest_of_three(*arguments: str) -> tuple[float, str]:
    """Wall time of a whole interpreter, start included, and what it printed; the best run is the least disturbed one."""
    walls = []
    for _ in range(3):
        begin = time.perf_counter()
        done = subprocess.run([sys.executable, *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
        walls.append(time.perf_counter() - begin)
    return min(walls), done.stdout


def test_every_module_says_its_purpose_in_its_first_line() -> None:
    sources = {path.relative_to(ROOT).as_posix(): path.read_text() for path in modules()}
    assert sources
    assert [name for name, source in sources.items() if source and not re.match(r'"""\S', source)] == []


def test_only_the_engine_and_env_processes_pickle() -> None:
    found = {path.relative_to(PODIUM).as_posix(): imported_packages(path.read_text()) & PICKLES for path in modules()}
    assert {name: kinds for name, kinds in found.items() if kinds and not name.startswith(MAY_PICKLE)} == {}
    assert found["engine/local.py"] == {"pickle"}, "the strict engine pickles: this check would miss what others do"


def test_nothing_loads_a_file_that_can_execute() -> None:
    unsafe = re.compile(r"\btorch\.load\(|allow_pickle\s*=\s*True")
    assert [path.name for path in modules() if unsafe.search(path.read_text())] == []


@pytest.mark.parametrize(
    ("arguments", "absent"),
    [
        (["-c", "import podium"], HEAVY),
        (["-m", "podium.cli", "--help"], HEAVY),
        (["-c", "import podium.optimizers, podium.engine"], {"ray", "torch"}),
    ],
    ids=["import", "help", "rooms"],
)
def test_loads_no_more_than_it_needs(arguments: list[str], absent: set[str]) -> None:
    loaded = loaded_by(*arguments)
    assert "podium" in loaded
    assert not loaded & absent


def test_torch_stays_in_its_own_modules() -> None:
    free = [path for room in ("optimizers", "engine", "policies") for path in sorted((PODIUM / room).rglob("*.py"))]
    names = [
        path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".")
        for path in free
        if path.relative_to(PODIUM).as_posix() not in MAY_LOAD_MUCH
    ]
    assert "torch" not in loaded_by("-c", f"import {', '.join(names)}")


def test_importing_podium_is_quick() -> None:
    seconds, _ = quickest_of_three("-c", "import podium")
    assert seconds < 0.3


def test_help_is_quick() -> None:
    seconds, printed = quickest_of_three("-m", "podium.cli", "--help")
    assert "train" in printed and "resume" in printed
    assert seconds < 2.5


def test_no_file_names_a_registry_or_a_path_of_one_machine() -> None:
    found = [
        f"{name}:{number}: {line.strip()}"
        for name, text in project_texts()
        for number, line in enumerate(text.splitlines(), 1)
        if REGISTRY.search(line) or MACHINE_PATH.search(line)
    ]
    assert found == []


@pytest.mark.parametrize("drive", ["work", "home", "root", "opt"])
def test_a_path_of_one_machine_is_recognised(drive: str) -> None:
    assert MACHINE_PATH.search(f'path = "/{drive}/someone/podium"')
    assert not MACHINE_PATH.search(f"https://host.example/{drive}/page and obs/{drive}/x")
