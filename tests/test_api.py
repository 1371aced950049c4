"""The Python API: the command line's words, policies that act on what an env gives, envs of the user's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import podium
from podium.core import checkpoint
from podium.core.errors import ConfigError, UsageError
from podium.run.folder import RunFolder

QUICK: dict[str, Any] = {"steps": 200, "fragment": 16, "epochs": 1, "progress": False}


class Reach(gymnasium.Env):
    """Dict observations, and a push from 2 to 6 and from -1 to 0 that is rewarded as it arrives."""

    observation_space = gymnasium.spaces.Dict(
        {"at": gymnasium.spaces.Box(-1, 1, (2,), np.float32), "gear": gymnasium.spaces.Discrete(3)}
    )
    action_space = gymnasium.spaces.Box(np.array([2, -1], np.float32), np.array([6, 0], np.float32))

    def __init__(self, length: int = 5) -> None:
        self.length = length

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return self.look(), {}

    def step(self, action: np.ndarray) -> Any:
        assert self.action_space.contains(action)
        self.t += 1
        return self.look(), float(action[0]), False, self.t == self.length, {}

    def look(self) -> dict[str, Any]:
        return {"at": np.full(2, self.t / 100, np.float32), "gear": self.t % 3}


class MaskInside(gymnasium.Env):
    """Only the action t % 3 is legal, as the observation says."""

    observation_space = gymnasium.spaces.Dict(
        {"seen": gymnasium.spaces.Box(0, 9, (1,), np.float32), "action_mask": gymnasium.spaces.MultiBinary(3)}
    )
    action_space = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return self.look(), {}

    def step(self, action: int) -> Any:
        assert action == self.t % 3, "an illegal action"
        self.t += 1
        return self.look(), 1.0, self.t == 9, False, {}

    def look(self) -> dict[str, Any]:
        return {"seen": np.array([self.t], np.float32), "action_mask": (np.arange(3) == self.t % 3).astype(np.int8)}


class Counted(gymnasium.Env):
    """Actions 3 to 5, of which 5 pays, and observations 10 to 12."""

    observation_space = gymnasium.spaces.Discrete(3, start=10)
    action_space = gymnasium.spaces.Discrete(3, start=3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return 10, {}

    def step(self, action: int) -> Any:
        assert self.action_space.contains(action)
        self.t += 1
        return 10 + self.t % 3, float(action == 5), self.t == 9, False, {}


def reach(length: int = 5) -> gymnasium.Env:
    return Reach(length)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Small runs of several kinds."""
    root = tmp_path_factory.mktemp("api")
    kinds: dict[str, tuple[Any, dict[str, Any]]] = {
        "cartpole": ("CartPole-v1", {}),
        "recurrent": ("toy:cue", {"memory": "gru", "memory_size": 8}),
        "masked": ("toy:masked", {}),
        "mask inside": (MaskInside, {}),
        "dict": (Reach, {"env_args": {"length": 4}}),
        "stretched": (Reach, {"rescale_actions": True}),
        "counted": (Counted, {"steps": 1500, "epochs": 10, "lr": 0.01}),
    }
    for name, (env, settings) in kinds.items():
        podium.train("ppo", env, out=root / name, **{**QUICK, **settings})
    return {name: root / name for name in kinds}


def test_predict_takes_one_observation_or_rows_of_them(runs: dict[str, Path]) -> None:
    player = podium.load(runs["cartpole"])
    rows = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    actions = player.predict(rows)
    assert actions.shape == (50,) and set(actions.tolist()) == {0, 1}
    assert [int(player.predict(row)) for row in rows] == actions.tolist()
    assert np.ndim(player.predict(rows[0].tolist())) == 0, "a plain list will do"
    assert player.predict(rows.astype(np.float64)).tolist() == actions.tolist()
    assert player.predict(rows).tolist() == actions.tolist(), "it is the likeliest action, each time"
    drawn = [player.predict(rows, stochastic=True).tolist() for _ in range(3)]
    assert drawn[0] != drawn[1] or drawn[1] != drawn[2]


def test_whole_numbers_are_counted_as_the_env_counts_them(runs: dict[str, Path]) -> None:
    player = podium.load(runs["counted"])
    assert [int(player.predict(seen)) for seen in (10, 11, 12)] == [5, 5, 5]
    assert podium.evaluate(runs["counted"], episodes=2)["return_mean"] == 9


def test_a_recurrent_policy_remembers_until_it_is_told_to_forget(runs: dict[str, Path]) -> None:
    player = podium.load(runs["recurrent"])
    cue, blank = np.array([[1, 0, 0], [0, 1, 0]], np.float32), np.zeros((2, 3), np.float32)

    def played() -> np.ndarray:
        player.predict(cue)
        player.predict(blank)
        return np.concatenate([part.ravel() for part in player._state.values()])

    once = played()
    again = played()
    player.reset()
    assert not np.array_equal(once, again), "what came before is remembered"
    assert np.array_equal(played(), once)
    player.predict(blank[0])
    assert all(len(part) == 1 for part in player._state.values()), "another number of rows begins anew"


