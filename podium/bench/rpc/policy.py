"""The policy that the benchmark asks: a few linear layers whose weights mean nothing."""

from __future__ import annotations

import numpy as np
import torch

from podium.core.spaces import Columns


class DummyPolicy:
    """Flatten, `nlayers + 1` linear layers, softmax over the actions of each row; an action is drawn by it."""

    def __init__(self, inputs: int, nlayers: int, out_features: int, seed: int) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(seed)
        widths = [inputs] + [out_features] * nlayers
        layers = [torch.nn.Linear(width, out_features) for width in widths]
        self.layers = [(layer.weight.detach(), layer.bias.detach()) for layer in layers]

    def probabilities(self, states: np.ndarray) -> torch.Tensor:
        """Of each action, in each row."""
        rows = torch.from_numpy(states if states.flags.writeable else states.copy()).flatten(1)
        for weight, bias in self.layers:
            rows = torch.nn.functional.linear(rows, weight, bias)
        return torch.softmax(rows, dim=1)

    def act(self, columns: Columns) -> Columns:
        """The first of several clocks that tick as fast as an action is likely: a draw without `multinomial`'s checks."""
        with torch.inference_mode():
            likely = self.probabilities(columns["obs"])
            drawn = (likely / torch.empty_like(likely).exponential_()).argmax(1)
        return {"action": drawn.numpy()}
