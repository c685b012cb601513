"""The limits of the product are those that docs/design.md promises."""

from __future__ import annotations

import dataclasses
import re

from portagpu.base.patience import LIMITS
from tests.conftest import ROOT


def test_the_limits_are_those_of_the_page() -> None:
    page = (ROOT / "docs/design.md").read_text("utf-8").partition("## Limits\n")[2]
    rows = re.findall(r"^\| `(\w+_s)` \| ([\d.]+) \|", page.partition("\n## ")[0], re.MULTILINE)
    assert {name: float(seconds) for name, seconds in rows} == dataclasses.asdict(LIMITS)


def test_a_library_is_asked_within_a_probe() -> None:
    assert LIMITS.library_s < LIMITS.probe_s
