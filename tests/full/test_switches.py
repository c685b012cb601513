"""Variables for debugging: a run states them, and what cannot be seen under them is not judged."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from portagpu.runs.results.run import Verdict
from portagpu.suites.conformance import ConformOptions, Selection, conform

if TYPE_CHECKING:
    from pathlib import Path


FILE = """
import os
from portagpu.suites.conformance import case

@case("precision/compiled", spec="It compiles.", unaltered=("compiler",))
def test_compiled(backend): ...

@case("precision/not-compiled", spec="It works.", unaltered=("asynchrony", "caching"))
def test_not_compiled(backend): ...
"""


@pytest.mark.processes(1, "torch reads the variable when it is imported")
@pytest.mark.torch
@pytest.mark.parametrize("value", ["1", "0"])
def test_cases_are_not_judged_under_a_variable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, value: str
) -> None:
    pytest.importorskip("torch")
    (tmp_path / "test_precision.py").write_text(FILE)
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", value)
    run = conform(ConformOptions(backend="cpu", folder=tmp_path, selection=Selection()))
    found = {each.id: (each.verdict, each.reason) for each in run.results}
    assert found["precision/not-compiled"] == (Verdict.PASS, "")
    reason = "TORCHDYNAMO_DISABLE is '1', with which torch.compile compiles nothing: unset it"
    wanted = (Verdict.INCONCLUSIVE, reason) if value == "1" else (Verdict.PASS, "")
    assert found["precision/compiled"] == wanted
