"""Every rule refuses what it is there for, and says in which file, at which key, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from portagpu.base.errors import PortagpuError, TargetError
from portagpu.facts.targets import parse_target
from portagpu.facts.targets.read import read_folder
from tests.unit.facts.test_target_rules import H200, MUTATIONS, edit, text_of
from tests.unit.facts.test_target_rules import folder as folder

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    "value", ["true", '"unknown"', "-1", "nan", "inf", "[]", "[[1]]", "1979-05-27", "{}", "1e300"]
)
def test_no_fact_takes_a_value_of_another_kind(value: str) -> None:
    """Whatever stands in a fact's place, the answer is TargetError and names that fact."""
    text, facts = text_of(H200), 0
    for row in text.splitlines():
        name, _, rest = row.partition(" = { value = ")
        if not rest:
            continue
        old = rest.partition(", ")[0]
        try:
            parse_target(text.replace(row, row.replace(f"value = {old}", f"value = {value}", 1), 1))
        except PortagpuError as error:
            assert f".{name}" in str(error), f"{row}: {error}"
            facts += 1
        else:
            pytest.fail(f"{name} takes {value}")
    assert facts > 30, "the test read the file's facts"


@pytest.mark.parametrize("case", MUTATIONS["families"], ids=lambda case: str(case["old"]))
def test_a_wrong_family_is_refused(folder: Path, case: dict[str, str]) -> None:
    edit(folder / "families" / case["file"], case["old"], case["new"])
    with pytest.raises(TargetError) as caught:
        read_folder(folder)
    message = str(caught.value)
    assert message.startswith(f"{case['file']}: "), message
    assert message.endswith(f"(rule {case['rule']})"), message
