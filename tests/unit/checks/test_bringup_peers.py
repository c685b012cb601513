"""Ranks against their peers: slow every time is a culprit, slow once is not."""

from __future__ import annotations

import pytest

from portagpu.checks.bringup.checks.collectives import confirmed_results
from portagpu.runs.judges.peers import compare_peers
from portagpu.runs.results.run import Result, Verdict
from portagpu.suites.performance import Comparison

NAMES = [f"rank {number}" for number in range(4)]


def comparison(slow=(), wrong=()):
    rates = {name: 1.0 if name in slow else 10.0 + number for number, name in enumerate(NAMES)}
    compared = compare_peers(rates, relative=0.5)
    named = {outlier.name for outlier in compared.outliers}
    assert named == set(slow), "the made-up numbers are not what the test means"
    results = []
    for name in NAMES:
        reason = "90% below the median of its peers" if name in slow else ""
        if name in wrong:
            reason = "wrong product"
        verdict = Verdict.FAIL if reason else Verdict.PASS
        results.append(
            Result(
                id="ranks/gemm",
                suite="performance",
                area="ranks",
                verdict=verdict,
                device=name,
                reason=reason,
            )
        )
    return Comparison({}, compared, tuple(results))


def run(*comparisons):
    waiting = list(comparisons)
    results = confirmed_results(lambda: waiting.pop(0))
    failed = {result.device for result in results if result.verdict is Verdict.FAIL}
    return failed, len(comparisons) - len(waiting), results


def test_ranks_that_agree_are_compared_once():
    failed, compared, _ = run(comparison(), comparison())
    assert (failed, compared) == (set(), 1)


def test_a_rank_that_is_slow_every_time_is_the_culprit():
    failed, compared, _ = run(*[comparison(slow=["rank 2"])] * 3)
    assert (failed, compared) == ({"rank 2"}, 3)


@pytest.mark.parametrize("second", [(), ("rank 3",)])
def test_a_rank_that_was_slow_once_is_not_blamed(second):
    failed, compared, results = run(comparison(slow=["rank 2"]), comparison(slow=second))
    assert (failed, compared) == (set(), 2)
    for name in second:
        (again,) = [result for result in results if result.device == name]
        assert again.reason == "90% below the median of its peers, but not every time"


def test_a_wrong_product_fails_at_once():
    failed, compared, _ = run(comparison(slow=["rank 2"], wrong=["rank 0"]))
    assert (failed, compared) == ({"rank 0", "rank 2"}, 1)
