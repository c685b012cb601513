"""Readers of vendors' formats answer many mutated inputs with findings or with FormatError."""

from __future__ import annotations

from tests.support.fuzz_formats import fixtures, format_modules, fuzz


def test_no_mutation_of_a_fixture_breaks_its_reader() -> None:
    report = fuzz((seed for module in format_modules() for seed in fixtures(module)), 300)
    assert not report.faults, report.faults[:5]
