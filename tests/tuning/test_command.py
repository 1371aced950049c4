"""`podium tune` and `train --config` as they are typed: JSON on stdout alone, the plan, mistakes and missing extras."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from podium.cli import main
from tests.tuning.tools import FLAGS, SEARCH, lines

SEARCHED = [word for text in SEARCH for word in ("--search", text)]


def called(capsys: pytest.CaptureFixture[str], *words: Any) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main([*map(str, words)])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def tune(capsys: pytest.CaptureFixture[str], *words: Any) -> tuple[int, str, str]:
    return called(capsys, "tune", "ppo", "toy:constant", *SEARCHED, *FLAGS, *words)


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("command") / "a"
    words = ["tune", "ppo", "toy:constant", *SEARCHED, *FLAGS, "--trials", "2", "--quiet", "--out", str(folder)]
    assert main(words) == 0
    return folder


def test_json_stands_on_stdout_alone(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, err = tune(capsys, "--trials", 2, "--out", tmp_path / "a", "--json")
    found = json.loads(out)
    assert code == 0 and found["folder"] == str(tmp_path / "a") and found["best"]["params"].keys() == {"lr", "clip"}
    assert found["at_once"] == {**found["at_once"], "value": 1} and "one after the other" in found["at_once"]["reason"]
    assert err.splitlines()[0].startswith("ppo toy:constant: 1 at once: with --engine local")
    assert [line.partition(":")[0] for line in err.splitlines()[1:]] == ["trial 0 complete", "trial 1 complete"]


def test_it_says_what_it_came_to_and_where(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, err = tune(capsys, "--trials", 3, "--out", tmp_path / "a", "--quiet")
    assert (code, err) == (0, "") and "ppo toy:constant: 3 complete" in out
    assert f"podium train --config {tmp_path / 'a' / 'best.json'}" in out and "plots/history.png" in out


def test_the_plan_makes_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, _ = tune(capsys, "--plan", "--json", "--out", tmp_path / "a")
    assert code == 0 and json.loads(out)["at_once"]["value"] == 1 and not (tmp_path / "a").exists()
    code, out, _ = tune(capsys, "--plan")
    assert code == 0 and "at once  1: with --engine local trials run one after the other" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--schedular", "median"], "unknown setting --schedular; did you mean '--scheduler'?"),
        (["--gama", "0.9"], "unknown setting --gama; did you mean '--gamma'?"),
        (["--trials", "many"], "--trials: 'many', expected a whole number"),
        (["--trials", "0"], "--trials is 0, expected at least 1"),
        (["--search", "lr=1:2"], "--search lr is given twice"),
        (["--preset", "none-such"], "ppo has no preset 'none-such'"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, words: list[str], said: str
) -> None:
    code, out, err = tune(capsys, "--out", tmp_path / "a", *words)
    assert (code, out) == (2, "") and err.count("\n") == 1 and said in err, err
    assert not (tmp_path / "a").exists()


def test_words_that_are_missing(capsys: pytest.CaptureFixture[str]) -> None:
    assert "expected `podium tune ALGO ENV" in called(capsys, "tune", "ppo")[2]
    assert "nothing to search" in called(capsys, "tune", "ppo", "CartPole-v1")[2]
    assert called(capsys, "tune", "--help")[1].startswith("podium tune ALGO ENV")


@pytest.mark.parametrize(("package", "more"), [("optuna", []), ("cmaes", ["--sampler", "cmaes"])])
def test_a_missing_extra_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, package: str, more: list[str]
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    code, _, err = tune(capsys, *more)
    assert code == 2 and err == "podium: podium tune needs an extra that is not installed: pip install 'podium[tune]'\n"


def test_resume_knows_a_search_from_a_run(capsys: pytest.CaptureFixture[str], searched: Path, tmp_path: Path) -> None:
    code, out, err = called(capsys, "resume", searched, "--json")
    assert code == 0 and json.loads(out)["trials"] == 2 and err == f"{searched} is finished: add --trials N to go on\n"
    for flag in ("--steps", "--wandb"):
        code, _, err = called(capsys, "resume", searched, flag, 5)
        assert code == 2 and f"{flag} would not be read: {searched} holds a search" in err
    code, _, err = called(capsys, "resume", searched / "trials" / "0000", "--trials", 5)
    assert code == 2 and "--trials would not be read" in err
    code, _, err = called(capsys, "evaluate", searched)
    assert code == 2 and f"holds a search, whose runs are in {searched / 'trials'}" in err
    assert called(capsys, "evaluate", searched / "trials" / "0001", "--episodes", 2)[0] == 0
    assert (
        called(capsys, "plot", searched / "trials" / "0000", searched / "trials" / "0001", "--out", tmp_path / "p.png")[
            0
        ]
        == 0
    )
    code, out, _ = called(capsys, "list", "runs", "--root", searched.parent)
    assert code == 0 and "trials/0001" in out


def test_a_file_of_settings_is_under_those_that_are_given(
    capsys: pytest.CaptureFixture[str], searched: Path, tmp_path: Path
) -> None:
    best = searched / "best.json"
    words = ["train", "--config", best, "--quiet", "--json", "--clip", 0.15, "--out", tmp_path / "a"]
    assert called(capsys, *words)[0] == 0
    config = json.loads((tmp_path / "a" / "config.json").read_text())
    stored = json.loads(best.read_text())
    assert config["clip"] == 0.15 and config["lr"] == stored["lr"] and config["env_args"] == {"length": 5}
    code, out, _ = called(capsys, "plan", "--config", searched / "trials" / "0000" / "config.json", "--json")
    assert code == 0 and json.loads(out)["env"] == "toy:constant", "a run's config.json is such a file too"
    assert called(capsys, "train", "--config", best, "--seeds", "1,2", "--quiet", "--out", tmp_path / "b")[0] == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"lrr": 1}', "unknown setting --lrr; did you mean '--lr'?"),
        ('{"lr": 50}', "--lr is '50', expected a number from 0 to 10"),
        ("[1]", "is no JSON object of settings"),
        ("{", "is no JSON object of settings"),
        (None, "No such file"),
    ],
)
def test_a_wrong_file_of_settings_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str | None, said: str
) -> None:
    file = tmp_path / "c.json"
    if text is not None:
        file.write_text(text)
    code, _, err = called(capsys, "train", "ppo", "CartPole-v1", "--config", file, "--out", tmp_path / "a")
    assert code == 2 and err.startswith(f"podium: --config {file}") and said in err and not (tmp_path / "a").exists()
    assert not lines(tmp_path / "a")
