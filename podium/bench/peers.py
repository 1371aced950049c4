"""Stable-Baselines3 as a contender, as its users run it: its algorithms, its own vector env, through `learn` alone."""

from __future__ import annotations

import importlib.util
from time import perf_counter
from typing import Any

from podium.bench.bare import PPOSettings
from podium.bench.measure import rate
from podium.bench.peers_replay import make_peer

WARM_UP = 5


def installed() -> bool:
    return importlib.util.find_spec("stable_baselines3") is not None


def _ppo(kind: type[Any], env: str, settings: PPOSettings) -> Any:
    from stable_baselines3.common.env_util import make_vec_env

    return kind(
        "MlpPolicy",
        make_vec_env(env, n_envs=settings.envs, seed=0),
        n_steps=settings.fragment,
        batch_size=settings.minibatch,
        n_epochs=settings.epochs,
        learning_rate=settings.lr,
        gamma=settings.gamma,
        gae_lambda=settings.gae_lambda,
        clip_range=settings.clip,
        vf_coef=settings.value_coef,
        ent_coef=settings.entropy,
        max_grad_norm=settings.max_grad_norm,
        device="cpu",
        seed=0,
    )


def _measure(model: Any, per_iteration: int, seconds: float) -> float:
    """The rate over a `learn` of whole iterations, as many as those before it suggest for this long."""
    warming = WARM_UP * per_iteration
    began = perf_counter()
    model.learn(warming)
    expected = warming / (perf_counter() - began) * seconds
    steps = max(round(expected / per_iteration), 1) * per_iteration
    before, began = model.num_timesteps, perf_counter()
    model.learn(steps, reset_num_timesteps=False)
    return (model.num_timesteps - before) / (perf_counter() - began)


class Learning:
    """PPO from its first step, new in each measurement."""

    def __init__(self, env: str, settings: PPOSettings) -> None:
        self._env, self._settings = env, settings

    def measure(self, seconds: float) -> float:
        from stable_baselines3 import PPO

        model = _ppo(PPO, self._env, self._settings)
        try:
            return _measure(model, self._settings.envs * self._settings.fragment, seconds)
        finally:
            model.env.close()

    def close(self) -> None:
        """Nothing outlives a measurement."""


class Sampling:
    """PPO whose updates are left out: its rollouts, with the advantages that end them."""

    def __init__(self, env: str, envs: int, fragment: int) -> None:
        from stable_baselines3 import PPO

        class Rollouts(PPO):
            def train(self) -> None:
                """Learn nothing."""

        self._per_iteration = envs * fragment
        settings = PPOSettings(envs=envs, fragment=fragment, minibatch=envs * fragment)
        self._model = _ppo(Rollouts, env, settings)
        self._model.learn(self._per_iteration)

    def measure(self, seconds: float) -> float:
        return rate(self._iterate, seconds)

    def _iterate(self) -> int:
        self._model.learn(self._per_iteration, reset_num_timesteps=False)
        return self._per_iteration

    def close(self) -> None:
        self._model.env.close()


class ReplayLearning:
    """SAC or TD3 from its first step, new in each measurement; counted are its updates."""

    def __init__(self, algo: str, env: str, config: Any, warm_up: int) -> None:
        self._algo, self._env, self._config, self._warm_up = algo, env, config, warm_up

    def measure(self, seconds: float) -> float:
        model = self._model()
        try:
            began_after = self._config.learning_starts
            model.learn(began_after)
            began = perf_counter()
            model.learn(self._warm_up, reset_num_timesteps=False)
            steps = max(round(self._warm_up / (perf_counter() - began) * seconds), 1)
            before, began = model._n_updates, perf_counter()
            model.learn(steps, reset_num_timesteps=False)
            return (model._n_updates - before) / (perf_counter() - began)
        finally:
            model.env.close()

    def _model(self) -> Any:
        from stable_baselines3.common.env_util import make_vec_env

        return make_peer(self._algo, self._config, make_vec_env(self._env, n_envs=1, seed=0))

    def close(self) -> None:
        """Nothing outlives a measurement."""
