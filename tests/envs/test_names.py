"""What a name stands for, and the line that each wrong name or argument gets."""

from __future__ import annotations

import functools
import pickle
import subprocess
import sys
from pathlib import Path

import gymnasium
import pytest
from sample_envs import Counting

from podium.core.errors import MissingExtra, UsageError
from podium.core.spaces import Discrete
from podium.envs.envpool import EnvPoolVector
from podium.envs.gym import GymVector
from podium.envs.make import EnvSpec, describe, make, spaces_of
from podium.envs.names import known, note
from podium.envs.sync import SyncVector


@pytest.mark.parametrize(
    ("spec", "kind"),
    [
        (EnvSpec("CartPole-v1"), GymVector),
        (EnvSpec("CartPole-v1", time_limit=9), GymVector),
        (EnvSpec("Pendulum-v1"), SyncVector),
        (EnvSpec("sample_envs:Counting"), SyncVector),
        (EnvSpec("sample_envs:SampleCounting-v0"), SyncVector),
        (EnvSpec("sample_envs:counting_next"), GymVector),
        (EnvSpec(Counting), SyncVector),
        (EnvSpec(functools.partial(gymnasium.make, "Acrobot-v1")), SyncVector),
        (EnvSpec("envpool:CartPole-v1"), EnvPoolVector),
    ],
)
def test_a_name_finds_its_vector(spec: EnvSpec, kind: type) -> None:
    env = make(spec, 2)
    assert type(env) is kind and env.n == 2
    env.close()


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (EnvSpec("CartPol-v1"), "unknown env 'CartPol-v1'; did you mean 'CartPole-v1'?"),
        (EnvSpec("CartPole"), "unknown env 'CartPole'; did you mean 'CartPole-v"),
        (EnvSpec("zzzz"), "unknown env 'zzzz'"),
        (EnvSpec("toy:chian"), "unknown env 'toy:chian'; did you mean 'chain'?"),
        (EnvSpec("envpool:Pendulm-v1"), "unknown env 'envpool:Pendulm-v1'; did you mean 'Pendulum-v1'?"),
        (EnvSpec("no_such_module:make"), "no module 'no_such_module'"),
        (EnvSpec("sample_envs:Countin"), "sample_envs has no 'Countin'; did you mean 'Counting'?"),
        (EnvSpec("sample_envs:np"), "sample_envs:np is a module, expected a function or a class"),
        (EnvSpec("sample_envs:not_an_env"), "sample_envs:not_an_env returned a int, expected a gymnasium.Env"),
        (EnvSpec("Pendulum-v1", {"gg": 3}), "Pendulum-v1 has no argument 'gg'; did you mean 'g'?"),
        (
            EnvSpec("CartPole-v1", {"sutton_reward": True}),
            "no argument 'sutton_reward'; did you mean 'sutton_barto_reward'?",
        ),
        (EnvSpec("HalfCheetah-v5", {"nothing": 1}), "HalfCheetah-v5 has no argument 'nothing'"),
        (EnvSpec("toy:chain", {"lenght": 3}), "toy:chain has no argument 'lenght'; did you mean 'length'?"),
        (EnvSpec("toy:chain", {"num_envs": 3}), "toy:chain has no argument 'num_envs'"),
        (EnvSpec("toy:chain", {"length": 1}), "length is 1, expected a whole number of at least 2"),
        (EnvSpec("toy:chain", {"autoreset": "nxt"}), "autoreset is 'nxt', expected 'same' or 'next'"),
        (EnvSpec("envpool:CartPole-v1", {"foo": 3}), "envpool:CartPole-v1 has no argument 'foo'"),
        (
            EnvSpec("sample_envs:Faulty", {"falt": 3}),
            "sample_envs:Faulty has no argument 'falt'; did you mean 'fault'?",
        ),
        (EnvSpec("toy:chain", time_limit=5), "toy:chain begins its episodes itself"),
        (EnvSpec("toy:chain", processes=2), "toy:chain steps its envs as one vector already"),
        (EnvSpec("Pendulum-v1", time_limit=0), "a time limit of 0 steps, expected at least 1"),
        (EnvSpec("CartPole-v1", rescale_actions=True), "rescaling actions needs a Box of bounded real numbers"),
    ],
)
def test_what_is_wrong_is_named(spec: EnvSpec, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        make(spec, 2)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "package", "forget", "extra"),
    [
        ("envpool:CartPole-v1", "envpool", "envpool", "envpool"),
        ("LunarLander-v3", "Box2D", "gymnasium.envs.box2d", "box2d"),
        ("HalfCheetah-v5", "mujoco", "gymnasium.envs.mujoco", "mujoco"),
        ("ale_py:ALE/Pong-v5", "ale_py", "ale_py", "atari"),
        ("ALE/Pong-v5", "ale_py", "ale_py", "atari"),
        ("atari:Pong", "ale_py", "ale_py", "atari"),
        ("minatar:Breakout", "minatar", "minatar", "minatar"),
    ],
)
def test_a_missing_package_names_its_extra(
    monkeypatch: pytest.MonkeyPatch, name: str, package: str, forget: str, extra: str
) -> None:
    for module in list(sys.modules):
        if module == forget or module.startswith((f"{forget}.", f"{package}.")):
            monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setattr(gymnasium, "registry", {k: v for k, v in gymnasium.registry.items() if "ALE/" not in k})
    with pytest.raises(MissingExtra, match=rf"{name} needs .*podium\[{extra}\]"):
        make(EnvSpec(name), 1)