def test_masks_are_obeyed(runs: dict[str, Path]) -> None:
    player = podium.load(runs["masked"])
    obs = np.random.default_rng(1).random((6, 6)).astype(np.float32)
    assert player.predict(obs, mask=np.eye(6)).tolist() == [0, 1, 2, 3, 4, 5]
    assert player.predict(obs, mask=np.eye(6), stochastic=True).tolist() == [0, 1, 2, 3, 4, 5]
    assert player.predict(obs[0], mask=[False, False, False, True, False, False]) == 3
    with pytest.raises(UsageError, match=r"mask of \(2,\), expected \(6,\)"):
        player.predict(obs[0], mask=[1, 0])
    with pytest.raises(UsageError, match="no legal action"):
        player.predict(obs[0], mask=np.zeros(6))


def test_a_mask_inside_the_observation_is_obeyed(runs: dict[str, Path]) -> None:
    player, env = podium.load(runs["mask inside"]), MaskInside()
    obs, _ = env.reset()
    for _ in range(9):
        obs, *_ = env.step(player.predict(obs))
    assert podium.evaluate(runs["mask inside"], 2, stochastic=True)["return_mean"] == 9


@pytest.mark.parametrize("kind", ["dict", "stretched"])
def test_nested_observations_and_bounded_actions_are_the_envs_own(runs: dict[str, Path], kind: str) -> None:
    player = podium.load(runs[kind])
    env = Reach()
    obs, _ = env.reset()
    for _ in range(3):
        obs, *_ = env.step(player.predict(obs))
    rows = {"at": np.zeros((40, 2), np.float32), "gear": np.arange(40) % 3}
    actions = player.predict(rows, stochastic=True)
    assert actions.shape == (40, 2)
    assert (actions >= env.action_space.low).all() and (actions <= env.action_space.high).all()
    if kind == "stretched":
        assert np.ptp(actions[:, 0]) > 2 and np.ptp(actions[:, 1]) > 0.5, "from 2 to 6, and from -1 to 0"


