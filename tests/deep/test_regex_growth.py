"""Every pattern that meets an untrusted text takes time that grows as the text does."""

from __future__ import annotations

import json
import pkgutil
import re
from typing import TYPE_CHECKING, Final

import pytest

import portagpu.base.redact
import portagpu.reports.bundles
from tests.conftest import ROOT
from tests.support.regex_growth import grows

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import Child

MODULES: Final = (
    *(
        f"{package.__name__}.{each.name}"
        for package in (portagpu.reports.bundles, portagpu.base.redact)
        for each in pkgutil.iter_modules(package.__path__)
    ),
    *(f"portagpu.checks.recordings.{name}" for name in ("anonymous", "anonymous_output", "record")),
)


LIMIT_S: Final = 900
"""Cubic time at 16,000 characters is hours; all texts together take about a minute."""


def test_no_text_keeps_a_pattern_busy(child: Callable[..., Child]) -> None:
    names = [name for name in MODULES if not name.endswith("__main__")]
    ended = child("-m", "tests.support.regex_growth", *names, path=[ROOT], limit_s=LIMIT_S)
    found = json.loads(ended.ok())
    assert found["patterns"] > 50
    assert found["texts"] > 20_000
    assert found["slow"] == {}
    assert found["hidden"] == [], "a pattern inside a function is not found by this test"


@pytest.mark.parametrize(
    ("pattern", "length"),
    [
        (r"a+@", 1000),
        (r"serial\s*x?\s*:", 1000),
        (r"[\w-]*token[\w-]*=", 100),
        (r"(?m)^(\s*[ \w]*serial)\s*:", 400),
    ],
)
def test_a_pattern_that_is_kept_busy_is_found(pattern: str, length: int) -> None:
    """Quadratic and cubic ones, on texts short enough to come back."""
    _, slow = grows(re.compile(pattern).search, pattern, length)
    assert slow, f"{pattern} was not found"


def test_work_that_only_long_texts_get_does_not_grow() -> None:
    slow_from = 3000

    def work(text: str) -> None:
        for _ in range(1_000_000 if len(text) > slow_from else 0):
            pass

    assert grows(work, "a", 1000, step=50)[1] == {}
