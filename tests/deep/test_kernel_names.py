"""What a kernel does by its name: rules as data, in both vendors' words."""

from __future__ import annotations

from portagpu.traces.analysis import kernel_names
from portagpu.traces.analysis.kernel_names import (
    readable,
    rules,
)
from tests.support.regex_growth import grows


def test_no_name_keeps_a_rule_busy() -> None:
    patterns = [each for rule in rules() for each in (rule.pattern, rule.unless) if each]
    slow = {each.pattern: grows(each.search, each.pattern, 250)[1] for each in patterns}
    assert not {pattern: texts for pattern, texts in slow.items() if texts}
    assert max(len(readable(each * 10**6)) for each in ("a", "_Z1a", "<")) <= kernel_names.MAX_NAME
