"""Train on an env of your own: any gymnasium.Env, here one that gives its state, so that a run resumes exactly."""

from __future__ import annotations

import gymnasium
import numpy as np
from gymnasium import spaces

import podium


class Fetch(gymnasium.Env):
    """Walk along a line from -1 to 1 to where a ball lies."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(3)  # left, stay, right

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.place = self.np_random.uniform(-1, 1, 2).astype(np.float32)  # where I am, where the ball is
        return self.place.copy(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.place[0] = np.clip(self.place[0] + 0.1 * (int(action) - 1), -1, 1)
        found = abs(self.place[0] - self.place[1]) < 0.1
        return self.place.copy(), float(found) - 0.05, bool(found), False, {}

    def get_state(self) -> dict:
        return {"place": self.place}

    def set_state(self, state: dict) -> None:
        self.place = state["place"]


if __name__ == "__main__":
    result = podium.train("ppo", Fetch, steps=40_000, time_limit=100)
    print(f"return {result['return_mean']:.2f}; at -0.5, ball at 0.5: action {result.policy.predict([-0.5, 0.5])}")
