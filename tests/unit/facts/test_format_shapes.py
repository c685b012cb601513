"""Shapes of outputs: how a part whose last line has no line end is judged."""

from __future__ import annotations

import re

import pytest

from portagpu.facts.formats import Shape
from portagpu.facts.formats.reader import _ends_in_a_line
from portagpu.facts.formats.sections import TextPart


@pytest.mark.parametrize(
    ("words", "cut"),
    [({}, True), ({"checks_its_end": True}, False), ({"tells_its_end": True}, False)],
)
def test_a_reader_that_checks_its_end_is_not_judged_by_the_last_line(
    words: dict[str, bool], cut: bool
) -> None:
    """Under the name of contract 1.x too."""
    shape = Shape("demo", re.compile("fan"), last=re.compile(r"fan \d+ rpm"), **words)
    part = TextPart("demo", 0, lines=["demo", "fan 12"], shape=shape, tail="fan 12")
    assert _ends_in_a_line(part) is cut
