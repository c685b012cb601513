"""One entry point for all parts of a vendor's package, next to one for each part."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from portagpu.base.plugins import PARTS
from tests.unit.base.test_packages import DECLARED, lay, problems
from tests.unit.base.test_packages import site as site

if TYPE_CHECKING:
    from pathlib import Path


LOADED: Final = {group: part for group, part in PARTS.items() if part != "targets"}
"""Targets are read and not run."""


@pytest.mark.parametrize(
    ("stated", "shown"),
    [
        ("object", "<class 'object'>"),
        ("'third backend'", "'third backend'"),
        ("'third_backend:'", "'third_backend:'"),
        ("None", "None"),
    ],
)
@pytest.mark.parametrize("part", PARTS.values())
def test_a_wrong_reference_is_a_reason_for_its_part_alone(
    site: Path, part: str, stated: str, shown: str
) -> None:
    lines = [f"{part}={stated}," if f" {part}=" in line else line for line in DECLARED.split("\n")]
    lay(site, "\n".join(each.strip() for each in lines), third_captures="", third_targets="")
    said = {kind: found for kind, found in problems().items() if found}
    # the empty folders of captures and targets are not wrong
    assert set(said) == {part}
    assert f"states its {part} as {shown} instead of a reference" in said[part][0]
    assert "the vendor package third_package:PACKAGE" in said[part][0]


@pytest.mark.parametrize(
    ("source", "reason"),
    [("raise ValueError('no luck')", "raised ValueError: no luck"), (None, "No module named")],
)
@pytest.mark.parametrize("group", LOADED)
def test_a_part_that_does_not_load_takes_no_other_down(
    site: Path, group: str, source: str | None, reason: str
) -> None:
    lay(site)
    module = site / f"third_{PARTS[group]}.py"
    if source is None:
        module.unlink()
    else:
        module.write_text(source)
    said = {kind: found for kind, found in problems().items() if found}
    assert set(said) == {PARTS[group]}
    assert len(said[PARTS[group]]) == 1
    assert reason in said[PARTS[group]][0]
