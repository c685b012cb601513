"""The examples of planning in docs/planning.md run, and its tables are of the rules there are."""

from __future__ import annotations

import re

from portagpu.train.planning.plans import MEMORY, RULES
from tests.conftest import ROOT

# parallel training is a part of its own
PAGE = (ROOT / "docs" / "planning.md").read_text("utf-8").partition("\n## Parallel training\n")[0]


def test_every_rule_is_on_the_page() -> None:
    rows = re.findall(r"^\| (`[^|]*`) \| [^|]* \|$", PAGE.partition("| rule |")[2], re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`([\w-]+)`", row)}
    assert named == {*RULES, MEMORY}
