"""The book: each page has its place, its pictures can be read, and a page that loads others fails.

``tox run -e docs`` builds it, with warnings as errors, and checks what was built."""

from __future__ import annotations

from portagpu.reports.bundles.document import read_files
from portagpu.runs.results.verdicts import Evidence
from tests.conftest import ROOT
from tests.support.cli_page import cell
from tests.support.health_page import read_data


def test_the_section_on_what_a_pass_does_not_show_leaves_nothing_out() -> None:
    page = (ROOT / "docs/matrix.md").read_text("utf-8")
    for badge in Evidence:
        assert f"\n| `{badge}` | " in page
    for document in read_files([ROOT / "matrix/results"]):
        for result in document.run.results:
            said = filter(None, result.does_not_show.split("; "))
            assert all(cell(sentence) in page for sentence in said), result.id
    for group in read_data()["lists"]:
        for row in group["rows"]:
            assert row["checks"] or row["expected"] in page
