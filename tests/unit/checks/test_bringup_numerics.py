"""The gate numerics without the packages of the conformance suite."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from portagpu.checks.bringup.checks import numerics
from portagpu.runs.results.verdicts import Verdict

if TYPE_CHECKING:
    import pytest


def test_without_the_packages_of_the_suite_nothing_is_judged_and_a_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "hypothesis", None)

    def result(name: str, verdict: Verdict, reason: str) -> tuple[Any, ...]:
        return name, verdict, reason

    (found,) = numerics.check(SimpleNamespace(result=result))  # type: ignore[arg-type]
    name, verdict, reason = found
    assert (name, verdict) == ("suite", Verdict.INCONCLUSIVE)
    assert reason.startswith("the conformance suite needs hypothesis: pip install ")
    assert "conform]" in reason
