"""The pages about the suite are current, and what they promise holds."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from portagpu.suite import list_cases
from portagpu.suite.case_ids import base_id, retired_cases
from portagpu.suite.messages import ListedCase
from portagpu.suite.page import Trap, page, traps

DOCS = Path(__file__).parent.parent / "docs"


@pytest.fixture(scope="module")
def cases() -> list[ListedCase]:
    return list_cases()


def test_the_page_of_cases_is_current(cases: list[ListedCase]) -> None:
    written = (DOCS / "cases.md").read_text(encoding="utf-8")
    due = "docs/cases.md is not current: python -m portagpu.suite.page > docs/cases.md"
    assert written == page(cases, traps()), due


def test_there_are_300_cases_before_their_parameters(cases: list[ListedCase]) -> None:
    assert len({base_id(each.id) for each in cases}) >= 300


def test_every_trap_of_a_case_is_a_known_one(cases: list[ListedCase]) -> None:
    known = {trap.id for trap in traps()}
    assert len(known) == 96
    strange = {name for each in cases for name in each.traps} - known
    assert not strange, f"cases name {', '.join(sorted(strange))}, which traps.toml has not"


def test_every_trap_has_a_case_or_a_test(cases: list[ListedCase]) -> None:
    named = {name for each in (*cases, *retired_cases().values()) for name in each.traps}
    missing = {trap.id for trap in traps()} - named
    assert not missing, f"no case for {', '.join(sorted(missing))}"


def test_what_was_a_case_is_a_test_and_no_case_again(cases: list[ListedCase]) -> None:
    again = retired_cases().keys() & {base_id(each.id) for each in cases}
    assert not again, f"{', '.join(sorted(again))} took an id that bundles have"
    for name, each in retired_cases().items():
        file, _, test = each.test.partition("::")
        assert f"def {test}(" in (DOCS.parent / file).read_text("utf-8"), f"{name}: no {each.test}"


def test_the_questions_about_collectives_name_cases_that_exist(cases: list[ListedCase]) -> None:
    text = (DOCS / "collective-cases.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| .+ \| (.+) \|$", text, re.MULTILINE)
    assert [int(number) for number, _ in rows] == list(range(1, 40))
    known = {base_id(each.id) for each in cases}
    for number, names in rows:
        ids = re.findall(r"`([^`]+)`", names)
        assert ids, f"question {number} has no case"
        assert set(ids) <= known, f"question {number} names {set(ids) - known}"


def test_collectives_run_on_every_world(cases: list[ListedCase]) -> None:
    labels = {each.id.partition("[")[2] for each in cases if each.area == "collectives"}
    for n in (1, 2, 3, 4, 8):
        assert any(re.search(rf"\bn{n}\b", each) for each in labels), f"no case on {n} ranks"


def test_a_page_escapes_and_counts() -> None:
    forms = [
        ListedCase(
            id=f"rng/x[{n}]", area="rng", spec="a | b_c.", traps=("T01",), capability=("a", "b")
        )
        for n in (1, 2)
    ]
    text = page(forms, [Trap("T01", "1 * 2", ("cpu",)), Trap("T99", "none", ("source",))])
    assert "| `x` | 2 | a \\| b\\_c. | a, b | exact | nothing | T01 |" in text
    assert "| rng | 1 | 2 |" in text
    found = "`tests/test_telemetry_meaning.py::test_power_is_in_watts`"
    assert f"| T01 | 1 \\* 2 | cpu | `rng/x` | {found} |" in text
    assert "| T99 | none | source |  |  |" in text
    assert "## memory" not in text
