"""A machine is judged by the backend that is tested, a recording by all that it lists."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from portagpu.checks.bringup.checks.environment import _backend
from portagpu.runs.results.run import Verdict


def judged(found: dict[str, tuple[bool, str]], **tested: Any) -> list[tuple[object, str]]:
    """(what was judged, its reason) of a machine with these backends."""
    statuses = {
        name: SimpleNamespace(usable=usable, reason=reason)
        for name, (usable, reason) in found.items()
    }
    context: Any = SimpleNamespace(
        tested=SimpleNamespace(
            machine=SimpleNamespace(backends=lambda: statuses),
            **{"unusable": "", "origins": (), "backend": None, **tested},
        ),
        judge=lambda name, good, reason, **_: (good, reason),
        result=lambda name, verdict, reason: (verdict, reason),
    )
    return [*_backend(context)]


BOTH = {"cpu": (True, "torch"), "acme": (False, "no driver")}
NONE = {"cpu": (False, "no torch"), "acme": (False, "no driver")}


@pytest.mark.parametrize(
    ("found", "tested", "expected"),
    [
        (BOTH, {"backend": "cpu"}, [(True, "cpu: torch")]),
        (BOTH, {"backend": "acme"}, [(False, "acme: no driver")]),
        (BOTH, {"backend": "acme", "unusable": "acme is broken"}, [(False, "acme is broken")]),
        (BOTH, {"origins": ("file",)}, [(True, "cpu: torch; acme: no driver")]),
        (NONE, {"origins": ("file",)}, [(False, "cpu: no torch; acme: no driver")]),
        ({}, {"origins": ("file",)}, [(Verdict.INCONCLUSIVE, "no backend was recorded")]),
        (BOTH, {}, []),
    ],
)
def test_which_backend_is_judged(
    found: dict[str, tuple[bool, str]], tested: dict[str, Any], expected: list[tuple[object, str]]
) -> None:
    assert judged(found, **tested) == expected
