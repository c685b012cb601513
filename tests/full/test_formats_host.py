"""Outputs of hosts, written by hand from their documentation, and damaged in every way."""

from __future__ import annotations

import pytest

from tests.vendor_texts.test_formats_host import TEXTS, _survives


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_may_break_off_anywhere(name: str):
    text = TEXTS[name][1]
    for end in range(0, len(text), 1 if len(text) < 3000 else 3):
        _survives(name, text[:end])