@pytest.mark.parametrize(
    ("obs", "message"),
    [
        ({"at": np.zeros(2)}, "the observation has no obs/gear, expected Dict"),
        ({"at": np.zeros(3), "gear": 1}, r"obs/at has shape \[3\], expected \[2\] or rows of it"),
        ({"at": np.zeros((4, 2)), "gear": np.zeros(3, int)}, "obs/gear has 3 rows and obs/at has 4"),
        ({"at": np.zeros((4, 2)), "gear": 1}, "obs/gear has 1 rows and obs/at has 4"),
    ],
)
def test_an_observation_of_another_form_is_told(runs: dict[str, Path], obs: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        podium.load(runs["dict"]).predict(obs)


def test_the_result_has_the_figures_and_the_policy(runs: dict[str, Path], tmp_path: Path) -> None:
    result = podium.train("a2c", "CartPole-v1", out=tmp_path / "run", steps=200, progress=False)
    assert result.folder == tmp_path / "run"
    assert result["algo"] == "a2c" and result.figures == RunFolder.open(result.folder).read_result()
    assert result.policy.predict(np.zeros(4)) == podium.load(result.folder).predict(np.zeros(4))


def test_evaluate_says_what_was_played(runs: dict[str, Path]) -> None:
    played = podium.evaluate(runs["cartpole"], 7)
    assert played.keys() == {
        *(
            "return_mean",
            "return_std",
            "return_min",
            "return_max",
            "episodes",
            "length_mean",
            "checkpoint",
            "stochastic",
        )
    }
    assert played["episodes"] == 7 and played["return_mean"] == played["length_mean"], "CartPole pays 1 a step"
    assert played["return_min"] <= played["return_mean"] <= played["return_max"]
    assert podium.evaluate(runs["cartpole"], 7) == played, "the same seeds each time"
    assert podium.evaluate(runs["cartpole"], 7, seed=99) != played
    drawn = podium.evaluate(runs["cartpole"], 7, stochastic=True)
    assert drawn["stochastic"] is True and drawn["return_mean"] != played["return_mean"]
    assert podium.evaluate(runs["dict"], 3)["length_mean"] == 4, "the env's arguments are kept"


@pytest.mark.parametrize("env", [Reach, reach, f"{__name__}:reach", lambda length: Reach(length)])
def test_the_users_own_env_in_any_form(tmp_path: Path, env: Any) -> None:
    folder = tmp_path / "run"
    result = podium.train("ppo", env, out=folder, env_args={"length": 4}, **QUICK)
    assert result["episodes"] == result["env_steps"] // 4
    again = {} if result["env"].count("<") == 0 else {"env": env}
    assert podium.resume(folder, 400, progress=False, **again)["env_steps"] >= 400
    assert podium.evaluate(folder, 2, **again)["length_mean"] == 4
    assert podium.load(folder).predict(Reach().reset()[0]).shape == (2,)


def test_an_env_without_a_name_has_to_be_given_again(tmp_path: Path) -> None:
    podium.train("ppo", lambda: Reach(), out=tmp_path / "run", **QUICK)
    with pytest.raises(UsageError, match="<lambda>"):
        podium.resume(tmp_path / "run", 400)


def test_words_that_are_wrong_are_told_before_anything_is_made(tmp_path: Path) -> None:
    for words, settings, kind, message in (
        (("ppoo", "CartPole-v1"), {}, UsageError, "did you mean 'ppo'"),
        (("ppo", "CartPole-v9"), {}, UsageError, "did you mean 'CartPole-v"),
        (("ppo",), {}, UsageError, "needs an env"),
        (("ppo", "CartPole-v1"), {"gama": 0.9}, ConfigError, "unknown setting --gama; did you mean '--gamma'"),
        (("ppo", "CartPole-v1"), {"gamma": 2}, ConfigError, "--gamma is '2', expected a number from 0 to 1"),
        (("ppo", "CartPole-v1"), {"env_args": {"x": 1}}, UsageError, "has no argument 'x'"),
        (("ppo", Reach), {"env_args": {"lenght": 1}}, UsageError, "did you mean 'length'"),
        (("ppo", "CartPole-v1"), {"preset": "none such"}, UsageError, "no preset"),
        (("ppo", "CartPole-v1"), {"start_from": tmp_path / "no"}, UsageError, "does not exist"),
    ):
        with pytest.raises(kind, match=message):
            podium.train(*words, out=tmp_path / "run", progress=False, **settings)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_holds_a_run_is_not_touched_unless_asked(runs: dict[str, Path], tmp_path: Path) -> None:
    podium.train("ppo", "CartPole-v1", out=tmp_path / "run", **QUICK)
    (tmp_path / "run" / "notes.txt").write_text("mine")
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    with pytest.raises(UsageError, match="already holds a run"):
        podium.train("ppo", "CartPole-v1", out=tmp_path / "run", **QUICK)
    with pytest.raises(ConfigError):
        podium.train("ppo", "CartPole-v1", out=tmp_path / "run", overwrite=True, gamma=2, progress=False)
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before
    podium.train("ppo", "CartPole-v1", out=tmp_path / "run", overwrite=True, **{**QUICK, "seed": 3})
    assert RunFolder.open(tmp_path / "run").config["seed"] == 3
    assert (tmp_path / "run" / "notes.txt").read_text() == "mine"


def test_a_checkpoint_is_chosen_by_name(runs: dict[str, Path]) -> None:
    last = (runs["cartpole"] / "checkpoints" / "latest").resolve().name
    assert podium.load(runs["cartpole"], last).predict(np.zeros(4)) in (0, 1)
    with pytest.raises(UsageError, match=f"no checkpoint 'step-1'; there are: .*{last}"):
        podium.load(runs["cartpole"], "step-1")


def test_weights_of_another_run_are_where_a_new_one_begins(runs: dict[str, Path], tmp_path: Path) -> None:
    """Its counters, its optimizer and its envs are new."""
    frozen = {**QUICK, "lr": 0.0}
    started = podium.train("ppo", "CartPole-v1", out=tmp_path / "started", start_from=runs["cartpole"], **frozen)
    podium.train("ppo", "CartPole-v1", out=tmp_path / "anew", **{**frozen, "seed": 5})
    assert started["resumed_from"] is None and started["updates"] == 2
    assert RunFolder.open(started.folder).config["from"] == str(runs["cartpole"])
    old, new, other = (weights(folder) for folder in (runs["cartpole"], started.folder, tmp_path / "anew"))
    assert all(new[name].tobytes() == old[name].tobytes() for name in old), "with a step size of 0 they stay"
    assert any(other[name].tobytes() != old[name].tobytes() for name in old)
    with pytest.raises(UsageError, match=r"the checkpoint's model has \[2, 4, 64"):
        podium.train("ppo", "CartPole-v1", out=tmp_path / "wrong", start_from=runs["cartpole"], hidden=(32,), **frozen)
    assert not (tmp_path / "wrong").exists()


def weights(folder: Path) -> dict[str, np.ndarray]:
    return checkpoint.load(folder / "checkpoints" / "latest")[0]["policy"]["model"]
