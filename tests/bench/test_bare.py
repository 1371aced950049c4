"""The bare loops: the same figures as Podium's own code from the same weights, right counts, and they learn."""

from __future__ import annotations

import ast
import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from podium import algorithms
from podium.bench import bare
from podium.core.batch import Batch
from podium.core.spaces import Box, Discrete, Leaf
from podium.policies.base import Sgd
from podium.policies.torch import TorchPolicy

SETTINGS = bare.PPOSettings()


def podium_policy(action_space: Leaf) -> TorchPolicy:
    """The policy of a ppo run with the benchmark's settings, its heads wide enough that no figure is near zero."""
    ppo = algorithms.get("ppo")
    config = ppo.configure(None, {**dataclasses.asdict(SETTINGS), "log_std": -0.3})
    policy = ppo.policy(config, Box.of(-5, 5, (4,)), action_space, 3)
    assert isinstance(policy, TorchPolicy)
    with torch.no_grad():
        policy.model.get_parameter("policy_head.weight").mul_(50)
    return policy


def as_bare(theirs: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
    """A tensor for each parameter of Podium's model (a weight, or its gradient) by the bare network's names: the policy's
    trunk comes first there."""
    own = {}
    for index, name in enumerate(("policy", "value")):
        for layer in (0, 1):
            own[f"{name}.{2 * layer}.weight"] = theirs[f"trunks.weights.{layer}"][index].T
            own[f"{name}.{2 * layer}.bias"] = theirs[f"trunks.biases.{layer}"][index, 0]
        own[f"{name}.4.weight"], own[f"{name}.4.bias"] = theirs[f"{name}_head.weight"], theirs[f"{name}_head.bias"]
    own |= {"log_std": theirs["free"]} if "free" in theirs else {}
    return {name: torch.from_numpy(np.ascontiguousarray(part)) for name, part in own.items()}


def bare_twin(policy: TorchPolicy, outputs: int, free: int = 0) -> bare.ActorCritic:
    """The bare network with the policy's weights."""
    network = bare.ActorCritic(4, outputs, free)
    network.load_state_dict(as_bare(policy.get_state()["model"]))
    return network


def split(policy: TorchPolicy, flat: np.ndarray) -> dict[str, np.ndarray]:
    """A flat gradient by the parameters' names."""
    named = list(policy.model.named_parameters())
    ends = np.cumsum([parameter.numel() for _, parameter in named])
    assert ends[-1] == len(flat)
    parts = np.split(flat, ends[:-1])
    return {name: part.reshape(parameter.shape) for (name, parameter), part in zip(named, parts, strict=True)}


def observations(n: int) -> np.ndarray:
    return np.random.default_rng(1).normal(size=(n, 4)).astype(np.float32)


def test_choices_have_podiums_log_probs_and_values() -> None:
    policy, obs = podium_policy(Discrete(3)), observations(500)
    acted = policy.act({"obs": obs}, {})
    logits, value = bare_twin(policy, 3)(torch.from_numpy(obs))
    logp, _ = bare.choice_log_prob(logits, torch.from_numpy(acted.action))
    assert acted.extra["logp"].std() > 0.05
    np.testing.assert_allclose(logp.detach(), acted.extra["logp"], atol=1e-5)
    np.testing.assert_allclose(value.detach(), acted.extra["value"], atol=1e-5)


def test_normal_actions_have_podiums_log_probs_and_values() -> None:
    policy, obs = podium_policy(Box.of(-1, 1, (2,))), observations(500)
    acted = policy.act({"obs": obs}, {})
    network = bare_twin(policy, 2, free=2)
    mean, value = network(torch.from_numpy(obs))
    log_std = network.get_parameter("log_std")
    logp = torch.distributions.Normal(mean, log_std.exp()).log_prob(torch.from_numpy(acted.action)).sum(-1)
    np.testing.assert_allclose(logp.detach(), acted.extra["logp"], atol=1e-4)
    np.testing.assert_allclose(value.detach(), acted.extra["value"], atol=1e-5)
    action, own_logp = bare.sample_normal(mean, log_std, torch.Generator().manual_seed(0))
    again = torch.distributions.Normal(mean, log_std.exp()).log_prob(action).sum(-1)
    np.testing.assert_allclose(own_logp.detach(), again.detach(), atol=1e-4)


def test_choices_come_as_often_as_their_probability() -> None:
    logits = torch.tensor([0.0, math.log(3.0)]).expand(40_000, 2)
    action, logp = bare.sample_choice(logits, torch.Generator().manual_seed(0))
    assert action.float().mean() == pytest.approx(0.75, abs=0.01)
    np.testing.assert_allclose(logp[action == 1], math.log(0.75), atol=1e-6)
    np.testing.assert_allclose(logp[action == 0], math.log(0.25), atol=1e-6)


def test_the_loss_has_podiums_gradient() -> None:
    policy, n = podium_policy(Discrete(2)), 256
    rng, obs = np.random.default_rng(2), observations(256)
    action = rng.integers(2, size=n)
    advantage, target = rng.normal(size=n).astype(np.float32), rng.normal(size=n).astype(np.float32)
    network = bare_twin(policy, 2)
    with torch.no_grad():
        now = bare.choice_log_prob(network(torch.from_numpy(obs))[0], torch.from_numpy(action))[0].numpy()
    logp = now + rng.normal(scale=0.3, size=n).astype(np.float32)
    columns = {"obs": obs, "action": action, "logp": logp, "advantage": advantage, "return": target}
    batch = Batch({name: column[:, None] for name, column in columns.items()})
    theirs, report = policy.gradients(batch, Sgd())

    rows = bare.Rows(*(torch.from_numpy(column) for column in (obs, action, logp, advantage, target)))
    loss = bare.ppo_loss(network, rows, SETTINGS)
    loss.backward()
    assert loss.item() == pytest.approx(report["loss"], abs=1e-5)
    assert 0.1 < report["clipped"] < 0.9
    assert np.abs(theirs).max() > 1e-2
    for name, expected in as_bare(split(policy, theirs)).items():
        gradient = network.get_parameter(name).grad
        assert gradient is not None
        np.testing.assert_allclose(gradient, expected, atol=1e-5, err_msg=name)


def test_advantages_bootstrap_over_a_cut_and_not_over_an_end() -> None:
    """One column per env, gamma and lambda 0.5: the first is cut at its first step, the second ends there."""
    reward = np.array([[1.0, 1.0], [0.0, 0.0], [2.0, 2.0]], np.float32)
    value = np.array([[4.0, 4.0], [8.0, 8.0], [2.0, 2.0]], np.float32)
    ends, cuts = np.zeros((3, 2), bool), np.zeros((3, 2), bool)
    cuts[0, 0] = ends[0, 1] = True
    found = bare.gae(reward, value, np.array([6.0, 6.0], np.float32), ends, cuts, 0.5, 0.5)
    last = 2 + 0.5 * 6 - 2
    middle = 0 + 0.5 * 2 - 8 + 0.25 * last
    expected = [[1 + 0.5 * 8 - 4, 1 - 4], [middle, middle], [last, last]]
    np.testing.assert_allclose(found, expected)


def test_steps_that_only_begin_an_episode_are_not_counted() -> None:
    """CartPole pays 1 for each step of the game and 0 for the one that only resets."""
    env = bare.make_env("CartPole-v1", 16, {})
    loop = bare.Sampling(env, bare.network_for(env), 50)
    for _ in range(3):
        assert loop.collect() == loop.reward.sum() < 16 * 50


def test_the_sampling_loop_keeps_what_it_saw_and_did() -> None:
    env = bare.make_env("CartPole-v1", 8, {})
    network = bare.network_for(env)
    loop = bare.Sampling(env, network, 20)
    loop.collect()
    with torch.no_grad():
        logits, value = network(torch.from_numpy(loop.obs.reshape(-1, 4)))
        logp, _ = bare.choice_log_prob(logits, torch.from_numpy(loop.action.reshape(-1)))
    np.testing.assert_allclose(loop.logp.reshape(-1), logp, atol=1e-5)
    np.testing.assert_allclose(loop.value.reshape(-1), value, atol=1e-5)
    goes_on = ~(loop.terminated | loop.truncated | loop.resetting)[:-1]
    pushed = np.sign(loop.obs[1:, :, 1] - loop.obs[:-1, :, 1])[goes_on]
    np.testing.assert_array_equal(pushed, np.where(loop.action[:-1][goes_on] == 1, 1, -1))


def test_the_bare_ppo_learns() -> None:
    torch.manual_seed(0)
    env = bare.make_env("CartPole-v1", SETTINGS.envs, {})
    loop = bare.PPO(env, bare.network_for(env), SETTINGS)
    ended, steps, late = 0, 0, 0
    while steps < 16_000:
        new = loop.iterate()
        steps += new
        if steps > 11_000:
            late += new
            ended += int((loop.sampling.terminated | loop.sampling.truncated).sum())
    assert late / ended > 100, "episodes of random play last 22 steps"


def test_the_bare_loops_have_nothing_of_the_library() -> None:
    tree = ast.parse(Path(bare.__file__).read_text())
    modules = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    modules |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert "torch" in modules
    assert not [name for name in modules if name.startswith("podium")]
