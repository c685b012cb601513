"""Tuning back ends: their state, and what they gain, on a library that is made up."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from portagpu.runs.results.run import Verdict
from tests.ranks.test_bench_tuning import (
    measured,
)

if TYPE_CHECKING:
    from portagpu.runs.world import Ranks


@pytest.mark.torch
def test_a_first_launch_is_one_of_a_new_process(training_ranks: Ranks) -> None:
    pytest.importorskip("triton")
    found = measured(training_ranks, "tuning/triton_cache", "first_launches_in_the_interpreter")
    assert found.verdict is Verdict.SKIP, found.reason
    assert "the cache is off" in found.reason
    # outside of the interpreter Triton has no CPU
    refused = measured(training_ranks, "tuning/triton_cache", "first_launches_on_a_cpu")
    assert refused.verdict is Verdict.ERROR
    assert (
        "no first launch: portagpu.suites.performance.first_launch failed: Unsupported"
        in refused.reason
    )


@pytest.mark.torch
@pytest.mark.parametrize("fault", ["a_tuner_of_products", "a_tuner_of_convolutions"])
def test_a_gain_is_the_time_without_over_the_time_with(training_ranks: Ranks, fault: str) -> None:
    found = measured(training_ranks, "tuning/library[demo]", fault)
    assert found.verdict in (Verdict.UNVERIFIED, Verdict.INCONCLUSIVE), found.reason
    assert found.value is not None
    assert found.extra["state"] == {
        "on": True, "warm": True, "valid": False, "where": "here", "entries": 3, "remark": "",
    }  # fmt: skip
