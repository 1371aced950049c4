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
        later = [torch.nn.Linear(out_features, out_features) for _ in range(nlayers)]
        self.model = torch.nn.Sequential(torch.nn.Flatten(1), torch.nn.Linear(inputs, out_features), *later)

    def probabilities(self, states: np.ndarray) -> torch.Tensor:
        """Of each action, in each row."""
        rows = states if states.flags.writeable else states.copy()
        return torch.softmax(self.model(torch.from_numpy(rows)), dim=1)

    def act(self, columns: Columns) -> Columns:
        with torch.inference_mode():
            drawn = torch.multinomial(self.probabilities(columns["obs"]), 1)
        return {"action": drawn[:, 0].numpy()}
