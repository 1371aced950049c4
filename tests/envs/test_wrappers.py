"""Stacked frames over episode ends in both manners, and actions rescaled to -1 to 1."""

from __future__ import annotations

import numpy as np
import pytest

from podium.core.errors import UsageError
from podium.core.spaces import Box, MultiDiscrete
from podium.envs.base import VectorEnv
from podium.envs.make import EnvSpec, make
from podium.envs.wrappers import FrameStack

ACTIONS = np.zeros(2, np.int64)


def stacked(name: str) -> tuple[VectorEnv, list[list]]:
    """Three frames of two numbers each: (episode, t) of the counting env with lengths 2 and 3."""
    env = make(EnvSpec(f"sample_envs:{name}", frame_stack=3), 2)
    return env, env.reset([4, 7])["obs"].tolist()


def test_same_step_stacks_begin_anew_and_ends_keep_their_own_frames() -> None:
    env, first = stacked("Counting")
    assert env.observation_space == Box.of(0, 1000, (6,))
    assert first == [[0, 0] * 3] * 2
    one, two, three = (env.step(ACTIONS) for _ in range(3))
    assert one.finals is None
    assert two.finals is not None and two.finals["obs"].tolist() == [[0, 0, 0, 1, 0, 2]]
    assert three.finals is not None and three.finals["obs"].tolist() == [[0, 1, 0, 2, 0, 3]]
    assert three.obs["obs"].tolist() == [[1, 0, 1, 0, 1, 1], [1, 0, 1, 0, 1, 0]]


def test_next_step_stacks_begin_anew_on_the_reset_row() -> None:
    env, first = stacked("counting_next")
    assert first == [[0, 0] * 3] * 2
    rows = [env.step(ACTIONS).obs["obs"].copy().tolist() for _ in range(4)]
    assert [row[0] for row in rows] == [
        [0, 0, 0, 0, 0, 1],
        [0, 0, 0, 1, 0, 2],
        [1, 0, 1, 0, 1, 0],
        [1, 0, 1, 0, 1, 1],
    ]
    assert rows[3][1] == [1, 0] * 3


def test_images_stack_on_a_new_first_axis() -> None:
    env = make(EnvSpec("sample_envs:Image", frame_stack=2), 1)
    assert env.observation_space == Box.of(0, 255, (2, 2, 3), np.uint8)
    env.reset([0])
    stack = env.step(np.zeros(1, np.int64)).obs["obs"]
    assert stack.shape == (1, 2, 2, 3) and stack[0, :, 0, 0].tolist() == [10, 11]


class Fixed:
    """A vector env that shows the given observations, one after the other."""

    n, masked, autoreset, action_space = 1, False, "same", None

    def __init__(self, *observations: np.ndarray) -> None:
        self.observations = [observation[None] for observation in observations]
        self.observation_space = Box.of(0, 255, observations[0].shape, np.uint8)

    def reset(self, seeds: list[int]) -> dict[str, np.ndarray]:
        return {"obs": self.observations[0]}


@pytest.mark.parametrize(
    ("shape", "expected", "axis"), [((3, 5, 4), (6, 5, 4), 0), ((5, 4, 3), (5, 4, 6), 2), ((1, 5, 5), (2, 5, 5), 0)]
)
def test_channels_stack_where_they_are(shape: tuple[int, ...], expected: tuple[int, ...], axis: int) -> None:
    image = np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)
    env = FrameStack(Fixed(image), 2)  # type: ignore[arg-type]
    stack = env.reset([0])["obs"][0]
    assert env.observation_space.shape == stack.shape == expected
    np.testing.assert_array_equal(stack, np.concatenate([image, image], axis=axis))


def test_whole_numbers_stack_to_several() -> None:
    env = make(EnvSpec("sample_envs:Odd", frame_stack=2), 2)
    assert env.observation_space == MultiDiscrete((5, 5), start=(10, 10))
    env.reset([0, 1])
    assert env.step(np.array([1, 2])).obs["obs"].tolist() == [[0, 1], [0, 2]]


def test_masks_are_not_stacked() -> None:
    env = make(EnvSpec("toy:masked", frame_stack=2), 2)
    obs = env.reset([0])
    assert obs["obs"].shape == (2, 12) and obs["mask"].shape == (2, 6)


def test_rescaled_actions_reach_the_bounds() -> None:
    env = make(EnvSpec("sample_envs:Pushed", rescale_actions=True), 4)
    assert env.action_space == Box.of(-1, 1, (2,))
    env.reset([0, 1, 2, 3])
    actions = np.array([[-1, -1], [1, 1], [0, 0], [9, -9]], np.float32)
    # bounds -2..2 and 0..4; the env rewards 10 * first + second
    assert env.step(actions).reward.tolist() == [-20, 24, 2, 20]


@pytest.mark.parametrize("k", [0, -1])
def test_a_stack_needs_a_frame(k: int) -> None:
    with pytest.raises(UsageError, match=f"a stack of {k} frames, expected at least 1"):
        make(EnvSpec("CartPole-v1", frame_stack=k), 1)
