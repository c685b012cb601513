"""Readers of vendors' formats answer many mutations, of new seeds, with findings or FormatError."""

from __future__ import annotations

import secrets

import pytest

from tests.support.fuzz_formats import fixtures, format_modules, fuzz


@pytest.mark.parametrize("module", [name for name in format_modules() if fixtures(name)])
def test_no_mutation_of_a_fixture_breaks_its_reader(module: str) -> None:
    seed_number = secrets.randbelow(1 << 32)
    print(f"the seed's number is {seed_number}")
    report = fuzz(fixtures(module), 1000, seed_number)
    assert not report.faults, (seed_number, report.faults[:5])
