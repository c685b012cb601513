"""The CPU passes the conformance suite, with as many threads as torch has outside the tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.first]

from portagpu.suite import list_cases
from tests.conftest import CORES, Child

if TYPE_CHECKING:
    from collections.abc import Callable


ALONE: Final = "collectives/huge-buffer"
"""It needs 12 GiB that nothing else takes meanwhile: tox.ini has it run after the tests."""


def test_the_cpu_passes_the_conformance_suite(child: Callable[..., Child]) -> None:
    names = [each.id for each in list_cases()]
    assert ALONE in names
    chosen = [word for name in names if name != ALONE for word in ("--only", name)]
    threads = {"OMP_NUM_THREADS": str(CORES)}
    words = ("-m", "portagpu", "conform", "--backend", "cpu", *chosen)
    said = child(*words, environment=threads, limit_s=900).ok().splitlines()
    assert said[-1] == "PASS"
    assert said[-2].startswith(f"{len(names) - 1} results in ")
