"""The CPU passes what each area has for a quick look; tests/full has the whole suite."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.first]

from portagpu.suite import list_cases
from tests.conftest import CORES, Child

if TYPE_CHECKING:
    from collections.abc import Callable


def test_the_cpu_passes_the_smoke_selection(child: Callable[..., Child]) -> None:
    """With as many threads as torch has outside the tests."""
    count = sum(each.smoke for each in list_cases())
    threads = {"OMP_NUM_THREADS": str(CORES)}
    words = ("-m", "portagpu", "conform", "--backend", "cpu", "--smoke")
    said = child(*words, environment=threads, limit_s=400).ok().splitlines()
    assert said[-1] == "PASS"
    assert said[-2].startswith(f"{count} results in ")
