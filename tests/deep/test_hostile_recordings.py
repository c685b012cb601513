"""Recordings that want to harm their reader: links, numbers, sizes, names."""

from __future__ import annotations

import pytest

from tests.support import growth_formats
from tests.support.fuzz_formats import format_modules


@pytest.mark.parametrize("module", format_modules())
def test_no_reader_takes_more_than_linear_time(module: str) -> None:
    count, found = growth_formats.growth(module, 1 << 16, 1)
    assert count > 50, found
    assert not [each for each in found if each.is_fault], found
