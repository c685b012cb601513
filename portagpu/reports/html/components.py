"""What the pages of results are made of: badges, facts, tables, values, anchors, and checks.

The checks of one run have filters and a search, which a script adds to a page.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from portagpu.base import units
from portagpu.reports.html.markup import Child, Markup, join, tag
from portagpu.runs.results.run import verdict_of
from portagpu.runs.results.verdicts import FAILING, Evidence, Verdict
from portagpu.runs.results.wording import (
    content_key,
    expected_in_words,
    further_figures,
    tally,
    value_in_words,
    without_device,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    from portagpu.runs.results.run import Result, Run


MEANING: Final = {
    Verdict.PASS: "judged, and as it should be",
    Verdict.FAIL: "judged, and not as it should be",
    Verdict.ERROR: "the check itself broke",
    Verdict.UNVERIFIED: "measured, and nothing to judge it by",
    Verdict.INCONCLUSIVE: "claimed by the target and not judged here",
    Verdict.SKIP: "not claimed by the target",
}
EVIDENCE_MEANING: Final = {
    Evidence.DECLARED: "sourced facts load and agree with one another",
    Evidence.RECORDED: "a real machine's published output was read by the code that reads machines",
    Evidence.LOADED: "the vendor's own library answered",
    Evidence.COMPILED: "machine code for the architecture was built and inspected",
    Evidence.EMULATED: "its machine code ran in an emulator that passed its own checks",
    Evidence.EXECUTED: "it ran on this hardware",
}
# shapes differ as well as colours: tick, cross, warning, dots, question mark, dash
_ICONS: Final = {
    Verdict.PASS: "M12 2a10 10 0 1 0 .01 0zM7.5 12.5l3 3 6-6.5",
    Verdict.FAIL: "M8 2h8l6 6v8l-6 6H8l-6-6V8zM9 9l6 6M15 9l-6 6",
    Verdict.ERROR: "M12 3L22 20H2zM12 9.5v5M12 17.3v.2",
    Verdict.UNVERIFIED: "M12 2a10 10 0 1 0 .01 0zM7.5 12v.01M12 12v.01M16.5 12v.01",
    Verdict.INCONCLUSIVE: "M12 2a10 10 0 1 0 .01 0zM9.3 9.4a2.8 2.8 0 1 1 3.9 2.6c-.8.4-1.2.9-1.2"
    " 2M12 16.8v.2",
    Verdict.SKIP: "M12 2a10 10 0 1 0 .01 0zM8 12h8",
}


def shapes() -> Markup:
    """The shapes that ``icon`` uses, once for the whole page and not visible there."""
    symbols = [
        tag("symbol", tag("path", d=path), id=_shape_id(verdict), viewBox="0 0 24 24")
        for verdict, path in _ICONS.items()
    ]
    return tag("svg", *symbols, class_="shapes", aria_hidden="true")


def icon(verdict: Verdict) -> Markup:
    """The verdict's shape, for readers who cannot see its colour."""
    use = tag("use", href=f"#{_shape_id(verdict)}")
    return tag("svg", use, aria_hidden="true")


def _shape_id(verdict: Verdict) -> str:
    # in capitals: no slug and no result's anchor is
    return f"SHAPE-{verdict}"


def badge(verdict: Verdict, words: str | None = None) -> Markup:
    """Shape, word and colour of a verdict."""
    return tag("span", icon(verdict), words or str(verdict), class_=f"badge {verdict.lower()}")


def section(title: str, *content: Child, failures: bool = True) -> Markup:
    """A section of the page; without ``failures`` it is hidden while only failures are shown."""
    hidden = None if failures else "only-whole"
    return tag("section", tag("h2", title), *content, id=slug(title), class_=hidden)


def code_marked(text: str) -> Markup:
    """``text`` with backticks turned into ``code`` elements."""
    parts = text.split("`")
    return join(*(tag("code", part) if n % 2 else part for n, part in enumerate(parts)))


def slug(*parts: str) -> str:
    """An anchor of a section or an area."""
    return "-".join("-".join(parts).lower().split())


def as_lines(parts: Sequence[Child]) -> list[Markup]:
    """Each part on a line of its own."""
    return [tag("div", part) for part in parts]


def fact_list(
    facts: Sequence[tuple[str, Child]],
    wide: Sequence[tuple[str, Child]] = (),
    class_: str = "",
) -> Markup:
    """Names and values; ``wide`` ones take a line each."""
    narrow = [tag("div", tag("dt", name), tag("dd", value)) for name, value in facts]
    broad = [tag("div", tag("dt", name), tag("dd", value), class_="wide") for name, value in wide]
    return tag("dl", *narrow, *broad, class_=f"facts {class_}".strip())


def meanings(title: str, entries: Sequence[tuple[str, str]]) -> Markup:
    """Words with what they mean."""
    items = [join(tag("dt", word), tag("dd", meaning)) for word, meaning in entries]
    return join(tag("h2", title), tag("dl", *items))


