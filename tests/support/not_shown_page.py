"""The section on what a pass does not show, from the data that says so.

The data: the badges (docs/design.md), the sentences of committed results, the matrix, the map of
others' expectations, and the sections of other pages.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from portagpu.reports.bundles.document import read_files
from portagpu.runs.results.verdicts import Evidence
from tests.support.cli_page import cell
from tests.support.health_page import read_data

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from portagpu.reports.proofs import Row

ROOT: Final = Path(__file__).resolve().parents[2]
_SECTION: Final = re.compile(
    r"^##+ (What (?:it|readings|the \w+) (?:does|do) not \w+.*)$", re.MULTILINE
)
_HEAD: Final = """
A PASS says: each check that counts ran, on the devices that the report names, and found what its
expectation says. It is a statement about that hour and those versions. It does not say that the
machine is good for everything. This section gathers what stays open.

- **A PASS with "unverified" next to it** measured things that nothing judges. `--strict` lowers
  such a PASS to UNVERIFIED.
- **SKIP** counts for nothing: the hardware has no such feature.
- **A figure inside its range** is what the named source expects. If the source is somebody's
  measurement, it is as good as theirs. [targets.md](targets.md#what-a-figure-judges) says which
  figures judge.
- **A recording never passes**: nothing ran on that machine.
- **A short load finds no slow fault.** `--level full` takes minutes and not hours.

"""


def not_shown_section(matrix: Sequence[Row]) -> str:
    """The section of docs/matrix.md."""
    return "".join([_HEAD, *_badges(), *_targets(matrix), *_results(), *_others(), *_pages()])


def _badges() -> Iterator[str]:
    yield "### Of a badge\n\nA result carries the evidence that it has.\n\n"
    yield "| badge | it is earned when | it is not earned by |\n|---|---|---|\n"
    page = (ROOT / "docs/design.md").read_text("utf-8")
    for badge in Evidence:
        row = re.search(rf"^\| `{badge}` \|.*\|$", page, re.MULTILINE)
        assert row is not None, f"docs/design.md has no row for {badge}"
        yield f"{row[0]}\n"


def _targets(matrix: Sequence[Row]) -> Iterator[str]:
    ran = [row.target.id for row in matrix if Evidence.EXECUTED in row.badges]
    yield (
        f"\n### Of a product\n\nChecks ran on {len(ran)} of {len(matrix)} [targets](targets.md): "
        f"{', '.join(f'`{each}`' for each in ran)}.\n"
        "On every other one, a result of yours would be the first.\n"
    )


def _results() -> Iterator[str]:
    documents = read_files([ROOT / "matrix/results"])
    targets = sorted({f"`{each.run.info.target}`" for each in documents})
    yield (
        "\n### Of a check\n\nA result says itself what it leaves open (`does_not_show`, in JSON "
        "and in the report). These are the sentences of the\nresults in `matrix/results`, which "
        f"are of {', '.join(targets)}.\n\n| it does not show | checks |\n|---|---|\n"
    )
    said: dict[str, dict[str, int]] = {}
    for document in documents:
        for result in document.run.results:
            for sentence in filter(None, result.does_not_show.split("; ")):
                counts = said.setdefault(sentence, {})
                name = result.id.partition("[")[0]
                counts[name] = counts.get(name, 0) + 1
    for sentence, counts in sorted(said.items()):
        yield f"| {cell(sentence)} | {_checks(counts)} |\n"


def _checks(counts: dict[str, int]) -> str:
    """The names of checks, or where there are many, how many of each area."""
    if len(counts) <= 4:
        return ", ".join(f"`{name}`" for name in sorted(counts))
    areas: dict[str, int] = {}
    for name, count in counts.items():
        area = name.partition("/")[0]
        areas[area] = areas.get(area, 0) + count
    return ", ".join(f"{count} results of `{area}`" for area, count in sorted(areas.items()))


def _others() -> Iterator[str]:
    yield (
        "\n### Of others' lists\n\nNo check covers these items. "
        "[The whole map](health.md#what-others-expect-of-a-healthy-node) says which of them "
        "another command reports, and what is missing of the others.\n\n"
        "| list | not covered |\n|---|---|\n"
    )
    for group in read_data()["lists"]:
        open_ = [row["expected"] for row in group["rows"] if not row["checks"]]
        if open_:
            yield f"| {group['title']} | {'; '.join(open_)} |\n"


def _pages() -> Iterator[str]:
    yield "\n### Of a command\n\n"
    for path in sorted((ROOT / "docs").glob("*.md")):
        text = path.read_text("utf-8")
        title = text.partition("\n")[0].removeprefix("# ")
        for heading in _SECTION.findall(text):
            anchor = heading.lower().replace(" ", "-")
            yield f"- {title}: [{heading[0].lower()}{heading[1:]}]({path.name}#{anchor})\n"
