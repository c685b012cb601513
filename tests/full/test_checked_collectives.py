"""Collectives that are compared between the ranks before they run."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")


pytestmark = pytest.mark.torch


def test_a_benchmark_prints_its_table(capfd: pytest.CaptureFixture[str]) -> None:
    from tests.benchmarks import checked

    checked.CALLS, before = 3, checked.CALLS
    try:
        checked.main()
    finally:
        checked.CALLS = before
    lines = capfd.readouterr().out.splitlines()
    assert lines[0].split() == ["ranks", "plain", "ms", "checked", "ms", "ratio"]
    assert [line.split()[0] for line in lines[1:]] == ["2", "4"]
