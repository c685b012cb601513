"""Where a result stands in the page of its run, and the titles of areas."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote

if TYPE_CHECKING:
    from collections.abc import Mapping

    from portagpu.runs.results.run import Result, Run


@dataclass(frozen=True, slots=True)
class PageNames:
    """The anchor of each result and the title of each area, for links within the page.

    An anchor is the result's suite, id and device, so that a link stays valid for the next run.
    """

    anchors: Mapping[tuple[str, str, str | None], str]
    titles: Mapping[str, str]

    def anchor(self, result: Result) -> str:
        """The id of the result's row."""
        return self.anchors[result.suite, result.id, result.device]

    def address(self, result: Result) -> str:
        """The address of the result's row in the page."""
        return f"#{quote(self.anchor(result), safe='/:@')}"

    def title(self, suite: str, area: str) -> str:
        """The gate's title, as on a terminal; the id of any other area."""
        return self.titles.get(area, area) if suite == "bringup" else area


def names_of(run: Run, titles: Mapping[str, str]) -> PageNames:
    """The names of a run's page; ``titles`` maps the ids of gates to their titles."""
    anchors: dict[tuple[str, str, str | None], str] = {}
    taken: set[str] = set()
    alike: Counter[str] = Counter()
    for result in run.results:
        where = f"@{result.device}" if result.device else ""
        anchor = stem = "-".join(f"{result.suite}:{result.id}{where}".split())
        while anchor in taken:
            alike[stem] += 1
            anchor = f"{stem}-{alike[stem]}"
        taken.add(anchor)
        anchors[result.suite, result.id, result.device] = anchor
    return PageNames(anchors, titles)