def table_box(
    head: Sequence[str],
    rows: Sequence[Markup],
    caption: str,
    *,
    card: bool = True,
    kind: str = "cards",
) -> Markup:
    """A table that scrolls sideways where it is too wide, and on a phone is a list of cards."""
    header = tag("thead", tag("tr", *(tag("th", name, scope="col") for name in head)))
    table = tag("table", tag("caption", caption), header, tag("tbody", *rows), class_=kind)
    return tag("div", table, class_="wide-box card" if card else "wide-box")


def by_area(results: Iterable[Result]) -> dict[tuple[str, str], list[Result]]:
    """(suite, area) -> its results, in the order of the run."""
    groups: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        groups.setdefault((result.suite, result.area), []).append(result)
    return groups


def wrapped_id(identifier: str, href: str | None = None) -> Markup:
    """An id that may be wrapped after its parts; with ``href`` it is a link.

    After a hyphen a browser breaks lines by itself.
    """
    parts = re.split(r"(?<=[/,:._\[])(?=.)", identifier)
    pieces = [join(part, tag("wbr")) for part in parts[:-1]]
    return tag("a", *pieces, parts[-1], class_="id", href=href)


def value_and_spread(result: Result) -> tuple[str, str]:
    """The value of a measure with its unit, and "± 0.3 GB/s", which may be empty."""
    assert isinstance(result.value, int | float)  # noqa: S101 - the caller chose those
    spread = ""
    if result.spread is not None:
        spread = f"± {units.quantity(result.spread, result.unit, like=result.value)}"
    return units.quantity(result.value, result.unit), spread


def statistic_of(result: Result) -> str:
    """ "median of 20"; empty without a statistic."""
    of = f" of {result.n}" if result.n else ""
    return f"{result.statistic}{of}" if result.statistic else ""


def soft(*words: str | None) -> Markup | None:
    """The words, of which some may be empty, with commas, in the colour of what matters less."""
    text = ", ".join(filter(None, words))
    return tag("span", text, class_="soft") if text else None


def shape_of(result: Result) -> str:
    """The size of the problem; empty where it has none."""
    shape = result.shape
    if shape is None:
        return ""
    if isinstance(shape, str):
        return shape
    if isinstance(shape, dict):
        return ", ".join(f"{key} {value}" for key, value in shape.items())
    return " × ".join(map(str, shape))


def expected_cells(result: Result) -> list[Child]:
    """What the value was compared with, and the source of it."""
    if result.expected is None:
        return ["none"]
    source = tag("span", _source(result.expected), class_="soft")
    others = [
        tag("span", f"also stated: {figure}", class_="soft") for figure in further_figures(result)
    ]
    return [expected_in_words(result.expected), source, *others]


def _source(expected: Mapping[str, Any]) -> Markup:
    reference, source = value_in_words(expected["reference"], expected["unit"]), expected["source"]
    linked = source.startswith(("https://", "http://")) and not source.split()[1:]
    shown = tag("a", source, href=source, rel="noreferrer") if linked else source
    same = expected_in_words(expected).endswith(reference)
    return join(shown) if same else join(f"reference {reference}, ", shown)


def evidence_badges(badges: Iterable[Evidence]) -> list[Child]:
    """The names of the badges, framed."""
    return [tag("span", str(each), class_="evidence") for each in badges]


def result_link(result: Result, href: str | None = None) -> Markup:
    """The id of a result, which leads to ``href``, and its device."""
    where = tag("span", f"on {result.device}", class_="soft") if result.device else None
    return join(wrapped_id(result.id, href), where)


def row_class(verdict: Verdict) -> str | None:
    """The class of a failure's row, by which the style sheet finds it."""
    return "bad" if verdict in FAILING else None


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
    used: Counter[str] = Counter()
    for result in run.results:
        where = f"@{result.device}" if result.device else ""
        anchor = stem = "-".join(f"{result.suite}:{result.id}{where}".split())
        while anchor in taken:
            used[stem] += 1
            anchor = f"{stem}-{used[stem]}"
        taken.add(anchor)
        anchors[result.suite, result.id, result.device] = anchor
    return PageNames(anchors, titles)


FACETS = ("verdict", "suite", "area", "target", "run", "device")
"""What can be chosen, in order; the script leaves out what all results share."""


@cache
def script() -> str:
    """The script of every report: ``filter.js``."""
    return _script("filter.js")


@cache
def fleet_script() -> str:
    """The script of a fleet's page: ``fleet.js`` has the rows of its nodes, for ``filter.js``."""
    return _script("fleet.js") + _script("filter.js")


def _script(name: str) -> str:
    return files("portagpu.reports.html").joinpath(name).read_text("utf-8")