def test_a_module_in_the_current_directory_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_own_env.py").write_text("import gymnasium\ndef go():\n    return gymnasium.make('Pendulum-v1')\n")
    (tmp_path / "my_broken_env.py").write_text("import surely_not_installed\n")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    assert make(EnvSpec("my_own_env:go"), 1).n == 1
    with pytest.raises(UsageError, match="importing 'my_broken_env' failed: No module named 'surely_not_installed'"):
        make(EnvSpec("my_broken_env:go"), 1)


def test_describe_names_callables() -> None:
    assert describe(EnvSpec("CartPole-v1")) == "CartPole-v1"
    assert describe(EnvSpec(Counting)) == "sample_envs:Counting"
    assert describe(EnvSpec(functools.partial(Counting))) == "sample_envs:Counting"


def test_a_spec_can_be_pickled() -> None:
    for spec in (EnvSpec("CartPole-v1", {"sutton_barto_reward": True}, frame_stack=2), EnvSpec(Counting)):
        assert pickle.loads(pickle.dumps(spec)) == spec


def test_spaces_of_counts_the_wrappers() -> None:
    observation, action = spaces_of(EnvSpec("CartPole-v1", frame_stack=3, processes=4))
    assert observation.shape == (12,) and action == Discrete(2)


@pytest.mark.parametrize(
    ("name", "newer"),
    [
        ("Humanoid-v1", "Humanoid-v5"),
        ("HalfCheetah-v3", "HalfCheetah-v5"),
        ("InvertedPendulum-v2", "InvertedPendulum-v5"),
        ("envpool:Humanoid-v1", "envpool:Humanoid-v5"),
        ("envpool:HalfCheetah-v2", "envpool:HalfCheetah-v5"),
    ],
)
def test_versions_of_mujocos_tasks_that_are_gone_are_made_as_todays(name: str, newer: str) -> None:
    said = note(name)
    assert said is not None and said.startswith(f"{name} is no longer made: {newer} takes its place")
    assert spaces_of(EnvSpec(name)) == spaces_of(EnvSpec(newer))


@pytest.mark.parametrize("name", ["HalfCheetah-v4", "HalfCheetah-v5", "envpool:Ant-v3", "envpool:Reacher-v2"])
def test_versions_that_can_be_made_are_left_alone(name: str) -> None:
    assert note(name) is None
    make(EnvSpec(name), 1).close()


def test_known_names_can_be_made() -> None:
    names = known()
    assert "CartPole-v1" in names["gymnasium"] and "envpool:Pendulum-v1" in names["envpool"]
    for name in names["toy"]:
        make(EnvSpec(name), 1).close()


def test_importing_make_loads_no_framework() -> None:
    code = (
        "import sys, podium.envs.make, podium.envs.check, podium.envs.toys, podium.envs.processes;"
        "print([m for m in ('gymnasium', 'torch', 'ray', 'envpool') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
