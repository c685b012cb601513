"""What a screen's counts say, its seeds, and who is to blame for a wrong result."""

from __future__ import annotations

import hashlib
import math
from datetime import UTC, datetime

from portagpu.suites.screen.tally import (
    excluded_rate,
    judged_in_words,
    recurrence,
    recurrence_in_words,
)
from portagpu.train.exact.draws import batch_seed, campaign_of

# ---- rates


def test_the_excluded_rate_would_have_shown_a_wrong_result() -> None:
    """At that rate, 95 of 100 screens see at least one: (1 - p)**n is 0.05."""
    for results in (100, 65_536, 10**12):
        rate = excluded_rate(results)
        assert rate is not None
        missed = math.exp(results * math.log1p(-rate))
        assert 0.045 < missed < 0.0501, results


def test_too_few_results_exclude_no_rate() -> None:
    assert excluded_rate(0) is excluded_rate(2) is None
    assert judged_in_words(2, 1) == "2 results of 1 inputs, none wrong"


def test_words_have_both_counts_and_the_rate() -> None:
    assert judged_in_words(1_500_000, 200_000) == (
        "1,500,000 results of 200,000 inputs, none wrong: "
        "a rate above 2e-06 on such inputs is excluded at 95 %"
    )


def test_repetitions_are_permanent_intermittent_or_gone() -> None:
    assert [recurrence(*each) for each in ((100, 100), (7, 100), (0, 100), (0, 0))] == [
        "permanent",
        "intermittent",
        "gone",
        "not repeated",
    ]
    assert recurrence_in_words(7, 100) == (
        "intermittent: wrong in 7 of 100 repetitions of the same operands"
    )
    assert recurrence_in_words(7, 100, 3) == (
        "intermittent: wrong in 7 of 100 repetitions of the same operands, in 3 ways"
    )
    assert recurrence_in_words(100, 100, 1) == (
        "permanent: wrong in 100 of 100 repetitions of the same operands, in the same bits"
    )
    # one outcome differs from no other
    assert "ways" not in recurrence_in_words(1, 100, 1) + recurrence_in_words(0, 100, 0)


# ---- seeds


def test_a_campaign_is_a_day_in_utc() -> None:
    assert campaign_of(datetime(2026, 12, 1, 23, 59, tzinfo=UTC)) == 20261201


def test_seeds_are_of_day_probe_and_batch() -> None:
    # splitmix64 of the first eight bytes of the SHA-256, by hand
    mask = (1 << 64) - 1
    value = int.from_bytes(hashlib.sha256(b"20261201\0vectors/a").digest()[:8], "little") + 5
    value &= mask
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & mask
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & mask
    assert batch_seed(20261201, "vectors/a", 5) == value ^ (value >> 31)
    all_seeds = {
        batch_seed(day, probe, batch)
        for day in (20261201, 20261202)
        for probe in ("vectors/a", "vectors/b")
        for batch in range(1000)
    }
    assert len(all_seeds) == 4000
