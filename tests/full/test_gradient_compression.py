"""Top-k compression with error feedback: worked examples, books that balance, convergence."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.ranks.test_gradient_compression import _balance, values, words

if TYPE_CHECKING:
    from portagpu.runs.world import Ranks

pytestmark = pytest.mark.torch


SAME = [[-5.0, -2.0, 1.0, 4.0], [2.0, 5.0, -3.0, 0.0]]


@pytest.fixture(scope="module")
def plain(training_server: Ranks) -> list[float]:
    """The losses of DDP without compression, in float64."""
    (losses, _), (others, _) = values(training_server, "trains", density=0, steps=120)
    assert losses == others
    return losses


def test_training_converges_where_plain_ddp_does(training_ranks: Ranks, plain: list[float]) -> None:
    (losses, weights), (_, others) = values(training_ranks, "trains", density=0.02, steps=120)
    assert weights == others, "the ranks differ"
    assert plain[-1] < 0.8 * plain[0]
    assert losses[-1] < 1.05 * plain[-1]


def test_training_without_feedback_is_worse(training_ranks: Ranks, plain: list[float]) -> None:
    (losses, _), _ = values(training_ranks, "trains", density=0.02, steps=120, fault="dropped")
    assert losses[-1] > 1.3 * plain[-1]


def test_two_steps_of_two_ranks_are_as_worked_out_by_hand(training_ranks: Ranks) -> None:
    """In the second step 4 and -4 of rank 0 are equal: the first of them is sent."""
    found = values(training_ranks, "one_parameter", gradients=[SAME, SAME], density=0.5)
    averages = [words(-2.5, 2.5, -1.5, 2.0), words(-0.5, 0.5, 0, 0)]
    kept = [
        [words(0, -2, 1, 0), words(0, 0, 2, 4)],
        [words(2, 0, 0, 0), words(0, 0, -3, 0)],
    ]
    assert found == [list(map(list, zip(averages, kept[rank], strict=True))) for rank in range(2)]


def test_everything_sent_is_plain_ddp(training_ranks: Ranks, plain: list[float]) -> None:
    (losses, _), _ = values(training_ranks, "trains", density=1.0, steps=30)
    assert losses == pytest.approx(plain[:3], rel=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_all_ranks_have_the_same_bits(training_ranks: Ranks, dtype: str) -> None:
    found = values(training_ranks, "trains", 4, density=0.1, steps=20, dtype=dtype, bits_only=True)
    assert all(each[1] == found[0][1] for each in found)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("density", [0.05, 0.3, 1.0])
def test_what_was_sent_and_what_is_kept_are_the_gradients(
    training_ranks: Ranks, dtype: str, density: float
) -> None:
    """All are whole numbers, so that each sum is exact; buckets change after the first step."""
    found = values(training_ranks, "books", density=density, steps=6, dtype=dtype)
    assert found[0]["applied"] == found[1]["applied"], "the ranks differ"
    assert _balance(found) == [0.0] * 4
    assert any(any(each) for each in found[0]["had"])
    kept = sum(abs(number) for each in found[0]["kept"] for number in each)
    assert (kept == 0) is (density == 1.0)
    first = found[0]["buckets"][:2]
    assert found[0]["buckets"].count(first[0]) < 6, "DDP made no other buckets: nothing was shown"
