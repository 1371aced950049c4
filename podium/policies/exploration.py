"""Exploration beside the policy's own choice: epsilon-greedy, with an epsilon for each env."""

from __future__ import annotations

import numpy as np


def spread(epsilon: float, n: int, power: float, player: tuple[int, int] = (1, 1)) -> np.ndarray:
    """An epsilon for each of the n envs of a player, which is one of several (Horgan et al., 2018): of all their envs the
    first explores most, each next one by a higher power."""
    number, players = player
    if n * players == 1 or not power:
        return np.full(n, epsilon)
    return epsilon ** (1.0 + power * ((number - 1) * n + np.arange(n)) / (n * players - 1))


def epsilon_greedy(
    greedy: np.ndarray, epsilon: np.ndarray, choices: int, draws: np.ndarray, mask: np.ndarray | None = None
) -> np.ndarray:
    """The greedy choices, but a random (legal) one where the first of two uniform draws falls below epsilon."""
    explores, which = draws
    if mask is None:
        random = np.minimum((which * choices).astype(np.int64), choices - 1)
    else:
        legal = mask.sum(axis=1)
        place = np.minimum((which * legal).astype(np.int64), legal - 1)
        random = (mask.cumsum(axis=1) > place[:, None]).argmax(axis=1)
    return np.where(explores < epsilon, random, greedy)
