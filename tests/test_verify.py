"""`podium verify`: what it says of rows that reach their return or not, and of seeds inside, below and above a band."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from podium import verify
from podium.cli import main

CHAIN = """
[[row]]
name = "{name}"
algo = "ppo"
env = "toy:chain"
within = {within}
seeds = [1, 2]
quick = {quick}
settings = {{ envs = 4, fragment = 16, minibatch = 32, epochs = 4 }}
{rest}
"""


def write(path: Path, *rows: str) -> Path:
    path.write_text("\n".join(rows))
    return path


def row(name: str, rest: str, quick: int = 1, within: int = 512) -> str:
    return CHAIN.format(name=name, rest=rest, quick=quick, within=within)


@pytest.fixture
def known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    banded = 'band = [{}, {}]\nsource = "worked out"'
    rows = (
        row("easy", "reach = -1000", within=4000),
        row("hard", "reach = 1000"),
        row("inside", banded.format(-1000, 1000), quick=0),
        row("over", banded.format(-1000, -999)),
        row("under", banded.format(999, 1000)),
    )
    monkeypatch.setattr(verify, "ROWS", write(tmp_path / "rows.toml", *rows))
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("known")
def test_each_row_gets_its_verdict_and_one_that_falls_short_the_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "easy", "inside", "over", "--json"]) == 0
    found = {one["row"]: one for one in json.loads(capsys.readouterr().out)}
    assert {name: one["verdict"] for name, one in found.items()} == {"easy": "pass", "inside": "pass", "over": "above"}
    assert found["easy"]["reached"] == "2 of 2" and found["inside"]["source"] == "worked out"
    assert len(found["inside"]["runs"]) == 2 and found["inside"]["steps"] == 512
    returns = [run["played_mean"] for run in found["inside"]["runs"]]
    assert found["inside"]["reached"] == f"{sum(returns) / 2:,.1f}"
    assert main(["verify", "hard", "under", "--quick"]) == 1
    out = capsys.readouterr().out
    assert out.count("BELOW") == 2 and "0 of 1" in out


@pytest.mark.usefixtures("known")
def test_quick_leaves_out_what_takes_hours(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "inside", "--quick"]) == 2
    assert "nothing to verify with --quick in inside" in capsys.readouterr().err
    assert main(["verify", "easy", "--seed", "3"]) == 2
    assert "--seed 3 is none of the seeds of easy" in capsys.readouterr().err
    assert main(["verify", "easy", "--seed", "2", "--json"]) == 0
    assert [run["seed"] for run in json.loads(capsys.readouterr().out)[0]["runs"]] == [2]
    assert main(["verify", "insid"]) == 2
    assert "did you mean 'inside'?" in capsys.readouterr().err


def test_a_row_has_either_a_return_or_a_band_with_its_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for rest in ("", "reach = 1\nband = [0, 1]", "band = [0, 1]"):
        monkeypatch.setattr(verify, "ROWS", write(tmp_path / "rows.toml", row("odd", rest)))
        with pytest.raises(ValueError, match="odd: expected either reach, or band and source"):
            verify.rows()


def test_the_shipped_rows_can_be_run() -> None:
    from podium import algorithms

    names = [one.name for one in verify.rows()]
    assert len(set(names)) == len(names)
    for one in verify.rows():
        algorithms.get(one.algo).configure(one.preset, {**one.settings, "steps": one.within})
    assert {one.algo for one in verify.rows()} == set(algorithms.names())


def test_a_preset_s_origin_stands_in_the_run_s_config(tmp_path: Path) -> None:
    from podium import api

    settings = {"steps": 64, "envs": 2, "fragment": 8, "minibatch": 16}
    made = api.train("ppo", "toy:chain", out=tmp_path / "run", preset="memory", progress=False, **settings)
    written = json.loads((made.folder / "config.json").read_text())["preset"]
    assert written["name"] == "memory" and "450 within 500 k steps" in written["origin"]
    assert api.resume(made.folder, steps=128, progress=False)["env_steps"] >= 128
    assert json.loads((made.folder / "config.json").read_text())["preset"] == written
    plain = api.train("ppo", "toy:chain", out=tmp_path / "plain", progress=False, **settings)
    assert json.loads((plain.folder / "config.json").read_text())["preset"] is None
