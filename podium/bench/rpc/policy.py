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
        sizes = [inputs, *[out_features] * (nlayers + 1)]
        layers = [torch.nn.Linear(before, after) for before, after in zip(sizes, sizes[1:], strict=False)]
        # Called past their modules, as `podium/policies/networks.py` does it: at this size the call is the cost.
        self._layers = [(layer.weight.detach().t(), layer.bias.detach()) for layer in layers]
        self._random = np.random.default_rng(seed)

    @torch.inference_mode()
    def probabilities(self, states: np.ndarray) -> torch.Tensor:
        """Of each action, in each row."""
        rows = states if states.flags.writeable else states.copy()
        x = torch.from_numpy(rows).flatten(1)
        for weight, bias in self._layers:
            x = torch.addmm(bias, x, weight)
        return torch.softmax(x, dim=1)

    def act(self, columns: Columns) -> Columns:
        cumulated = self.probabilities(columns["obs"]).numpy().cumsum(1)
        draw = self._random.random((len(cumulated), 1), dtype=np.float32) * cumulated[:, -1:]
        return {"action": (cumulated >= draw).argmax(1)}
