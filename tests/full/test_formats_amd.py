"""AMD's tools: texts written by hand from their documentation, oldest and newest generation."""

from __future__ import annotations

import pytest

from portagpu.facts.readings import FormatError
from tests.vendor_texts.test_formats_amd import CASES, FORMATS


@pytest.mark.parametrize(
    "text",
    [
        "=A" + " " * 200_000 + "x",
        "| 0000:83:00.0 " + "a " * 100_000,
        "LINK METRIC TABLE:\n bdf a b c d\nGPU0 x N/A N/A\n Read " + "1" * 200_000,
        "GPU: 0\n    A: [" + "0 %, " * 100_000,
        '[{"gpu": 0, "vram": {"size": "1 ' + "a" * 200_000 + '1"}}]',
        '[{"gpu": 0, "x": "' + '\\"' * 200_000,
        "HSA Agents\n" + "  Name: gfx90a\n  Device Type: GPU\n" * 20_000,
        "[\n" * 100_000,
        "GPU[0] : " + ": " * 100_000,
    ],
)
def test_long_texts_take_no_longer_than_their_length(text: str) -> None:
    """The texts are those on which backtracking or copying would need days."""
    for module in FORMATS:
        module.matches(text)
        try:
            module.parse(text)
        except FormatError:
            continue


@pytest.mark.parametrize(("module", "text"), CASES)
def test_every_beginning_of_a_text_is_read_or_refused(module: object, text: str) -> None:
    whole = module.parse(text)
    for length in range(0, len(text), 3):
        try:
            part = module.parse(text[:length])
        except FormatError:
            continue
        assert len(part.readings) <= len(whole.readings)
        assert len(part.links) <= len(whole.links)
