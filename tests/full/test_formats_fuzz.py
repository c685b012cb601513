"""Readers of vendors' formats answer many mutated inputs with findings or with FormatError."""

from __future__ import annotations

import pytest

from portagpu.facts.formats.cleaning import decode_text
from tests.support.fuzz_formats import Seed, fixtures, format_modules, fuzz, mutation


def test_no_mutation_of_a_fixture_breaks_its_reader() -> None:
    report = fuzz((seed for module in format_modules() for seed in fixtures(module)), 300)
    assert not report.faults, report.faults[:5]


@pytest.mark.processes(4, "the child that dies, and those after it")
def test_one_that_dies_stops_no_other(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child goes on after the mutation of which the one before it died."""
    source = """
import os
from portagpu.facts.readings import FormatError
def parse(text):
    if text.startswith("x"):
        os._exit(3)
    raise FormatError("no")
"""
    (tmp_path / "reader_under_test.py").write_text(source)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    names = ("a/1", "x/2", "b/3")
    seeds = [Seed(name, "reader_under_test:parse", name.encode()) for name in names]
    report = fuzz(seeds, 2)
    died = [n for n in range(3) if decode_text(mutation(seeds[1], n, 0)).startswith("x")]
    assert [(each.name, each.number) for each in report.faults] == [("x/2", n) for n in died]
    assert died
    assert report.outcomes["a", "refused"] == report.outcomes["b", "refused"] == 3
    assert report.outcomes["x", "refused"] == 3 - len(died)


@pytest.mark.parametrize(
    ("body", "outcome"),
    [
        ("return Findings(kind='x')", "findings"),
        ("raise FormatError('not of this format')", "refused"),
        ("raise FormatError('two\\nlines')", "wrong"),
        ("raise KeyError('x')", "raised"),
        ("return Findings(kind='x', problems=('two\\nlines',))", "wrong"),
        ("return Findings(kind='x', versions={'x': float('inf')})", "wrong"),
        ("return bytearray(1 << 30)", "memory"),
        ("import os; os._exit(3)", "died"),
        ("while True: pass", "slow"),
    ],
)
def test_the_harness_distinguishes_faults(
    tmp_path, monkeypatch: pytest.MonkeyPatch, body: str, outcome: str
) -> None:
    source = "from portagpu.facts.readings import Findings, FormatError\ndef parse(text):\n    "
    (tmp_path / "reader_under_test.py").write_text(source + body)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    report = fuzz([Seed("some/seed", "reader_under_test:parse", b"x")], 0, cpu_s=0.3)
    assert dict(report.outcomes) == {("some", outcome): 1}
    assert bool(report.faults) == (outcome not in ("findings", "refused"))
