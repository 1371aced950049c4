"""Returns and advantages over `[T, N]` rewards: discounted, n-step, GAE, V-trace. Any array namespace works.

All take `next_values`: the value of the state that each step led to, by the caller's reckoning already right for a
truncated episode (the value of its final observation). A `terminated` step has no future; a `done` step (terminated or
truncated) has no future *within the fragment*, so nothing of the next episode flows back over it. Both are bool or 0/1.
"""

from __future__ import annotations

from typing import Any

Array = Any


def bootstrap(next_values: Array, terminated: Array) -> Array:
    """The values to bootstrap from: none after a true end, the final observation's after a truncation."""
    return next_values * (terminated == 0)


def discounted(rewards: Array, next_values: Array, terminated: Array, done: Array, gamma: float) -> Array:
    """The discounted sum to the episode's end, or to the fragment's end plus the bootstrapped value."""
    future = bootstrap(next_values, terminated)
    returns = rewards + gamma * future
    goes_on = done == 0
    for t in range(len(rewards) - 2, -1, -1):
        returns[t] = rewards[t] + gamma * (done[t] * future[t] + goes_on[t] * returns[t + 1])
    return returns


def n_step(rewards: Array, next_values: Array, terminated: Array, done: Array, gamma: float, n: int) -> Array:
    """The sum of up to `n` discounted rewards plus the bootstrapped value of where they lead; shorter at an end."""
    future = bootstrap(next_values, terminated)
    returns = rewards + gamma * future
    goes_on = done == 0
    for _ in range(n - 1):
        longer = rewards[:-1] + gamma * (done[:-1] * future[:-1] + goes_on[:-1] * returns[1:])
        returns[:-1] = longer
    return returns


def n_step_parts(rewards: Array, done: Array, gamma: float, n: int) -> tuple[Array, Array]:
    """For those who bootstrap from more than a value: the sum of up to `n` discounted rewards, and of how many; fewer at
    an end, which may be that of the fragment."""
    gain, summed = rewards + 0.0, done * 0 + 1
    reaches = (done == 0)[:-1]
    for ahead in range(1, min(n, len(rewards))):
        gain[:-ahead] += gamma**ahead * (reaches * rewards[ahead:])
        summed[:-ahead] += reaches
        reaches = (reaches * (done[ahead:] == 0))[:-1]
    return gain, summed


def gae(
    rewards: Array, values: Array, next_values: Array, terminated: Array, done: Array, gamma: float, lam: float
) -> Array:
    """Generalised advantage estimation."""
    advantages = rewards + gamma * bootstrap(next_values, terminated) - values
    goes_on = done == 0
    for t in range(len(rewards) - 2, -1, -1):
        advantages[t] += gamma * lam * (goes_on[t] * advantages[t + 1])
    return advantages


def vtrace(
    rewards: Array,
    values: Array,
    next_values: Array,
    terminated: Array,
    done: Array,
    log_ratio: Array,
    gamma: float,
    rho_clip: float = 1.0,
    c_clip: float = 1.0,
) -> tuple[Array, Array]:
    """V-trace targets for the values, and policy gradient advantages, from `log_ratio` = log pi - log mu."""
    future = bootstrap(next_values, terminated)
    ratio = _exp(log_ratio)
    rho = ratio.clip(max=rho_clip)
    goes_on = done == 0
    carry = gamma * ratio.clip(max=c_clip) * goes_on
    correction = rho * (rewards + gamma * future - values)
    for t in range(len(rewards) - 2, -1, -1):
        correction[t] += carry[t] * correction[t + 1]
    targets = values + correction
    next_targets = future + 0.0
    next_targets[:-1] = done[:-1] * future[:-1] + goes_on[:-1] * targets[1:]
    return targets, rho * (rewards + gamma * next_targets - values)


def _exp(x: Array) -> Array:
    return x.exp() if hasattr(x, "exp") else x.__array_namespace__().exp(x)
