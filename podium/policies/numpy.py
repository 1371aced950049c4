"""A policy without any framework: softmax actor and value baseline in numpy, trained by advantage actor-critic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from podium.core import returns, seeding
from podium.core.batch import Batch, split_rows
from podium.core.config import Config, Schedule, setting
from podium.core.errors import PodiumError, TrainingError, UsageError
from podium.core.sgd import Adam, agreed, mean_over_rows, shrink
from podium.core.spaces import Box, Columns, Discrete, Leaf, Space, leaves
from podium.policies.base import Acted, Learned, Reduce, Sgd, Weights
from podium.policies.trajectory import next_values

ILLEGAL = np.float32(-1e9)
EPSILON = 1e-5


@dataclass(frozen=True)
class NumpyConfig(Config):
    """Settings of the numpy policy."""

    lr: float | Schedule = setting(5e-3, "Adam's step size", low=0, high=10)
    gamma: float | Schedule = setting(0.99, "discount per step", low=0, high=1)
    gae_lambda: float | Schedule = setting(0.95, "GAE's trade of bias for variance", low=0, high=1)
    entropy: float | Schedule = setting(0.0, "weight of the entropy bonus", low=0)
    value_coef: float | Schedule = setting(0.5, "weight of the value loss", low=0)
    max_grad_norm: float | Schedule | None = setting(0.5, "longer gradients are scaled down to this norm", above=0)
    hidden: int = setting(32, "units of the one hidden layer; 0 for linear functions", low=0)


class Net:
    """One function of the observation, linear or with a hidden tanh layer; its parameters are views of a vector."""

    def __init__(self, inputs: int, hidden: int, outputs: int) -> None:
        layers = {"hidden": (inputs, hidden), "out": (hidden, outputs)} if hidden else {"out": (inputs, outputs)}
        self._shapes: dict[str, tuple[int, ...]] = {f"{name}/w": shape for name, shape in layers.items()}
        self._shapes |= {f"{name}/b": shape[1:] for name, shape in layers.items()}
        self.size = sum(int(np.prod(shape)) for shape in self._shapes.values())

    def views(self, flat: np.ndarray) -> Columns:
        """The parts of a vector of `size` numbers by name."""
        parts, at = {}, 0
        for name, shape in self._shapes.items():
            size = int(np.prod(shape))
            parts[name] = flat[at : at + size].reshape(shape)
            at += size
        return parts

    def draw(self, flat: np.ndarray, rng: np.random.Generator, gain: float) -> None:
        """Weights of variance 1 / inputs, the last layer's times `gain`; biases stay 0."""
        for name, part in self.views(flat).items():
            if name.endswith("/w"):
                part[:] = rng.normal(0.0, (gain if name == "out/w" else 1.0) / np.sqrt(len(part)), part.shape)

    def forward(self, flat: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The output, and the features that its last layer saw."""
        parts = self.views(flat)
        features = np.tanh(x @ parts["hidden/w"] + parts["hidden/b"]) if "hidden/w" in parts else x
        return features @ parts["out/w"] + parts["out/b"], features

    def backward(self, flat: np.ndarray, x: np.ndarray, features: np.ndarray, slope: np.ndarray) -> np.ndarray:
        """The gradient by the parameters, from the loss's `slope` by the output."""
        parts, gradient = self.views(flat), np.empty_like(flat)
        into = self.views(gradient)
        into["out/w"][:], into["out/b"][:] = features.T @ slope, slope.sum(0)
        if "hidden/w" in parts:
            inner = (slope @ parts["out/w"].T) * (1 - np.square(features))
            into["hidden/w"][:], into["hidden/b"][:] = x.T @ inner, inner.sum(0)
        return gradient


class NumpyPolicy:
    """Discrete actions from Box observations. All parameters are one flat float32 vector: the actor's, the critic's."""

    def __init__(self, config: NumpyConfig, observation_space: Space, action_space: Leaf, seed: int = 0) -> None:
        if not isinstance(action_space, Discrete):
            raise UsageError(f"the numpy policy chooses among Discrete actions, this env has {action_space}")
        boxes = leaves(observation_space, "obs")
        for path, leaf in boxes.items():
            if not isinstance(leaf, Box):
                raise UsageError(f"the numpy policy sees Box observations, this env has {leaf} at {path}")
        self.config = config
        self._paths = list(boxes)
        inputs = sum(int(np.prod(leaf.shape)) for leaf in boxes.values())
        self._actor = Net(inputs, config.hidden, action_space.n)
        self._critic = Net(inputs, config.hidden, 1)
        self._flat = np.zeros(self._actor.size + self._critic.size, np.float32)
        self._actor_flat, self._critic_flat = self._flat[: self._actor.size], self._flat[self._actor.size :]
        rng = seeding.generator(seed, "model")
        self._actor.draw(self._actor_flat, rng, 0.01)
        self._critic.draw(self._critic_flat, rng, 1.0)
        self.parameters = len(self._flat)
        self._adam = Adam(self.parameters, EPSILON)
        self._rng = seeding.generator(seed, "act")
        self.version = 0
        self.player = (1, 1)
        self.progress = 0.0

    # --- acting ---

    def initial_state(self, n: int) -> Columns:
        return {}

    def act(self, obs: Columns, state: Columns, mask: np.ndarray | None = None, explore: bool = True) -> Acted:
        x = self._inputs(obs)
        logp = log_softmax(self._actor.forward(self._actor_flat, x)[0], mask)
        if explore:
            cumulated = np.exp(logp).cumsum(1)
            draw = self._rng.random((len(x), 1), np.float32) * cumulated[:, -1:]
            action = (cumulated <= draw).sum(1)
        else:
            action = logp.argmax(1)
        chosen = np.take_along_axis(logp, action[:, None], 1)[:, 0]
        return Acted(action, {}, {"logp": chosen, "value": self._values(x)})

    def values(self, obs: Columns, state: Columns) -> np.ndarray:
        return self._values(self._inputs(obs))

    def _values(self, x: np.ndarray) -> np.ndarray:
        return self._critic.forward(self._critic_flat, x)[0][:, 0]

    def _inputs(self, obs: Mapping[str, np.ndarray]) -> np.ndarray:
        parts = [obs[path].reshape(len(obs[path]), -1).astype(np.float32, copy=False) for path in self._paths]
        return parts[0] if len(parts) == 1 else np.concatenate(parts, 1)

    def postprocess(self, batch: Batch) -> Batch:
        """GAE advantages, and the returns that the value function is to learn."""
        now = self.config.at(self.progress)
        terminated, done = batch["terminated"], batch["terminated"] | batch["truncated"]
        values, following = batch["value"], next_values(self, batch)
        advantage = returns.gae(batch["reward"], values, following, terminated, done, now.gamma, now.gae_lambda)
        return batch.with_columns(**{"advantage": advantage, "return": advantage + values})

    # --- learning ---

    def load(self, batch: Batch, limit: int | None = None) -> Batch:
        """Main memory is where it learns."""
        if limit is not None and batch.nbytes > limit:
            raise PodiumError(f"a batch of {batch.nbytes:,} bytes does not fit into {limit:,} bytes")
        return batch

    def learn(self, batch: Batch, sgd: Sgd, reduce: Reduce | None = None) -> Learned:
        now = self.config.at(sgd.progress)
        rng = seeding.generator(sgd.seed, "minibatches")
        columns, valid, every = _flat_columns(batch), batch.rows(), batch.length * batch.width
        every = every if reduce is None else max(1, round(agreed([float(every)], reduce)))
        steps = epochs = 0
        reports: list[dict[str, float]] = []
        for _ in range(sgd.epochs if len(valid) or reduce is not None else 0):
            reports = []
            for rows in split_rows(valid, sgd.minibatch or every, rng, None if reduce is None else every):
                gradient, report = self._gradient({name: column[rows] for name, column in columns.items()}, now)
                self._step(gradient if reduce is None else mean_over_rows(gradient, len(rows), reduce), now)
                reports += [report] if len(rows) else []
                steps += 1
            epochs += 1
            if sgd.stop_above is not None:
                name, most = sgd.stop_above
                if agreed([report[name] for report in reports], reduce) > most:
                    break
        self.version += 1
        self.progress = sgd.progress
        last_pass = {name: _mean(reports, name) for name in (reports[0] if reports else {})}
        return Learned({**last_pass, "lr": now.lr, "gradient_steps": float(steps), "epochs": float(epochs)})

    def gradients(self, batch: Batch, sgd: Sgd) -> tuple[np.ndarray, dict[str, float]]:
        rows = batch.rows()
        columns = {name: column[rows] for name, column in _flat_columns(batch).items()}
        return self._gradient(columns, self.config.at(sgd.progress))

    def apply(self, flat: np.ndarray, sgd: Sgd) -> None:
        self._step(flat, self.config.at(sgd.progress))
        self.version += 1
        self.progress = sgd.progress

    def observed(self, batch: Batch) -> dict[str, Any]:
        return {}

    def observe(self, observed: Mapping[str, Any]) -> None:
        """It has no filters."""

    def _gradient(self, rows: Columns, now: SimpleNamespace) -> tuple[np.ndarray, dict[str, float]]:
        """The slopes of the loss by logits and values are written out by hand; `Net` takes them to the parameters."""
        if not len(rows["action"]):  # it only takes part in the others' step
            return np.zeros_like(self._flat), {"gradient_norm": 0.0}
        x, action, n = self._inputs(rows), rows["action"], np.float32(len(rows["action"]))
        advantage = rows["advantage"]
        if len(advantage) > 1:
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        logits, actor_features = self._actor.forward(self._actor_flat, x)
        values, critic_features = self._critic.forward(self._critic_flat, x)
        logp = log_softmax(logits, rows.get("mask"))
        p = np.exp(logp)
        entropy = -(p * logp).sum(1)
        error = values[:, 0] - rows["return"]

        chosen = np.zeros_like(p)
        np.put_along_axis(chosen, action[:, None], 1.0, 1)
        by_logits = (p - chosen) * advantage[:, None] + np.float32(now.entropy) * p * (logp + entropy[:, None])
        by_values = np.float32(now.value_coef) * error[:, None]
        gradient = np.concatenate(
            [
                self._actor.backward(self._actor_flat, x, actor_features, by_logits / n),
                self._critic.backward(self._critic_flat, x, critic_features, by_values / n),
            ]
        )
        report = {
            "policy_loss": -float((logp[np.arange(len(p)), action] * advantage).mean()),
            "value_loss": 0.5 * float(np.square(error).mean()),
            "entropy": float(entropy.mean()),
            "gradient_norm": float(np.linalg.norm(gradient)),
        }
        if broken := [name for name, value in report.items() if not np.isfinite(value)]:
            raise TrainingError(f"update {self.version + 1}: not finite: {', '.join(broken)}; try a lower --lr")
        return gradient, report

    def _step(self, gradient: np.ndarray, now: SimpleNamespace) -> None:
        scale = shrink(float(np.linalg.norm(gradient)), now.max_grad_norm)
        self._adam.step(self._flat, gradient * np.float32(scale), now.lr)

    # --- state ---

    def get_weights(self) -> Weights:
        return Weights(self._flat.copy(), self.version, self.progress)

    def set_weights(self, weights: Weights) -> None:
        self._flat[:] = weights.flat
        self.version, self.progress = weights.version, weights.progress

    def get_state(self, full: bool = False) -> dict[str, Any]:
        state: dict[str, Any] = {"flat": self._flat.copy(), "version": self.version, "progress": self.progress}
        if full:
            state |= {"optimizer": self._adam.get_state(), "rng": seeding.get_state(self._rng)}
        return state

    def set_state(self, state: dict[str, Any]) -> None:
        if state["flat"].shape != self._flat.shape:
            raise UsageError(f"the checkpoint has {state['flat'].size} parameters, this policy {self._flat.size}")
        self._flat[:] = state["flat"]
        self.version, self.progress = state["version"], state["progress"]
        if "optimizer" in state:
            self._adam.set_state(state["optimizer"])
            seeding.set_state(self._rng, state["rng"])


def log_softmax(logits: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
    """Log-probabilities per row; a choice that the mask rules out has probability exactly 0."""
    if mask is not None:
        logits = np.where(mask, logits, ILLEGAL)
    shifted = logits - logits.max(1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(1, keepdims=True))


def _flat_columns(batch: Batch) -> Columns:
    return {name: column.reshape(-1, *column.shape[2:]) for name, column in batch.cols.items()}


def _mean(reports: list[dict[str, float]], name: str) -> float:
    return sum(report[name] for report in reports) / len(reports)
