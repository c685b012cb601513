"""The CPU passes the conformance suite, with as many threads as torch has outside the tests."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.slow]

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import Child


def test_the_cpu_passes_the_conformance_suite(child: Callable[..., Child]) -> None:
    threads = {"OMP_NUM_THREADS": str(len(os.sched_getaffinity(0)))}
    words = ("-m", "portagpu", "conform", "--backend", "cpu")
    assert child(*words, environment=threads, limit_s=900).ok().splitlines()[-1] == "PASS"
