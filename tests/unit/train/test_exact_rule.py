"""The largest integers of which sums of products are exact."""

from __future__ import annotations

import math

import pytest

from portagpu.train.exact.judge import fullest

BYTES = (255, 255)


def test_few_terms_have_all_bits_of_their_format() -> None:
    # 16 * 255 * 255 is below 2**24 in any case
    assert fullest(16, 24, BYTES) == BYTES
    assert fullest(16, 24, (127, 64)) == (127, 64)


@pytest.mark.parametrize("bits", [14, 24, 53])
@pytest.mark.parametrize("terms", [1, 2, 31, 512, 4096, 8192])
def test_average_sums_fit_and_larger_integers_would_not(terms: int, bits: int) -> None:
    most = (1 << 26) - 1
    v, w = fullest(terms, bits, (most, most))

    def average(v: int, w: int) -> float:
        return terms * math.sqrt(v * (v + 1) * w * (w + 1)) / 3

    assert min(average(v, w), terms * v * w) <= 2.0**bits
    # the margin for chance is below 6 * 0.9 of sqrt(terms); a fifth more of both is too much
    larger = 2 * v + 1, 2 * w + 1
    assert max(v, w) == most or average(*larger) > 2.0**bits


def test_what_one_format_has_no_bits_for_the_other_one_gets() -> None:
    v, w = fullest(512, 24, (1 << 24, 7))
    assert w == 7
    assert v > fullest(512, 24, (1 << 24, 1 << 24))[0] ** 2 / 14


def test_sums_that_no_integers_keep_exact_have_none() -> None:
    # 2/3 of 2**15 terms of -1 to 1 are not zero: more than 2**14
    assert fullest(1 << 15, 14, (15, 15)) == (0, 0)
    assert fullest(1 << 14, 14, (15, 15)) == (1, 1)