def filter_controls(
    facets: Sequence[str] = FACETS,
    *,
    label: str = "Filter the checks",
    hint: str = "an id or a reason",
    noun: str = "results",
) -> Markup:
    """The controls above the checks, or above other rows; hidden until the script shows them.

    The script fills the lists, and says in the status how many results, or other ``noun``, are
    left.
    """
    search = tag(
        "label",
        tag("span", "Search"),
        tag("input", type="search", name="q", placeholder=hint, autocomplete="off"),
    )
    lists = [
        tag("label", tag("span", name.capitalize()), tag("select", name=name)) for name in facets
    ]
    clear = tag("button", "Show all", type="button")
    status = tag("p", role="status", aria_live="polite")
    return tag(
        "div",
        search,
        *lists,
        clear,
        status,
        class_="filter card",
        role="search",
        aria_label=label,
        data_noun=noun,
        hidden=True,
    )


_LONG: Final = 20
"""In an area with more results, passed and skipped ones are folded separately."""


def checks_section(run: Run, names: PageNames) -> Markup | None:
    """Every result by suite and area; None for an empty run.

    Areas with a failure are open. In a long area, passed and skipped results are folded separately.
    """
    areas = []
    for (suite, area), results in by_area(run.results).items():
        title = names.title(suite, area)
        bad = any(result.failed for result in results)
        ordered = sorted(results, key=lambda result: not result.failed)
        shown = [each for each in ordered if each.verdict not in _QUIET]
        quiet = [each for each in ordered if each.verdict in _QUIET]
        if len(results) <= _LONG or not shown:
            shown, quiet = ordered, []
        body = [_checks_table(shown, names, f"{title}: {tally(shown)}")]
        if quiet:
            folded = _checks_table(quiet, names, f"{title}: {tally(quiet)}")
            body.append(
                tag("details", tag("summary", tally(quiet)), folded, class_="quiet only-whole")
            )
        summary = tag(
            "summary",
            tag("h3", f"{title} ", tag("span", f"({suite})", class_="soft")),
            tag("span", tally(results), class_="soft"),
            badge(verdict_of(results)),
        )
        areas.append(
            tag(
                "details",
                summary,
                *body,
                class_="card area" if bad else "card area only-whole",
                open=bad,
                id=slug(suite, area),
                data_suite=suite,
                data_area=area,
            )
        )
    return section("Checks", filter_controls(), *areas) if areas else None


_QUIET: Final = frozenset({Verdict.PASS, Verdict.SKIP})


def _checks_table(results: Sequence[Result], names: PageNames, caption: str) -> Markup:
    same: dict[tuple[object, ...], list[Result]] = {}
    for result in results:
        verdict, name, reason, _ = content_key(result)
        said = (verdict, name, reason, _expected(result), result.evidence, result.blocked_by)
        same.setdefault(said, []).append(result)
    rows = [_check_row(members, names) for members in same.values()]
    head = ("Verdict", "Check", "Reason", "Evidence", "Took")
    return table_box(head, rows, caption, card=False, kind="cards checks")


def _check_row(same: Sequence[Result], names: PageNames) -> Markup:
    """One row of results that differ only in device, parameters or value, each with its anchor.

    A run has thousands of them, so that the style sheet knows cells by their order, and the script
    adds the addresses of the anchors.
    """
    first, alone = same[0], len(same) == 1
    found = _found(first)
    head: Child = result_link(first)
    if not alone:
        name = first.id.partition("[")[0]
        own = len({_found(each) for each in same}) > 1
        variants = (_variant(each, name, names, found=own) for each in same)
        head, found = join(wrapped_id(name), *variants), "" if own else found
    parts = [f"found {found}" if found else "", _expected(first)]
    return tag(
        "tr",
        tag("td", badge(first.verdict)),
        tag("th", head, scope="row"),
        tag("td", _reason(first, first.reason if alone else without_device(first), parts)),
        tag("td", ", ".join(first.evidence)),
        tag("td", units.duration(sum(each.duration_s for each in same))),
        class_=row_class(first.verdict),
        id=names.anchor(first) if alone else None,
    )


def _variant(result: Result, name: str, names: PageNames, *, found: bool) -> Markup:
    where = tag("span", f" on {result.device}", class_="soft") if result.device else None
    value = f" {_found(result)}" if found and _found(result) else None
    parameters = result.id.removeprefix(name)
    return join(" ", tag("a", parameters, where, value, id=names.anchor(result)))


def _found(result: Result) -> str:
    return value_in_words(result.value, result.unit)


def _expected(result: Result) -> str:
    return f"expected {expected_in_words(result.expected)}" if result.expected else ""


def _reason(result: Result, reason: str, parts: Sequence[str]) -> Child:
    blocked = None
    if result.blocked_by:
        blocked = tag("span", "blocked by ", wrapped_id(result.blocked_by), class_="soft")
    found = ", ".join(filter(None, parts))
    shown = tag("span", found, class_="soft") if found else None
    return join(reason, shown, blocked) if reason or shown or blocked else None
