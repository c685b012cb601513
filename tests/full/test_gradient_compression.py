"""Top-k compression with error feedback: worked examples, books that balance, convergence."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.ranks.test_gradient_compression import plain as plain
from tests.ranks.test_gradient_compression import values

if TYPE_CHECKING:
    from portagpu.runs.world import Ranks

pytestmark = pytest.mark.torch


def test_training_converges_where_plain_ddp_does(training_ranks: Ranks, plain: list[float]) -> None:
    (losses, weights), (_, others) = values(training_ranks, "trains", density=0.02, steps=120)
    assert weights == others, "the ranks differ"
    assert plain[-1] < 0.8 * plain[0]
    assert losses[-1] < 1.05 * plain[-1]


def test_training_without_feedback_is_worse(training_ranks: Ranks, plain: list[float]) -> None:
    (losses, _), _ = values(training_ranks, "trains", density=0.02, steps=120, fault="dropped")
    assert losses[-1] > 1.3 * plain[-1]
