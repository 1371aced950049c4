"""What evaluators give: samples of experience, gradients, and reports of what was counted on the way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from podium.core.batch import Batch, concat
from podium.core.metrics import Metrics

ONLY = "default"  # the policy id where there is one policy
WORK = ("env", "inference", "postprocess", "gradients")
"""The stages of a worker's own time."""


@dataclass
class Report:
    """What some work came to: env steps and finished episodes (return, length), figures, and seconds by stage, added up
    over the samplers and learners that worked side by side; `overlapping` if these did not wait for those."""

    env_steps: int = 0
    episodes: list[tuple[float, int]] = field(default_factory=list)
    metrics: Metrics = field(default_factory=Metrics)
    timers: dict[str, float] = field(default_factory=dict)
    samplers: int = 0
    learners: int = 0
    slowest_s: float = 0.0
    overlapping: bool = False


@dataclass
class Sample:
    """Experience keyed by policy, gathered with the weights of one version, and what was counted meanwhile."""

    batches: dict[str, Batch]
    version: int
    report: Report

    @property
    def nbytes(self) -> int:
        return sum(batch.nbytes for batch in self.batches.values())


@dataclass
class Gradients:
    """The gradient of a loss by all parameters, at the weights of a version, and what the filters are to see."""

    flat: np.ndarray
    version: int
    report: Report
    rows: int
    observed: Mapping[str, Any] = field(default_factory=dict)


def merge_reports(reports: Sequence[Report]) -> Report:
    """Reports of work that went on side by side, as one, in their order."""
    names = dict.fromkeys(name for report in reports for name in report.timers)
    return Report(
        sum(report.env_steps for report in reports),
        [episode for report in reports for episode in report.episodes],
        Metrics.merge([report.metrics for report in reports]),
        {name: sum(report.timers.get(name, 0.0) for report in reports) for name in names},
        sum(report.samplers for report in reports),
        sum(report.learners for report in reports),
        max((report.slowest_s for report in reports), default=0.0),
    )


def in_turn(reports: Sequence[Report]) -> Report:
    """Reports of the same ones' work, one after the other, as one."""
    merged = merge_reports(reports)
    merged.samplers, merged.learners = (max(getattr(one, who) for one in reports) for who in ("samplers", "learners"))
    merged.slowest_s = sum(report.slowest_s for report in reports)
    return merged


def concat_samples(samples: Sequence[Sample]) -> Sample:
    """Samples of several evaluators as one, their batches side by side in the given order."""
    head = samples[0]
    return Sample(
        {name: concat([sample.batches[name] for sample in samples]) for name in head.batches},
        min(sample.version for sample in samples),
        merge_reports([sample.report for sample in samples]),
    )
