"""When the suite has the server of its ranks load what is slow to load."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from portagpu.suites.conformance.child_plugin import _quiet_from


def items(kinds: str) -> list[Any]:
    """A case for each letter: "r" runs on ranks, "s" searches, "." does neither."""
    fixtures = {"r": ("gpu", "world", "ranks"), "s": ("search",), ".": ("gpu",)}
    return [
        SimpleNamespace(nodeid=str(place), fixturenames=fixtures[kind])
        for place, kind in enumerate(kinds)
    ]


@pytest.mark.parametrize(
    ("kinds", "begins"),
    [
        ("rr" + 3 * "." + "s" + 60 * "." + "r" + 90 * ".", 6),
        ("r.s...r..", 3),
        ("rrs", 0),
        ("....", 0),
    ],
)
def test_it_loads_where_no_case_needs_ranks_for_a_while(kinds: str, begins: int) -> None:
    assert _quiet_from(items(kinds)) == str(begins)
