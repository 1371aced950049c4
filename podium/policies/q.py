"""The value-based policy: it says what each action is worth, takes the best, and learns from transitions."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from podium.core.batch import Batch
from podium.core.config import value_at
from podium.core.errors import UsageError
from podium.core.spaces import Columns, Discrete, Leaf, Space, leaves
from podium.policies.base import Acted, Learned, Reduce, Sgd
from podium.policies.devices import device
from podium.policies.exploration import epsilon_greedy, spread
from podium.policies.networks import user_module
from podium.policies.q_networks import QModel, QNetwork, QSettings, UserQ
from podium.policies.torch import Loaded, Minibatch, Report, TorchPolicy, flatten, tensor
from podium.policies.values import Categorical, Mean, Quantiles, Value

NEXT = "next/"


@dataclass
class Said:
    """What the networks say of a minibatch: of the taken actions, and of the next states; `[B, actions, size]` each."""

    value: Value
    outputs: Tensor
    action: Tensor
    next_target: Tensor
    next_online_of: Callable[[], Tensor]
    next_mask: Tensor | None

    @cached_property
    def next_online(self) -> Tensor:
        """Worked out when it is first asked for."""
        return self.next_online_of()

    def of(self, outputs: Tensor, action: Tensor) -> Tensor:
        """The outputs of one action in each row."""
        return outputs[torch.arange(len(action), device=action.device), action]

    def best(self, outputs: Tensor) -> Tensor:
        """The next state's action of the greatest mean, of those that are legal."""
        return legal(self.value.mean(outputs), self.next_mask).argmax(-1)


# From what is said of a minibatch to each row's loss, how wrong each row was, and figures for people.
QLoss = Callable[[Said, Minibatch, SimpleNamespace], tuple[Tensor, Tensor, Report]]


class QPolicy(TorchPolicy):
    """A network and its target, a copy that follows every `target_every` updates. It learns from what a replay gives:
    `return`, `discount`, `weight`, and the observations that followed under `next/`. The filter of observations sees
    rows when they are played, not each time that they are drawn."""

    config: Any
    model: QModel

    def __init__(
        self,
        config: Any,
        observation_space: Space,
        action_space: Leaf,
        *,
        loss: QLoss,
        postprocess: Callable[[TorchPolicy, Batch, SimpleNamespace], Batch],
        model: Any = None,
        seed: int = 0,
    ) -> None:
        self.actions = discrete(action_space)
        self.value = _value(config, device(config.device))
        super().__init__(
            config, observation_space, action_space, loss=loss, postprocess=postprocess, model=model, seed=seed
        )
        self._target = copy.deepcopy(self.model)
        self._target_flat = flatten(list(self._target.parameters()))
        self._paths = list(leaves(self.observation_space, "obs"))
        self._errors = np.zeros(0, np.float32)

    def _build_model(self, given: Any) -> QModel:
        size = self.value.size
        if given is not None:
            module = user_module(given, self.observation_space, self.actions * size)
            return UserQ(module, self.observation_space, self.actions, size)
        names = ("hidden", "activation", "dueling", "noisy", "noise")
        net = QSettings(**{name: getattr(self.config, name) for name in names if hasattr(self.config, name)})
        return QNetwork(self.observation_space, self.actions, size, net)

    # --- acting ---

    @torch.inference_mode()
    def act(self, obs: Columns, state: Columns, mask: np.ndarray | None = None, explore: bool = True) -> Acted:
        self.model.renew(self._rng) if explore else self.model.still()
        legal_here = tensor(mask).to(self.device) if mask is not None else None
        action = legal(self._means(obs), legal_here).argmax(-1).cpu().numpy()
        epsilon = value_at(self.config.epsilon, self.progress) if explore else 0.0
        if epsilon:
            each = spread(epsilon, len(action), self.config.epsilon_spread)
            draws = torch.rand(2, len(action), generator=self._rng, device=self.device).cpu().numpy()
            action = epsilon_greedy(action, each, self.actions, draws, mask)
        return Acted(action)

    @torch.inference_mode()
    def values(self, obs: Columns, state: Columns) -> np.ndarray:
        """What the best action is worth."""
        self.model.still()
        return self._means(obs).max(-1).values.cpu().numpy()

    def _means(self, obs: Columns) -> Tensor:
        self._compute_here()
        x = {path: self._filtered(path, tensor(column).to(self.device)) for path, column in obs.items()}
        return self.value.mean(self.model.q(x))

    # --- learning ---

    def learn(self, batch: Batch | Loaded, sgd: Sgd, reduce: Reduce | None = None) -> Learned:
        """A gradient step on drawn transitions; `error` says of each how wrong the policy was about it."""
        learned = super().learn(batch, sgd, reduce)
        if self.version % self.config.target_every == 0:
            self._follow()
        return Learned(learned.metrics, {"error": self._errors})

    def _gradient(
        self, loaded: Loaded, minibatch: Minibatch, envs: np.ndarray | None, now: SimpleNamespace
    ) -> tuple[Tensor, Report]:
        for model in (self.model, self._target):
            model.renew(self._rng)
        obs, after = (
            {path: self._filtered(path, minibatch[head + path]) for path in self._paths} for head in ("", NEXT)
        )
        with torch.no_grad():
            next_target = self._target.q(after)
        mask = minibatch[NEXT + "mask"] if NEXT + "mask" in minibatch else None
        next_online_of = torch.no_grad()(lambda: self.model.q(after))
        said = Said(self.value, self.model.q(obs), minibatch["action"], next_target, next_online_of, mask)
        losses, errors, report = self._loss(said, minibatch, now)
        self._errors = errors.cpu().numpy()
        loss = (losses * minibatch["weight"]).mean()
        return self._flat_gradient(loss), {"loss": loss, "q": lambda: self.value.mean(said.outputs).mean(), **report}

    def _see(self, batch: Batch, reduce: Reduce | None) -> None:
        """Rows were seen when they were played."""

    @torch.no_grad()
    def _follow(self) -> None:
        """The target becomes what the network is."""
        self._target_flat.copy_(self._flat)
        for mine, theirs in zip(self._target.buffers(), self.model.buffers(), strict=True):
            mine.copy_(theirs)

    # --- state ---

    def get_state(self, full: bool = False) -> dict[str, Any]:
        state = super().get_state(full)
        if full:
            state["target"] = self._target_flat.cpu().numpy().copy()
        return state

    def set_state(self, state: dict[str, Any]) -> None:
        super().set_state(state)
        self._follow()
        if "target" in state:
            self._target_flat.copy_(torch.from_numpy(state["target"].copy()))


def discrete(space: Leaf) -> int:
    """How many actions there are; any other kind of space is refused."""
    if not isinstance(space, Discrete):
        raise UsageError(
            f"dqn needs Discrete actions, and this env has {space}: ppo, a2c, pg, impala and appo take those, and sac, td3 and "
            "ddpg a Box"
        )
    return space.n


def legal(means: Tensor, mask: Tensor | None) -> Tensor:
    return means if mask is None else means.masked_fill(~mask, -torch.inf)


def _value(config: Any, where: torch.device) -> Value:
    if config.distribution == "categorical":
        return Categorical(config.v_min, config.v_max, config.atoms, where)
    return Quantiles(config.atoms, where) if config.distribution == "quantile" else Mean()
