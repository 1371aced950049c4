"""The torch policy: a model, a loss and a way to finish trajectories, over one flat vector of parameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from podium.core import seeding
from podium.core.batch import Batch, split_rows
from podium.core.config import Config
from podium.core.errors import PodiumError, TrainingError, UsageError
from podium.core.sgd import agreed, mean_over_rows
from podium.core.spaces import Box, Columns, Leaf, Space, leaves, under
from podium.policies.adam import Adam
from podium.policies.base import Acted, Learned, Reduce, Sgd, Weights
from podium.policies.devices import device, free_bytes
from podium.policies.distributions import Family, family_for
from podium.policies.filters import RunningMoments, moments_of
from podium.policies.networks import ActorCritic, Model, NetSettings, UserModel, is_image, user_module

OBS_LIMIT = 10.0


@dataclass
class Out:
    """What the model says of a minibatch's rows: of the actions that were taken there, and the states' values."""

    params: Tensor
    value: Tensor
    logp: Tensor
    entropy_of: Callable[[], Tensor]

    @cached_property
    def entropy(self) -> Tensor:
        """Worked out when it is first asked for: with a gradient, or without one where it is only shown."""
        return self.entropy_of()


class Minibatch:
    """`size` rows of a batch as flat tensors; a column is gathered when it is first asked for."""

    def __init__(
        self, columns: Mapping[str, Tensor] | Minibatch, gather: Callable[[Tensor], Tensor], size: int
    ) -> None:
        self.size = size
        self._columns = columns
        self._gather = gather
        self._ready: dict[str, Tensor] = {}

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._ready:
            self._ready[name] = self._gather(self._columns[name])
        return self._ready[name]

    def __contains__(self, name: str) -> bool:
        return name in self._columns


# Figures of a loss. One that only a reader needs may be a function: it is worked out for the last pass alone.
Report = dict[str, Tensor | float | Callable[[], Tensor]]
Loss = Callable[[Out, Minibatch, SimpleNamespace], tuple[Tensor, Report]]
Postprocess = Callable[["TorchPolicy", Batch, SimpleNamespace], Batch]
# From what the current policy says of a batch's rows (log-probabilities, values) to further columns of it.
Targets = Callable[["TorchPolicy", Batch, SimpleNamespace, np.ndarray, np.ndarray], Mapping[str, np.ndarray]]


class Loaded:
    """A batch in the device's memory. `minibatches` gives one pass over its valid rows (or sequences) at a time."""

    def __init__(self, batch: Batch, device: torch.device, recurrent: bool) -> None:
        self.batch = batch
        self.recurrent = recurrent
        self._device = device
        self.columns = {name: tensor(column).to(device) for name, column in batch.cols.items()}
        self.first = {name: tensor(column).to(device) for name, column in batch.first.items()}
        self._rows = batch.rows()
        flat = {name: column.flatten(0, 1) for name, column in self.columns.items()}
        whole = len(self._rows) == batch.length * batch.width
        self._flat = flat
        self._all = Minibatch(flat, _as_it_is if whole else _row_gather(self._rows), len(self._rows))

    def add(self, columns: Mapping[str, np.ndarray]) -> None:
        """Put further columns beside those of the batch, or others in their place."""
        for name, column in columns.items():
            self.columns[name] = tensor(column).to(self._device)
            self._flat[name] = self.columns[name].flatten(0, 1)

    def minibatches(
        self, size: int | None, rng: np.random.Generator, width: float | None = None
    ) -> Iterator[tuple[Minibatch, np.ndarray | None]]:
        """Minibatches, with the fragment's envs that each covers if the policy is recurrent. Those who learn together
        make as many as that `width` in envs would give, however many of their own they have; some may be empty."""
        batch = self.batch
        if self.recurrent:
            at_once = batch.width if size is None else max(1, size // batch.length)
            at_once = at_once if width is None or size is not None else max(1, round(width))
            for part in split_rows(np.arange(batch.width), at_once, rng, None if width is None else round(width)):
                rows = np.flatnonzero(batch["valid"][:, part])
                yield Minibatch(self.columns, _sequence_gather(part, rows), len(rows)), part
            return
        count = len(self._rows)
        every = max(1, round(batch.length * (batch.width if width is None else width)))
        parts = split_rows(np.arange(count), size or every, rng, None if width is None else every)
        for rows in parts:
            yield (self._all if len(parts) == 1 else Minibatch(self._all, _row_gather(rows), len(rows))), None


def tensor(array: np.ndarray) -> Tensor:
    """A tensor on the array's memory, or on a copy of one that may not be written to, as those are that come from
    another process."""
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def _as_it_is(column: Tensor) -> Tensor:
    return column


def _row_gather(rows: np.ndarray) -> Callable[[Tensor], Tensor]:
    index = torch.from_numpy(rows)
    return lambda column: column.index_select(0, index.to(column.device))


def _sequence_gather(envs: np.ndarray, rows: np.ndarray) -> Callable[[Tensor], Tensor]:
    index, valid = torch.from_numpy(envs), torch.from_numpy(rows)
    return lambda column: column[:, index].flatten(0, 1)[valid]


class TorchPolicy:
    """The policy graph with torch inside.

    `model` maps observations to (action parameters, value); `postprocess` finishes a trajectory in numpy where it was
    played; `targets` adds what depends on the policy that learns, before its passes; `loss` is what to minimise on a
    minibatch, given the model's output and the settings as they are now. All parameters are views of one
    flat vector, so that clipping, the optimizer's update, sending weights and reducing gradients are one operation each.
    """

    def __init__(
        self,
        config: Config,
        observation_space: Space,
        action_space: Leaf,
        *,
        loss: Callable[..., Any],
        postprocess: Postprocess,
        targets: Targets | None = None,
        model: Any = None,
        seed: int = 0,
    ) -> None:
        self.config = config
        self.observation_space, self.action_space = observation_space, action_space
        self._threads = getattr(config, "threads", 1)
        torch.set_num_threads(1)  # until something is to be computed: see `_compute_here`
        self.device = device(getattr(config, "device", "cpu"))
        self.family: Family = family_for(action_space, getattr(config, "squash", False))
        self._loss, self._postprocess, self._targets = loss, postprocess, targets
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seeding.integer(seed, "model"))
            self.model = self._build_model(model)
        self.model.float().to(self.device).eval()
        self._parameters = [p for p in self.model.parameters() if p.requires_grad]
        self._flat = flatten(self._parameters)
        self.parameters = len(self._flat)
        self._optimizer = Adam(self._flat, eps=getattr(config, "adam_eps", 1e-8))
        self._moments = {path: RunningMoments(leaf.shape) for path, leaf in self._filtered_leaves().items()}
        self._filter: dict[str, tuple[Tensor, Tensor]] = {}
        self._set_filter()
        self._rng = torch.Generator(self.device).manual_seed(seeding.integer(seed, "act"))
        self.version = 0
        self.progress = 0.0
        self.player = (1, 1)

    def _build_model(self, given: Any) -> Model:
        if given is not None:
            module = user_module(given, self.observation_space, self.family.size)
            log_std = getattr(self.config, "log_std", 0.0)
            return UserModel(module, self.observation_space, self.family.free, log_std)
        names = ("hidden", "activation", "memory", "memory_size", "shared", "log_std")
        net = NetSettings(**{name: getattr(self.config, name) for name in names if hasattr(self.config, name)})
        return ActorCritic(self.observation_space, self.family.size, self.family.free, net)

    # --- acting ---

    def initial_state(self, n: int) -> Columns:
        return {name: part.numpy() for name, part in self.model.initial_state(n).items()}

    @torch.inference_mode()
    def act(self, obs: Columns, state: Columns, mask: np.ndarray | None = None, explore: bool = True) -> Acted:
        params, value, after = self._forward_rows(obs, state)
        legal = tensor(mask).to(self.device) if mask is not None else None
        if explore:
            action, logp = self.family.sample(params, legal, self._rng)
        else:
            action, logp = self.family.mode(params, legal)
        next_state = {name: part.cpu().numpy() for name, part in after.items()}
        return Acted(action.cpu().numpy(), next_state, {"logp": logp.cpu().numpy(), "value": value.cpu().numpy()})

    @torch.inference_mode()
    def values(self, obs: Columns, state: Columns) -> np.ndarray:
        return self._forward_rows(obs, state)[1].cpu().numpy()

    def _compute_here(self) -> None:
        """Take the compute threads that the settings give, which another policy may have changed. They belong to the thread
        that asks for them: where a server is made in one and answers in another, the first must not keep a team of its
        own, since the two teams would get in each other's way."""
        if torch.get_num_threads() != self._threads:
            torch.set_num_threads(self._threads)

    def _forward_rows(self, obs: Columns, state: Columns) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        self._compute_here()
        x = {path: self._filtered(path, tensor(column).to(self.device)) for path, column in obs.items()}
        if not self.model.recurrent:
            return self.model.forward(x)
        before = {name: tensor(part).to(self.device) for name, part in state.items()}
        begun = torch.zeros(1, len(next(iter(state.values()))), dtype=torch.bool, device=self.device)
        params, value, after = self.model({path: column[None] for path, column in x.items()}, before, begun)
        return params[0], value[0], after

    def postprocess(self, batch: Batch) -> Batch:
        return self._postprocess(self, batch, self.config.at(self.progress))

    # --- learning ---

    def load(self, batch: Batch, limit: int | None = None) -> Loaded:
        free = free_bytes(self.device) if limit is None else limit
        if free is not None and batch.nbytes > free:
            raise PodiumError(
                f"a batch of {batch.nbytes:,} bytes does not fit into the {free:,} bytes that {self.device} has for it: "
                "take fewer --envs, a shorter --fragment or more devices"
            )
        return Loaded(batch, self.device, self.model.recurrent)

    def learn(self, batch: Batch | Loaded, sgd: Sgd, reduce: Reduce | None = None) -> Learned:
        """Passes of minibatch gradient steps; the filter of observations follows at the end, so that every row is
        seen in these passes exactly as it was when it was acted on."""
        now = self.config.at(sgd.progress)
        loaded = self._ready(batch, now)
        rng = seeding.generator(sgd.seed, "minibatches")
        width = None if reduce is None else agreed([float(loaded.batch.width)], reduce)
        steps = epochs = 0
        self.model.train()
        for _ in range(sgd.epochs):
            reports, before = [], steps
            for minibatch, envs in loaded.minibatches(sgd.minibatch, rng, width):
                gradient, report = self._gradient(loaded, minibatch, envs, now)
                if reduce is not None:
                    gradient = self._reduced(gradient, minibatch.size, reduce)
                self._step(gradient, now, report)
                reports += [report] if minibatch.size else []
                steps += 1
            if steps == before:  # every row was a reset row: nothing to learn from
                break
            epochs += 1
            if sgd.stop_above is not None:
                figures = [_mean([report], sgd.stop_above[0]) for report in reports]
                if agreed(figures, reduce) > sgd.stop_above[1]:
                    break
        self.model.eval()
        self._see(loaded.batch, reduce)
        self.version += 1
        self.progress = sgd.progress
        last_pass = {name: _mean(reports, name) for name in reports[0]} if reports else {}
        return Learned({**last_pass, "lr": now.lr, "gradient_steps": float(steps), "epochs": float(epochs)})

    def gradients(self, batch: Batch | Loaded, sgd: Sgd) -> tuple[np.ndarray, dict[str, float]]:
        """The gradient of the loss over the whole batch, unclipped, and the loss's metrics."""
        now = self.config.at(sgd.progress)
        loaded = self._ready(batch, now)
        minibatch, envs = next(loaded.minibatches(None, np.random.default_rng(0), loaded.batch.width))
        self.model.train()
        gradient, report = self._gradient(loaded, minibatch, envs, now)
        self._note_norm(gradient, report)
        self.model.eval()
        return gradient.cpu().numpy(), {name: _mean([report], name) for name in report}

    def apply(self, flat: np.ndarray, sgd: Sgd) -> None:
        self._step(tensor(flat).to(self.device), self.config.at(sgd.progress), {})
        self.version += 1
        self.progress = sgd.progress

    def _ready(self, batch: Batch | Loaded, now: SimpleNamespace) -> Loaded:
        """The batch on the device, with what the current policy makes of it."""
        self._compute_here()
        loaded = batch if isinstance(batch, Loaded) else Loaded(batch, self.device, self.model.recurrent)
        if self._targets is not None:
            loaded.add(self._targets(self, loaded.batch, now, *self._evaluated(loaded)))
        return loaded

    @torch.no_grad()
    def _evaluated(self, loaded: Loaded) -> tuple[np.ndarray, np.ndarray]:
        """What the current policy says of every row: the log-probability of its action, and its value."""
        obs = {path: self._filtered(path, column) for path, column in under(loaded.columns, "obs").items()}
        if self.model.recurrent:
            params, value, _ = self.model(obs, loaded.first, loaded.columns["start"])
            params, value = params.flatten(0, 1), value.flatten()
        else:
            params, value, _ = self.model.forward({path: column.flatten(0, 1) for path, column in obs.items()})
        mask = loaded.columns["mask"].flatten(0, 1) if "mask" in loaded.columns else None
        logp = self.family.log_prob(params, loaded.columns["action"].flatten(0, 1), mask)
        shape = (loaded.batch.length, loaded.batch.width)
        return logp.cpu().numpy().reshape(shape), value.cpu().numpy().reshape(shape)

    def _gradient(
        self, loaded: Loaded, minibatch: Minibatch, envs: np.ndarray | None, now: SimpleNamespace
    ) -> tuple[Tensor, Report]:
        if not minibatch.size:  # it only takes part in the others' step
            return torch.zeros_like(self._flat), {"loss": 0.0}
        params, value = self._forward_minibatch(loaded, minibatch, envs)
        of_actions = (params, minibatch["action"], minibatch["mask"] if "mask" in minibatch else None)
        logp, entropy = self.family.log_prob(*of_actions), partial(self.family.entropy, *of_actions)
        loss, report = self._loss(Out(params, value, logp, entropy), minibatch, now)
        return self._flat_gradient(loss), {"loss": loss, **report}

    def _flat_gradient(self, loss: Tensor) -> Tensor:
        parts = torch.autograd.grad(loss, self._parameters, allow_unused=True, materialize_grads=True)
        return torch.cat([part.reshape(-1) for part in parts])

    def _note_norm(self, gradient: Tensor, report: Report) -> float:
        """The gradient's length, noted in the report. Where it or the loss is not finite the training ends before the
        step, by the names of what is not."""
        norm = report["gradient_norm"] = float(torch.linalg.vector_norm(gradient))
        if not math.isfinite(norm) or ("loss" in report and not math.isfinite(_mean([report], "loss"))):
            broken = [name for name in report if not math.isfinite(_mean([report], name))]
            raise TrainingError(f"update {self.version + 1}: not finite: {', '.join(broken)}; try a lower --lr")
        return norm

    def _forward_minibatch(
        self, loaded: Loaded, minibatch: Minibatch, envs: np.ndarray | None
    ) -> tuple[Tensor, Tensor]:
        if envs is None:
            obs = {path: self._filtered(path, minibatch[path]) for path in under(loaded.columns, "obs")}
            params, value, _ = self.model.forward(obs)
            return params, value
        index = torch.from_numpy(envs).to(self.device)
        columns = {path: column[:, index] for path, column in under(loaded.columns, "obs").items()}
        obs = {path: self._filtered(path, column) for path, column in columns.items()}
        state = {name: part[index] for name, part in loaded.first.items()}
        params, value, _ = self.model(obs, state, loaded.columns["start"][:, index])
        valid = loaded.columns["valid"][:, index].flatten()
        return params.flatten(0, 1)[valid], value.flatten()[valid]

    def _reduced(self, gradient: Tensor, rows: int, reduce: Reduce) -> Tensor:
        return torch.from_numpy(mean_over_rows(gradient.cpu().numpy(), rows, reduce)).to(self.device)

    def _step(self, gradient: Tensor, now: SimpleNamespace, report: Report) -> None:
        norm = self._note_norm(gradient, report)
        if now.max_grad_norm is not None and norm > now.max_grad_norm:
            gradient = gradient * (now.max_grad_norm / (norm + 1e-6))
        self._optimizer.step(gradient, now.lr)

    # --- observation filter ---

    def _filtered_leaves(self) -> dict[str, Leaf]:
        if not getattr(self.config, "normalize_obs", False):
            return {}
        boxes = leaves(self.observation_space, "obs").items()
        return {path: leaf for path, leaf in boxes if isinstance(leaf, Box) and not is_image(leaf)}

    def _filtered(self, path: str, column: Tensor) -> Tensor:
        if path not in self._filter:
            return column
        mean, scale = self._filter[path]
        return ((column - mean) * scale).clamp_(-OBS_LIMIT, OBS_LIMIT)

    def observed(self, batch: Batch) -> dict[str, Any]:
        return {path: moments_of(batch[path][batch["valid"]]) for path in self._moments}

    def observe(self, observed: Mapping[str, Any]) -> None:
        for path, moments in observed.items():
            self._moments[path].merge(*moments)
        self._set_filter()

    def _see(self, batch: Batch, reduce: Reduce | None) -> None:
        """Show the rows that were learned on to the filter, and those of all who learn together."""
        for path, moments in self._moments.items():
            moments.update(batch[path][batch["valid"]], reduce)
        self._set_filter()

    def _set_filter(self) -> None:
        for path, moments in self._moments.items():
            mean, scale = moments.mean, moments.scale()
            to_device = partial(torch.tensor, dtype=torch.float32, device=self.device)
            self._filter[path] = (to_device(mean), to_device(scale))

    # --- state ---

    def _beside(self) -> list[Tensor]:
        """What acting needs beyond the parameters: float buffers of the model and the filter."""
        frozen = [p.data for p in self.model.parameters() if not p.requires_grad]
        buffers = [b for b in self.model.buffers() if b.is_floating_point()]
        return [*frozen, *buffers, *(part for pair in self._filter.values() for part in pair)]

    def get_weights(self) -> Weights:
        parts = [self._flat, *(part.reshape(-1) for part in self._beside())]
        return Weights(torch.cat(parts).cpu().numpy(), self.version, self.progress)

    def set_weights(self, weights: Weights) -> None:
        flat = tensor(weights.flat)
        with torch.no_grad():
            self._flat.copy_(flat[: len(self._flat)])
            at = len(self._flat)
            for part in self._beside():
                part.copy_(flat[at : at + part.numel()].view_as(part))
                at += part.numel()
        self.version, self.progress = weights.version, weights.progress

    def get_state(self, full: bool = False) -> dict[str, Any]:
        """What acting needs; with `full` also what learning on exactly as before needs."""
        state: dict[str, Any] = {
            "model": {name: part.cpu().numpy().copy() for name, part in self.model.state_dict().items()},
            "filter": {path: moments.get_state() for path, moments in self._moments.items()},
            "version": self.version,
            "progress": self.progress,
        }
        if full:
            state["optimizer"] = self._optimizer.get_state()
            state["rng"] = self._rng.get_state().numpy()
        return state

    def set_state(self, state: dict[str, Any]) -> None:
        own = self.model.state_dict()
        for name, part in own.items():
            given = state["model"].get(name)
            if given is None or tuple(given.shape) != tuple(part.shape):
                shape = "nothing" if given is None else list(given.shape)
                raise UsageError(f"the checkpoint's model has {shape} for {name!r}, this one {list(part.shape)}")
            part.copy_(tensor(given))
        for path, moments in self._moments.items():
            moments.set_state(state["filter"][path])
        self._set_filter()
        self.version, self.progress = state["version"], state["progress"]
        if "optimizer" in state:
            self._optimizer.set_state(state["optimizer"])
            self._rng.set_state(torch.from_numpy(state["rng"].copy()))


@torch.no_grad()
def _mean(reports: list[Report], name: str) -> float:
    terms = (report[name] for report in reports)
    return sum(float(term() if callable(term) else term) for term in terms) / len(reports)


def flatten(parameters: list[nn.Parameter]) -> Tensor:
    """One vector that holds the parameters, each of which becomes a view of its part."""
    flat = torch.cat([p.detach().reshape(-1) for p in parameters])
    at = 0
    for parameter in parameters:
        parameter.data = flat[at : at + parameter.numel()].view_as(parameter)
        at += parameter.numel()
    return flat
