"""MinAtar's games: the same as the package's own loop, their state, their names."""

from __future__ import annotations

import numpy as np
import pytest

from podium.core.errors import UsageError
from podium.core.spaces import Discrete
from podium.envs.check import check
from podium.envs.make import EnvSpec, make
from podium.envs.minatar import GAMES
from podium.envs.names import known


@pytest.mark.parametrize("game", GAMES)
def test_against_the_packages_own_loop(game: str) -> None:
    from minatar import Environment

    env = make(EnvSpec(f"minatar:{game}", {"full_actions": True}), 1)
    reference = Environment(GAMES[game], sticky_action_prob=0.1)
    reference.seed(3)
    reference.reset()
    rng, ended = np.random.default_rng(1), 0
    obs = env.reset([3])["obs"]
    for action in rng.integers(6, size=600):
        np.testing.assert_array_equal(obs[0], 255 * reference.state().transpose(2, 0, 1).astype(np.uint8))
        stepped = env.step(np.array([action]))
        reward, over = reference.act(int(action))
        assert stepped.reward[0] == reward and stepped.terminated[0] == over
        if over:
            assert stepped.finals is not None
            np.testing.assert_array_equal(stepped.finals["obs"][0] > 0, reference.state().transpose(2, 0, 1))
            reference.reset()
            ended += 1
        obs = stepped.obs["obs"]
    assert ended or game == "Freeway"


@pytest.mark.parametrize("game", GAMES)
def test_a_game_gives_and_takes_its_state(game: str) -> None:
    env, other = (make(EnvSpec(f"minatar:{game}", time_limit=50), 2) for _ in range(2))
    rng = np.random.default_rng(2)
    env.reset([1, 2])
    rows = rng.integers(env.action_space.n, size=(240, 2))  # type: ignore[union-attr]
    for row in rows[:120]:
        env.step(row)
    state = env.get_state()
    assert state is not None
    before = [env.step(row)._replace(obs={}, finals=None) for row in rows[120:]]
    other.reset([8, 9])
    other.set_state(state)
    after = [other.step(row)._replace(obs={}, finals=None) for row in rows[120:]]
    for one, two in zip(before, after, strict=True):
        for left, right in zip(one[1:4], two[1:4], strict=True):
            np.testing.assert_array_equal(left, right)


def test_names_actions_and_pictures() -> None:
    assert known()["minatar"] == [f"minatar:{game}" for game in GAMES]
    check(EnvSpec("minatar:Breakout"))
    env = make(EnvSpec("minatar:Breakout"), 1, render=True)
    assert env.action_space == Discrete(3) and env.observation_space.shape == (4, 10, 10)
    env.reset([0])
    assert env.render().shape == (160, 160, 3) and len(np.unique(env.render())) > 2
    for spec, message in [
        (EnvSpec("minatar:Brekout"), "unknown env 'minatar:Brekout'; did you mean 'Breakout'?"),
        (EnvSpec("minatar:Breakout", {"stick": 0.2}), "minatar:Breakout has no argument 'stick'"),
        (EnvSpec("minatar:Breakout", {"sticky": -1}), "sticky is -1, expected a number from 0 to 1"),
    ]:
        with pytest.raises(UsageError, match=message.replace("?", r"\?")):
            make(spec, 1)
