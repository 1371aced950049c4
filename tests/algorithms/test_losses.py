"""The losses: every figure worked out by hand, and wrong versions that give others."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from podium.algorithms import a2c, a3c, appo, impala, pg, ppo
from podium.algorithms.common.on_policy import normalized
from podium.policies.torch import Minibatch, Out


def now(**settings: Any) -> SimpleNamespace:
    plain = {"clip": 0.2, "value_clip": None, "value_coef": 0.0, "entropy": 0.0, "normalize_advantage": False}
    return SimpleNamespace(**{**plain, **settings})


def out(logp: list[float], value: list[float] | None = None, entropy: float = 0.0) -> Out:
    n = len(logp)
    values = torch.tensor(value or [0.0] * n, requires_grad=True)
    return Out(torch.zeros(n, 2), values, torch.tensor(logp, requires_grad=True), lambda: torch.full((n,), entropy))


def rows(**columns: list[float]) -> Minibatch:
    tensors = {name: torch.tensor(column) for name, column in columns.items()}
    return Minibatch(tensors, lambda column: column, len(next(iter(columns.values()))))


def gradient(total: Tensor, by: Tensor) -> list[float]:
    return torch.autograd.grad(total, by, retain_graph=True)[0].tolist()


# Ratios 3/2 and 1/2, each with an advantage of 1 and of -1.
LOGP = [math.log(1.5), math.log(1.5), math.log(0.5), math.log(0.5)]
FOUR = rows(
    logp=[0.0] * 4, advantage=[1.0, -1.0, 1.0, -1.0], **{"return": [0.0] * 4, "value": [0.0] * 4}
)  # fmt: skip


def test_ppo_clips_what_would_gain_and_only_that() -> None:
    """The terms are 1.2 (clipped), -1.5, 0.5 and -0.8 (clipped): minus their mean is 0.15."""
    given = out(LOGP)
    total, terms = ppo.loss(given, FOUR, now())
    assert terms["policy_loss"].item() == pytest.approx(0.15, abs=1e-6)
    assert gradient(total, given.logp) == pytest.approx([0.0, 0.375, -0.125, 0.0], abs=1e-6)
    assert terms["clipped"]().item() == 1.0
    assert terms["kl"]().item() == pytest.approx((2 * 0.0945349 + 2 * 0.1931472) / 4, abs=1e-6)


def test_the_greater_of_the_two_terms_or_no_clip_would_give_other_figures() -> None:
    ratio, advantage = torch.tensor(LOGP).exp(), FOUR["advantage"]
    greater = -torch.max(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean().item()
    assert greater == pytest.approx(-0.15, abs=1e-6)
    assert ppo.loss(out(LOGP), FOUR, now(clip=9.0))[1]["policy_loss"].item() == pytest.approx(0.0, abs=1e-6)


def test_ppo_inside_the_clip_is_the_plain_surrogate() -> None:
    given = out([math.log(1.1), math.log(0.9)])
    inside = rows(logp=[0.0, 0.0], advantage=[2.0, -3.0], value=[0.0, 0.0], **{"return": [0.0, 0.0]})
    total, terms = ppo.loss(given, inside, now())
    assert terms["policy_loss"].item() == pytest.approx(-(2.2 - 2.7) / 2, abs=1e-6)
    assert gradient(total, given.logp) == pytest.approx([-1.1, 1.35], abs=1e-6)
    assert terms["clipped"]().item() == 0.0


MOVED = rows(logp=[0.0, 0.0], advantage=[0.0, 0.0], value=[1.0, 1.0], **{"return": [1.5, 3.0]})


@pytest.mark.parametrize(
    ("value_clip", "expected", "slope"),
    [
        (None, 0.5 * (0.25 + 1.0) / 2, [0.25, -0.5]),
        (0.1, 0.5 * (0.25 + 3.61) / 2, [0.25, 0.0]),  # near values are 1.1: errors 0.16 and 3.61, the greater counts
        (5.0, 0.5 * (0.25 + 1.0) / 2, [0.25, -0.5]),
    ],
)
def test_ppo_value_loss(value_clip: float | None, expected: float, slope: list[float]) -> None:
    given = out([0.0, 0.0], value=[2.0, 2.0])
    total, terms = ppo.loss(given, MOVED, now(value_clip=value_clip, value_coef=1.0))
    assert terms["value_loss"].item() == pytest.approx(expected, abs=1e-6)
    assert gradient(total, given.value) == pytest.approx(slope, abs=1e-6)


@pytest.mark.parametrize("loss", [ppo.loss, a2c.loss])
def test_the_total_weighs_its_terms(loss: Any) -> None:
    given = out([0.1, -0.2], value=[2.0, 2.0], entropy=0.7)
    total, terms = loss(given, MOVED, now(value_coef=0.5, entropy=0.01))
    expected = terms["policy_loss"] + 0.5 * terms["value_loss"] - 0.01 * 0.7
    assert total.item() == pytest.approx(expected.item(), abs=1e-7)
    assert terms["value_loss"].item() == pytest.approx(0.3125) and terms["entropy"]().item() == pytest.approx(0.7)


def test_a2c_is_the_advantage_times_the_log_probability() -> None:
    given = out([-0.5, -2.0], value=[0.0, 0.0])
    batch = rows(advantage=[3.0, -1.0], **{"return": [0.0, 0.0]})
    total, terms = a2c.loss(given, batch, now())
    assert terms["policy_loss"].item() == pytest.approx(-(-1.5 + 2.0) / 2)
    assert gradient(total, given.logp) == [-1.5, 0.5]


def test_impala_weighs_the_advantage_by_the_clipped_ratio() -> None:
    """The terms are -0.5 * 1 * 3 and -2 * 0.5 * -1: minus their mean is 0.25, and -0.25 without the ratio."""
    given = out([-0.5, -2.0], value=[2.0, 2.0], entropy=0.7)
    batch = rows(advantage=[3.0, -1.0], rho=[1.0, 0.5], logp=[-0.5, -2.5], **{"return": [1.5, 3.0]})
    total, terms = impala.loss(given, batch, now(value_coef=0.5, entropy=0.01))
    assert terms["policy_loss"].item() == pytest.approx(0.25, abs=1e-6)
    assert terms["value_loss"].item() == pytest.approx(0.5 * (0.25 + 1.0) / 2, abs=1e-6)
    assert total.item() == pytest.approx(0.25 + 0.5 * 0.3125 - 0.01 * 0.7, abs=1e-6)
    assert gradient(total, given.logp) == pytest.approx([-1.5, 0.25], abs=1e-6)
    assert gradient(total, given.value) == pytest.approx([0.5 * 0.25, 0.5 * -0.5], abs=1e-6)
    assert (terms["rho"].item(), terms["entropy"].item()) == pytest.approx((0.75, 0.7))
    assert terms["kl"]().item() == pytest.approx((0.0 - 0.5) / 2, abs=1e-6)
    unweighed = a2c.loss(given, batch, now(value_coef=0.5))[1]["policy_loss"]
    assert unweighed.item() == pytest.approx(-0.25, abs=1e-6)


def test_impala_normalises_the_advantage_before_it_is_weighed() -> None:
    """Advantages 3 and -1 have mean 1 and (sample) deviation 2 sqrt 2, whatever their ratios."""
    given = out([-0.5, -2.0])
    batch = rows(advantage=[3.0, -1.0], rho=[1.0, 0.5], logp=[-0.5, -2.5], **{"return": [0.0, 0.0]})
    total, _ = impala.loss(given, batch, now(normalize_advantage=True))
    assert gradient(total, given.logp) == pytest.approx([-0.5 / math.sqrt(2), 0.25 / math.sqrt(2)], abs=1e-6)


def test_a3c_has_a2cs_loss_and_appo_has_ppos() -> None:
    assert a3c.loss is a2c.loss and appo.loss is ppo.loss


def test_pg_weighs_by_the_return_and_leaves_unfinished_rows_out() -> None:
    given = out([-0.5, -2.0, -1.0])
    batch = rows(weight=[1.0, 1.0, 0.0], **{"return": [3.0, -1.0, 100.0]})
    total, terms = pg.loss(given, batch, now())
    assert terms["policy_loss"].item() == pytest.approx(-(-1.5 + 2.0) / 2)
    assert gradient(total, given.logp) == [-1.5, 0.5, 0.0]
    again, _ = pg.loss(given, batch, now())
    assert again.item() == total.item()


def test_pg_normalises_over_the_finished_rows_alone() -> None:
    """Returns 1 and 3 have mean 2 and (sample) deviation sqrt 2; the unfinished row's return changes nothing."""
    batch = rows(weight=[1.0, 0.0, 1.0], **{"return": [1.0, 1e6, 3.0]})
    given = out([-0.5, -2.0, -1.0])
    total, _ = pg.loss(given, batch, now(normalize_advantage=True))
    assert gradient(total, given.logp) == pytest.approx([1 / math.sqrt(8), 0.0, -1 / math.sqrt(8)], abs=1e-6)


def test_pg_without_a_finished_row_has_nothing_to_learn() -> None:
    given = out([-0.5, -2.0])
    total, _ = pg.loss(given, rows(weight=[0.0, 0.0], **{"return": [1.0, 2.0]}), now(normalize_advantage=True))
    assert total.item() == 0.0 and gradient(total, given.logp) == [0.0, 0.0]


def test_advantages_are_normalised_if_the_settings_ask_for_it() -> None:
    advantage = torch.tensor([1.0, 2.0, 6.0])
    deviation = math.sqrt((4 + 1 + 9) / 2)
    expected = [-2 / deviation, -1 / deviation, 3 / deviation]
    assert normalized(advantage, now(normalize_advantage=True)).tolist() == pytest.approx(expected, abs=1e-6)
    assert normalized(advantage, now()) is advantage
    assert normalized(advantage[:1], now(normalize_advantage=True)).tolist() == [1.0]
