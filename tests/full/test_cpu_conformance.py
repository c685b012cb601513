"""The CPU passes the whole suite, with as many threads as torch has outside the tests."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import pytest

pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.first]

from portagpu.suites.conformance import Selection, list_cases
from tests.conftest import CORES

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import Child

ALONE: Final = "collectives/huge-buffer"
"""It needs 12 GiB, which a machine may not have, or not while other tests run."""
CONFORM: Final = ("-m", "portagpu", "conform", "--backend", "cpu", "--seed", "0")


def test_the_cpu_passes_the_conformance_suite(child: Callable[..., Child]) -> None:
    names = [each.id for each in list_cases(Selection())]
    assert ALONE not in names
    threads = {"OMP_NUM_THREADS": str(CORES)}
    said = child(*CONFORM, environment=threads, limit_s=900).ok().splitlines()
    assert said[-1] == "PASS"
    assert said[-2].startswith(f"{len(names)} results in ")


def test_the_cpu_broadcasts_a_huge_buffer(child: Callable[..., Child]) -> None:
    ended = child(*CONFORM, "--only", ALONE, "--json", "-", limit_s=400)
    assert ended.out.startswith("{"), f"conform wrote no result: {ended.err}"
    (result,) = json.loads(ended.out)["results"]
    if result["verdict"] == "INCONCLUSIVE" and "of free memory" in result["reason"]:
        assert ended.code == 3
        pytest.skip(result["reason"])
    assert (result["verdict"], ended.code) == ("PASS", 0), result["reason"]
