"""Train with a network of your own: an nn.Module from observations to (action parameters, value)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import podium


class Residual(nn.Module):
    """Blocks with a way around each; one head for the actions, one for the value."""

    def __init__(self, inputs: int, outputs: int, width: int = 64, blocks: int = 2) -> None:
        super().__init__()
        self.enter = nn.Linear(inputs, width)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Tanh(), nn.Linear(width, width)) for _ in range(blocks))
        self.action, self.value = nn.Linear(width, outputs), nn.Linear(width, 1)
        nn.init.orthogonal_(self.action.weight, 0.01)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        x = self.enter(obs)
        for block in self.blocks:
            x = x + block(x)
        x = torch.tanh(x)
        return self.action(x), self.value(x)


def network(space: Any, outputs: int) -> nn.Module:
    return Residual(space.shape[0], outputs)


if __name__ == "__main__":
    result = podium.train("ppo", "CartPole-v1", model=network, steps=150_000, stop_return=475)
    print(f"return {result['return_mean']:.1f} after {result['env_steps']:,} steps, in {result.folder}")
