"""The bottleneck meter: what an iteration's time went to, and one word for what limits the run."""

from __future__ import annotations

from podium.evaluation.sample import WORK, Report

STAGES = ("env", "inference", "learning", "transport", "waiting")
LEARNER = ("learn", "concat", "load", "insert", "draw")
"""The stages of a learner's own time."""


def shares(report: Report, seconds: float, apart: bool = True) -> dict[str, float]:
    """The share of an iteration's seconds that each stage took.

    Times inside workers and learners are means over those who work side by side, or sums where they are not `apart` and
    wait for each other. Where sampling and learning overlap, the shares add up to more than one. Transport is what the
    controller waited for beyond the slowest worker's and the learner's own time; waiting is what is left, with the time
    that quicker workers wait for the slowest.
    """
    timers = report.timers
    samplers, learners = (max(report.samplers, 1), max(report.learners, 1)) if apart else (1, 1)
    slowest = report.slowest_s if apart else sum(timers.get(name, 0.0) for name in WORK)
    overlapping = report.overlapping and apart
    env = timers.get("env", 0.0) / samplers
    acting = (timers.get("inference", 0.0) + timers.get("postprocess", 0.0)) / samplers
    gradients = timers.get("gradients", 0.0) / samplers
    learner = sum(timers.get(name, 0.0) for name in LEARNER) / learners
    if not apart:
        learner += timers.get("replay", 0.0)  # that of shards, which else work beside the learner
    learning = learner + gradients
    beyond = 0.0
    if "sampling" in timers and not overlapping:
        beyond += max(timers["sampling"] - slowest, 0.0)
    if "learning" in timers and not overlapping:
        inside = learner if "sampling" in timers else learner + slowest
        beyond += max(timers["learning"] - inside, 0.0)
    seconds = max(seconds, 1e-9)
    busy = max(env + acting + gradients, learner) if overlapping else env + acting + learning + beyond
    found = (env, acting, learning, beyond, max(seconds - busy, 0.0))
    return {stage: min(part / seconds, 1.0) for stage, part in zip(STAGES, found, strict=True)}


def limit(shares: dict[str, float]) -> str:
    """The stage with the greatest share."""
    return max(shares, key=lambda stage: shares[stage])
