"""The CPU passes what each area has for a quick look; tests/full has all cases, on all cores."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.first, pytest.mark.usefixtures("forked")]

from portagpu.suites.conformance import list_cases

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import Child


def test_the_cpu_passes_the_smoke_selection(child: Callable[..., Child]) -> None:
    count = sum(each.smoke for each in list_cases())
    smoke = ("--level", "smoke", "--seed", "0")
    words = ("-m", "portagpu", "conform", "--backend", "cpu", *smoke)
    said = child(*words, limit_s=400).ok().splitlines()
    assert said[-1] == "PASS"
    assert said[-2].startswith(f"{count} results in ")
