"""What is generated is current, and what the pages about the suite promise holds."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from portagpu.suites.conformance import list_cases
from portagpu.suites.conformance.cases import AREAS, base_id, retired_cases
from portagpu.suites.conformance.messages import ListedCase
from tests.conftest import ROOT
from tests.support import pages
from tests.support.pages import Trap, traps

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def cases() -> list[ListedCase]:
    return list_cases()


@pytest.mark.parametrize("name", pages.files())
def test_what_is_generated_is_current(name: str) -> None:
    if name == "docs/book/faults.md":
        pytest.importorskip("torch")
    current = (ROOT / name).read_text("utf-8") == pages.generate(name)
    assert current, f"{name} is not current: run python -m tests.support.pages"


def test_every_generated_table_has_one_place() -> None:
    paths = [ROOT / "README.md", *ROOT.glob("docs/*.md")]
    texts = "".join(path.read_text("utf-8") for path in paths)
    assert sorted(name for _, name in pages.TABLE.findall(texts)) == sorted(pages.TABLES)
    assert len(re.findall("<!-- ", texts)) == 2 * len(pages.TABLES), "a marker without its table"


def test_one_command_mends_a_page_and_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    monkeypatch.setattr(pages, "PAGES", {"docs/new.md": lambda: "new\n"})
    monkeypatch.setattr(pages, "TABLES", {"one": lambda: "| 1 |\n", "two": lambda: "| 2 |\n"})
    page = tmp_path / "docs/tables.md"
    page.parent.mkdir()
    old = "a\n<!-- table one: x -->\nold\n{0}<!-- table two: x -->\n{0}b {0}"
    page.write_text(old.format("<!-- end of table -->\n"))
    pages.main()
    assert capsys.readouterr().out == "wrote docs/new.md\nwrote docs/tables.md\n"
    assert (tmp_path / "docs/new.md").read_text() == "new\n"
    new = "a\n<!-- table one: x -->\n| 1 |\n{0}<!-- table two: x -->\n| 2 |\n{0}b {0}"
    assert page.read_text() == new.format("<!-- end of table -->\n")
    pages.main()
    assert not capsys.readouterr().out, "what is current is not written again"


@pytest.mark.torch
def test_a_hundred_faults_are_seeded_into_every_area_that_computes(
    cases: list[ListedCase],
) -> None:
    pytest.importorskip("torch")
    rows = [case for group in pages.faults().values() for case in group.values()]
    assert len(rows) >= 100
    assert set(rows) <= {each.id for each in cases}
    # operators run in processes of their own: tests/support/faults has their faults
    assert {case.partition("/")[0] for case in rows} == set(AREAS) - {"operators"}


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


def test_what_was_a_case_is_a_test_or_searched_for_and_no_case_again(
    cases: list[ListedCase],
) -> None:
    again = retired_cases().keys() & {base_id(each.id) for each in cases}
    assert not again, f"{', '.join(sorted(again))} took an id that bundles have"
    searches = {base_id(each.id) for each in cases if each.search}
    for name, each in retired_cases().items():
        if each.case:
            assert each.case in searches, f"{name}: {each.case} runs no random programs"
            continue
        file, _, test = each.test.partition("::")
        assert f"def {test}(" in (ROOT / file).read_text("utf-8"), f"{name}: no {each.test}"


def test_the_questions_about_collectives_name_cases_that_exist(cases: list[ListedCase]) -> None:
    text = (ROOT / "docs/book/collective-cases.md").read_text(encoding="utf-8")
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
    text = pages.cases_page(
        forms, [Trap("T01", "1 * 2", ("cpu",)), Trap("T99", "none", ("source",))]
    )
    assert "| `x` | 2 | a \\| b\\_c. | a, b | exact | nothing | T01 |" in text
    assert "| rng | 1 | 2 |" in text
    found = "`tests/unit/facts/test_telemetry_meaning.py::test_power_is_in_watts`"
    assert f"| T01 | 1 \\* 2 | cpu | `rng/x` | {found} |" in text
    assert "| T99 | none | source |  |  |" in text
    assert "## memory" not in text
