"""The value-based policy: it says what each action is worth, takes the best, and learns from transitions."""

from __future__ import annotations

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
from podium.core.spaces import Columns, Discrete, Leaf, Space
from podium.policies.base import Acted, Learned, Reduce, Sgd
from podium.policies.devices import device
from podium.policies.exploration import epsilon_greedy, spread
from podium.policies.networks import user_module
from podium.policies.q_networks import QModel, QNetwork, QSettings, UserQ
from podium.policies.replayed import NEXT, ReplayedPolicy
from podium.policies.torch import Loaded, Minibatch, Report, TorchPolicy, tensor
from podium.policies.values import PLAIN, RESCALED, Categorical, Mean, Quantiles, Value


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


class QPolicy(ReplayedPolicy):
    """A network and its target, a copy that follows every `target_every` updates."""

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

    def _build_model(self, given: Any) -> QModel:
        size = self.value.size
        if given is not None:
            module = user_module(given, self.observation_space, self.actions * size)
            return UserQ(module, self.observation_space, self.actions, size)
        names = ("hidden", "activation", "dueling", "noisy", "noise", "memory", "memory_size")
        net = QSettings(**{name: getattr(self.config, name) for name in names if hasattr(self.config, name)})
        return QNetwork(self.observation_space, self.actions, size, net)

    # --- acting ---

    @torch.inference_mode()
    def act(self, obs: Columns, state: Columns, mask: np.ndarray | None = None, explore: bool = True) -> Acted:
        """The recurrent state that the rows were looked at with is kept beside them: learning may begin there."""
        self.model.renew(self._rng) if explore else self.model.still()
        legal_here = tensor(mask).to(self.device) if mask is not None else None
        means, after = self._look(obs, state)
        action = legal(means, legal_here).argmax(-1).cpu().numpy()
        epsilon = value_at(self.config.epsilon, self.progress) if explore else 0.0
        if epsilon:
            each = spread(epsilon, len(action), self.config.epsilon_spread, self.player)
            draws = torch.rand(2, len(action), generator=self._rng, device=self.device).cpu().numpy()
            action = epsilon_greedy(action, each, self.actions, draws, mask)
        return Acted(action, after, dict(state))

    @torch.inference_mode()
    def values(self, obs: Columns, state: Columns) -> np.ndarray:
        """What the best action is worth."""
        self.model.still()
        return self._look(obs, state)[0].max(-1).values.cpu().numpy()

    def _look(self, obs: Columns, state: Columns) -> tuple[Tensor, Columns]:
        """Every action's mean, and the recurrent state afterwards."""
        self._compute_here()
        x = {path: self._filtered(path, tensor(column).to(self.device)) for path, column in obs.items()}
        said, after = self.model.step(x, {name: tensor(part).to(self.device) for name, part in state.items()})
        return self.value.mean(said), {name: part.cpu().numpy() for name, part in after.items()}

    # --- learning ---

    def learn(self, batch: Batch | Loaded, sgd: Sgd, reduce: Reduce | None = None) -> Learned:
        learned = super().learn(batch, sgd, reduce)
        if self.version % self.config.target_every == 0:
            self._follow()
        return learned

    def _gradient(
        self, loaded: Loaded, minibatch: Minibatch, envs: np.ndarray | None, now: SimpleNamespace
    ) -> tuple[Tensor, Report]:
        return self._descent(self._say(minibatch, self._target), minibatch, now)

    def _say(self, minibatch: Minibatch, target: QModel) -> Said:
        """What the network and a target say of a minibatch, each with new noise."""
        for model in {id(model): model for model in (self.model, target)}.values():
            model.renew(self._rng)
        obs, after = (
            {path: self._filtered(path, minibatch[head + path]) for path in self._paths} for head in ("", NEXT)
        )
        with torch.no_grad():
            next_target = target.q(after)
        mask = minibatch[NEXT + "mask"] if NEXT + "mask" in minibatch else None
        next_online_of = torch.no_grad()(lambda: self.model.q(after) if target is not self.model else next_target)
        return Said(self.value, self.model.q(obs), minibatch["action"], next_target, next_online_of, mask)

    def _descent(self, said: Said, rows: Minibatch, now: SimpleNamespace) -> tuple[Tensor, Report]:
        losses, errors, report = self._loss(said, rows, now)
        self._errors = errors.cpu().numpy()
        loss = (losses * rows["weight"]).mean()
        return self._flat_gradient(loss), {"loss": loss, "q": lambda: self.value.mean(said.outputs).mean(), **report}

    def _errors_of(self, minibatch: Minibatch, now: SimpleNamespace) -> Tensor:
        """Where the network is its own target: whoever plays has no other."""
        return self._loss(self._say(minibatch, self.model), minibatch, now)[1]


def discrete(space: Leaf) -> int:
    """How many actions there are; any other kind of space is refused."""
    if not isinstance(space, Discrete):
        raise UsageError(
            f"a value for each action needs Discrete actions, and this env has {space}: ppo, a2c, pg, impala and appo take "
            "those, and sac, td3 and ddpg a Box"
        )
    return space.n


def legal(means: Tensor, mask: Tensor | None) -> Tensor:
    return means if mask is None else means.masked_fill(~mask, -torch.inf)


def _value(config: Any, where: torch.device) -> Value:
    scale = RESCALED if config.rescale else PLAIN
    if config.distribution == "categorical":
        return Categorical(config.v_min, config.v_max, config.atoms, where, scale)
    return Quantiles(config.atoms, where, scale) if config.distribution == "quantile" else Mean(scale)
