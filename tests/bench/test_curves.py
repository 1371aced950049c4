"""`podium bench curves`: both libraries learn with the same settings, and finished runs are taken as they are."""

from __future__ import annotations

import json
from pathlib import Path

import gymnasium
import pytest

from podium import algorithms
from podium.bench.peers_replay import make_peer
from podium.cli import main
from podium.core.errors import UsageError
from podium.run.folder import RunFolder

WORDS = ("bench", "curves", "--env", "CartPole-v1", "--steps", "600", "--every", "200", "--seeds", "1", "--json")


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_both_are_evaluated_on_the_way_and_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(list(WORDS)) == 0
    report = json.loads(capsys.readouterr().out)
    ends = {row["contender"]: row["median"] for row in report["rows"]}
    runs = {name: RunFolder(Path(f"bench-curves/{name}-dqn-CartPole-v1-1")) for name in ("podium", "sb3")}
    for name, folder in runs.items():
        rows = [row for row in folder.read_metrics() if row.get("eval_return_mean") is not None]
        assert len(rows) == 3 and rows[-1]["env_steps"] >= 600 and min(row["env_steps"] for row in rows) >= 200
        within = [row["eval_return_mean"] for row in rows if row["env_steps"] <= 600]
        assert ends[name] == within[-1] >= 1.0
    assert any("sb3's seeds lie from" in note for note in report["notes"])
    assert Path("bench-curves/dqn-CartPole-v1.png").stat().st_size > 0
    before = runs["sb3"].metrics.stat().st_mtime_ns
    assert main(list(WORDS)) == 0
    assert runs["sb3"].metrics.stat().st_mtime_ns == before


def test_the_peer_gets_the_settings_of_the_run() -> None:
    config = algorithms.get("dqn").configure("minatar", {"seed": 3})
    model = make_peer("dqn", config, gymnasium.make("CartPole-v1"))
    assert model.learning_rate == 2.5e-4 and model.buffer_size == 100_000 and model.batch_size == 32
    assert (model.train_freq.frequency, model.gradient_steps, model.target_update_interval) == (4, 1, 1000)
    assert (model.exploration_initial_eps, model.exploration_final_eps, model.exploration_fraction) == (1.0, 0.1, 0.1)
    assert [layer.out_features for layer in model.q_net.q_net if hasattr(layer, "out_features")] == [128, 2]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [({"double": True}, "double is True"), ({"n_step": 3}, "n_step is 3"), ({"lr": "1e-3->0"}, "lr is 0.001->0")],
)
def test_what_the_peer_has_no_word_for_is_refused(settings: dict[str, object], expected: str) -> None:
    config = algorithms.get("dqn").configure(None, settings)
    with pytest.raises(UsageError, match=expected):
        make_peer("dqn", config, gymnasium.make("CartPole-v1"))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--contenders", "podium,sb4"), "did you mean 'sb3'?"),
        (("--algo", "ppo"), "--algo ppo has no peer, expected one of dqn"),
        (("--algo", "dqn", "--preset", "rainbow"), "double is True, which sb3 has no word for"),
    ],
)
def test_what_can_t_be_held_beside_is_said_before_anything_runs(
    words: tuple[str, ...], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*WORDS, *words]) == 2
    assert expected in capsys.readouterr().err and not Path("bench-curves").exists()
