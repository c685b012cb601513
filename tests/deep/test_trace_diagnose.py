"""What bounds a run: captures that are each bound by one thing, and ones that lack data."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("pyarrow")
from portagpu.facts.vendors import tables
from portagpu.traces.analysis.diagnose import own_table
from tests.support.regex_growth import grows


def test_no_name_keeps_a_pattern_busy() -> None:
    patterns = [re.compile(own_table()["input"]["pattern"])]
    for words in tables("trace_words").values():
        patterns += [re.compile(words["calls"][each]) for each in ("launch", "wait", "every")]
    assert len(patterns) == 7
    slow = {each.pattern: grows(each.search, each.pattern, 250)[1] for each in patterns}
    assert not {pattern: texts for pattern, texts in slow.items() if texts}
