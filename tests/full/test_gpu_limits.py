"""Time on machines with many devices and a slow start: limits grow with both, and blame nobody."""

from __future__ import annotations

import textwrap
from functools import partial

import pytest

pytest.importorskip("torch")

from portagpu.runs.results.run import Verdict
from tests.ranks.test_gpu_limits import RANKS
from tests.ranks.test_gpu_limits import slow_ranks as slow_ranks
from tests.support.case_files import conform

pytestmark = pytest.mark.torch


def test_cases_that_a_run_has_no_time_for_are_open(tmp_path):
    cases = """
        from portagpu.suites.conformance import case
        @case("rng/first", spec="Is fine.")
        def test_first(gpu): pass
        @case("rng/second", spec="Is wrong.")
        def test_second(gpu): assert False, "it was begun"
    """
    (tmp_path / "test_two.py").write_text(textwrap.dedent(cases), encoding="utf-8")
    first, second = conform("cpu", folder=tmp_path, ended=lambda: "not run: it is late")
    assert (first.id, first.verdict) == ("rng/first", Verdict.PASS)
    assert (second.verdict, second.reason) == (Verdict.INCONCLUSIVE, "not run: it is late")


def test_a_worlds_limit_begins_when_its_ranks_have_started(slow_ranks):
    # allowed: time without a CPU does not count
    run = partial(slow_ranks.run, backend="slow", timeout_s=2)
    assert run(f"{RANKS}:reduce", 2).values == [3.0, 3.0]
    hung = run(f"{RANKS}:hangs", 2, arguments={"culprit": 0})
    assert hung.first_failure.error == "did not finish within 2 s", hung.sentence
    assert hung.duration_s < 40, "the time of the start was waited for after it"
