"""The policy of an actor and critics that learn from transitions, with targets that follow them slowly."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from podium.core.batch import Batch
from podium.core.errors import TrainingError
from podium.core.spaces import Columns, Leaf, Space
from podium.policies.acting import Acting, Critic
from podium.policies.actor_q_networks import ActorQ, ActorQSettings
from podium.policies.base import Acted
from podium.policies.groups import Groups
from podium.policies.networks import user_module
from podium.policies.replayed import NEXT, ReplayedPolicy
from podium.policies.torch import Loaded, Minibatch, Report, TorchPolicy, tensor

ACTOR, CRITIC, ENTROPY = "actor", "critic", "entropy"


@dataclass
class Nets:
    """What a loss asks of the networks about a minibatch: `obs`, the observations `after` them, and the `taken` actions
    as critics see them. `update` counts from 1."""

    acting: Any
    model: ActorQ
    target: ActorQ
    obs: Mapping[str, Tensor]
    after: Mapping[str, Tensor]
    taken: Tensor
    mask: Tensor | None
    next_mask: Tensor | None
    rng: torch.Generator
    update: int

    def critics(self) -> Critic:
        """What the critics say of actions at `obs`."""
        return lambda action: self.model.critic.forward(self.obs, action, self.rng)

    def frozen(self, first: int | None = None) -> Critic:
        """The same, of all or the first critics; a gradient reaches the actions alone."""
        count = first or self.model.critic.layers.count
        return lambda action: self.model.critic.forward(self.obs, action, self.rng, frozen=count)

    def targets(self) -> Critic:
        """What the critics' targets say of actions at `after`."""
        return lambda action: self.target.critic.forward(self.after, action, self.rng)

    def errors(self, target: Tensor) -> Tensor:
        """How far each critic is from what the taken actions turned out to be worth, `[critics, B]`."""
        return target - self.acting.worth(self.critics(), self.taken)


# From the networks and a minibatch to a loss for each group that learns now, how wrong the critics were about each row,
# and figures for people.
ActorQLoss = Callable[[Nets, Minibatch, SimpleNamespace], tuple[dict[str, Tensor], Tensor, Report]]


def squared(errors: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """The critics' loss, and how wrong they were about each row."""
    return 0.5 * (weight * errors * errors).mean(-1).sum(), errors.detach().abs().mean(0)


class ActorQPolicy(ReplayedPolicy):
    """An actor beside critics. Actor, critics and the entropy's weight are parts of one vector that learn in one step, each
    at its own pace, from the networks as they were before it; targets follow by a share `tau` whenever the actor learns.
    Until the first update it acts at random."""

    config: Any
    model: ActorQ
    _optimizer: Any

    def __init__(
        self,
        config: Any,
        observation_space: Space,
        action_space: Leaf,
        *,
        acting: Acting,
        loss: ActorQLoss,
        postprocess: Callable[[TorchPolicy, Batch, SimpleNamespace], Batch],
        model: Any = None,
        seed: int = 0,
    ) -> None:
        self.acting = acting
        super().__init__(
            config, observation_space, action_space, loss=loss, postprocess=postprocess, model=model, seed=seed
        )
        self._optimizer = Groups(self._flat, self._parts(), config.adam_eps)
        self._due: tuple[str, ...] = tuple(self._optimizer.parts)

    def _build_model(self, given: Any) -> ActorQ:
        names = ("hidden", "activation", "critics", "layer_norm", "critic_dropout")
        net = ActorQSettings(**{name: getattr(self.config, name) for name in names if hasattr(self.config, name)})
        sizes = self.acting.sizes
        module = None if given is None else user_module(given, self.observation_space, sizes[0])
        learned = getattr(self.config, "entropy", None) == "auto"
        weight = self.config.entropy_start if learned else None
        return ActorQ(self.observation_space, sizes, net, weight, module)

    def _parts(self) -> dict[str, tuple[int, int]]:
        """Where in the flat vector each group is: the model has them one after the other."""
        parts, at = {}, 0
        for name, module in self.model.named_children():
            size = sum(p.numel() for p in module.parameters() if p.requires_grad)
            parts[name], at = (at, at + size), at + size
        return parts

    # --- acting ---

    def initial_state(self, n: int) -> Columns:
        return self.acting.initial_state(n)

    @torch.inference_mode()
    def act(self, obs: Columns, state: Columns, mask: np.ndarray | None = None, explore: bool = True) -> Acted:
        legal = tensor(mask).to(self.device) if mask is not None else None
        if explore and not self.version:
            chosen = self.acting.anything(len(next(iter(obs.values()))), legal, self._rng)
        else:
            params = self.model.act(self._rows(obs))
            if explore:
                now = self.config.at(self.progress)
                chosen, state = self.acting.explore(params, legal, state, now, self._rng)
            else:
                chosen = self.acting.mode(params, legal)
        action = self.acting.to_env(chosen)
        if not np.isfinite(action).all():
            raise TrainingError(f"after update {self.version} the actor's action is not finite; try a lower --lr")
        return Acted(action, state)

    @torch.inference_mode()
    def values(self, obs: Columns, state: Columns) -> np.ndarray:
        """What the least critic says of the actor's action."""
        x = self._rows(obs)
        chosen = self.acting.mode(self.model.act(x), None)
        return self.acting.worth(partial(self.model.critic.forward, x), chosen).amin(0).cpu().numpy()

    def _rows(self, obs: Columns) -> dict[str, Tensor]:
        self._compute_here()
        return {path: self._filtered(path, tensor(column).to(self.device)) for path, column in obs.items()}

    # --- learning ---

    def _errors_of(self, minibatch: Minibatch, now: SimpleNamespace) -> Tensor:
        return self._loss(self._nets(minibatch), minibatch, now)[1]

    def _nets(self, minibatch: Minibatch) -> Nets:
        obs, after = ({path: self._seen(path, minibatch[head + path]) for path in self._paths} for head in ("", NEXT))
        mask, next_mask = (minibatch[name] if name in minibatch else None for name in ("mask", NEXT + "mask"))
        taken = self.acting.from_env(minibatch["action"])
        return Nets(
            self.acting, self.model, self._target, obs, after, taken, mask, next_mask, self._rng, self.version + 1
        )

    def _seen(self, path: str, column: Tensor) -> Tensor:
        """As the networks take it, so that none of them has to convert it again."""
        seen = self._filtered(path, column)
        return seen.float() if seen.is_floating_point() else seen

    def _gradient(
        self, loaded: Loaded, minibatch: Minibatch, envs: np.ndarray | None, now: SimpleNamespace
    ) -> tuple[Tensor, Report]:
        losses, errors, report = self._loss(self._nets(minibatch), minibatch, now)
        self._errors, self._due = errors.cpu().numpy(), tuple(losses)
        loss = sum(losses.values())
        assert isinstance(loss, Tensor)
        named: Report = {f"{name}_loss": part for name, part in losses.items()}
        return self._flat_gradient(loss), {"loss": loss, **named, **report}

    def _step(self, gradient: Tensor, now: SimpleNamespace, report: Report) -> None:
        self._note_norm(gradient, report)
        own = {ACTOR: now.actor_lr, CRITIC: None, ENTROPY: getattr(now, "entropy_lr", None)}
        lrs = {name: now.lr if own[name] is None else own[name] for name in self._due}
        self._optimizer.step(gradient, lrs, now.max_grad_norm)
        if ACTOR in self._due:
            self._follow(now.tau)
