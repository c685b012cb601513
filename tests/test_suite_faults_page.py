"""The page of faults is current, and its faults are those that a user would make."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from portagpu.suite import list_cases
from tests.faults_page import faults, page

pytestmark = pytest.mark.torch

DOCS = Path(__file__).parent.parent / "docs"


def test_the_page_of_faults_is_current() -> None:
    due = "docs/faults.md is not current: python -m tests.faults_page > docs/faults.md"
    assert (DOCS / "faults.md").read_text(encoding="utf-8") == page(), due


def test_there_are_a_hundred_faults_in_every_area_that_computes() -> None:
    rows = [case for group in faults().values() for case in group.values()]
    assert len(rows) >= 100
    assert set(rows) <= {each.id for each in list_cases()}
    areas = {case.partition("/")[0] for case in rows}
    computing = {"identity", "visibility", "memory", "rng", "streams", "graphs", "precision"}
    computing |= {"attention", "kernels", "collectives", "failures", "profiling", "telemetry"}
    assert areas == computing, f"no fault in {', '.join(sorted(computing - areas))}"
