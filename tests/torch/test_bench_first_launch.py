"""The measure of a first launch checks its result; tests/full launches in new processes."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

torch = pytest.importorskip("torch")

from portagpu.suites.performance.first_launch import first_launch
from portagpu.train import kernels

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def _triton(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is launched here is torch's own softmax."""
    monkeypatch.setitem(sys.modules, "triton", ModuleType("triton"))


def test_a_right_result_has_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "softmax", lambda x: x.softmax(-1))
    assert first_launch("cpu", 0) > 0


@pytest.mark.parametrize("factor", [1.001, float("nan")])
def test_a_wrong_result_has_none(monkeypatch: pytest.MonkeyPatch, factor: float) -> None:
    monkeypatch.setattr(kernels, "softmax", lambda x: x.softmax(-1) * factor)
    with pytest.raises(ValueError, match="is off by"):
        first_launch("cpu", 0)
