"""What a policy needs of a trajectory to finish it, whatever framework it is written in."""

from __future__ import annotations

import numpy as np

from podium.core.batch import Batch
from podium.core.spaces import Columns, under
from podium.policies.base import Policy


def next_values(policy: Policy, batch: Batch) -> np.ndarray:
    """The value of the state that each row led to: the next row's, the observation after the last row's, and at the end
    of an episode whose env already shows the next one, that of its final observation."""
    values = np.empty_like(batch["value"])
    values[:-1] = batch["value"][1:]
    values[-1] = policy.values(*_obs_and_state(batch.last))
    finals = batch.finals
    if finals is not None:
        cut = batch["truncated"][finals.t, finals.n]
        if cut.any():
            rows = {name: column[cut] for name, column in finals.cols.items()}
            values[finals.t[cut], finals.n[cut]] = policy.values(*_obs_and_state(rows))
    return values


def _obs_and_state(columns: Columns) -> tuple[Columns, Columns]:
    return under(columns, "obs"), under(columns, "state")
