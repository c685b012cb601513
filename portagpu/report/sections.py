"""The sections of the report's page, each a function of the run."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from portagpu import units
from portagpu.report.charts import charts_of, figure_of
from portagpu.report.markup import Child, Markup, join, tag
from portagpu.results.advice import severity_of
from portagpu.results.expectations import expected_in_words, value_in_words
from portagpu.results.run import verdict_of
from portagpu.results.verdicts import FAILING, Evidence, Verdict
from portagpu.results.wording import (
    failures,
    found_in_words,
    further_figures,
    headline,
    tally,
    without_device,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    from portagpu.results.run import Result, Run

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


ONLY_FAILURES: Final = "only-failures"
"""The id of the check box that hides what did not fail, by the style sheet alone."""
_LONG: Final = 20
"""In an area with more results, passed and skipped ones are folded separately."""


@dataclass(frozen=True, slots=True)
class PageNames:
    """The anchor of each result and the title of each area, for links within the page.

    An anchor is the result's suite, id and device, so that a link stays valid for the next run.
    """

    anchors: Mapping[tuple[str, str, str | None], str]
    titles: Mapping[str, str]

    def anchor(self, result: Result) -> str:
        return self.anchors[result.suite, result.id, result.device]

    def title(self, suite: str, area: str) -> str:
        """The gate's title, as on a terminal; the id of any other area."""
        return self.titles.get(area, area) if suite == "bringup" else area


def names(run: Run, titles: Mapping[str, str]) -> PageNames:
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


def banner(run: Run, title: str, names: PageNames) -> Markup:
    """The head of the page: verdict, reason, the most severe failure and what to do."""
    facts: list[tuple[str, Child]] = []
    wide: list[tuple[str, Child]] = []
    if failures := run.failures:
        gravest = failures[0]
        facts.append(("Gravest failure", severity_of(gravest).title))
        href = f"#{quote(names.anchor(gravest))}"
        facts.append(("Check", tag("a", _id(gravest.id), href=href)))
        facts.append(("Device", gravest.device or "none named"))
        if blocked := sum(result.blocked_by is not None for result in run.results):
            facts.append(("Blocked by a failure", f"{blocked} of {len(run.results)} checks"))
        if run.next_step:
            wide.append(("Next step", _code_marked(run.next_step)))
    counts = [
        tag("li", badge(verdict, f"{count} {verdict}"))
        for verdict, count in run.counts.items()
        if count
    ]
    return tag(
        "header",
        tag("p", title, class_="about"),
        tag("h1", icon(run.verdict), str(run.verdict)),
        tag("p", tally(run.results) if run.verdict is Verdict.PASS else run.why, class_="why"),
        _facts(facts, wide) if facts else None,
        tag("ul", *counts, class_="counts", aria_label="Results by verdict") if counts else None,
        class_=f"card verdict {run.verdict.lower()}",
    )


def contents(sections: Sequence[tuple[str, Markup | None]], run: Run, names: PageNames) -> Markup:
    """The table of contents: the sections that are there, and the areas of the checks."""
    links = [
        tag("li", tag("a", title, href=f"#{_slug(title)}")) for title, there in sections if there
    ]
    areas = [
        tag("li", tag("a", names.title(suite, area), href=f"#{_slug(suite, area)}"))
        for suite, area in _by_area(run.results)
    ]
    only = None
    if run.failures:
        only = tag("label", "only failures", for_=ONLY_FAILURES, class_="switch")
    below = tag("ul", *areas, class_="areas", aria_label="Areas of the checks") if areas else None
    return tag("nav", tag("ul", *links), below, only, class_="contents", aria_label="Contents")


def failures_section(run: Run, names: PageNames) -> Markup | None:
    """Every failure, the most severe first, worded as on the terminal; None without a failure."""
    if not run.failures:
        return None
    parts: list[Markup] = []
    for group in failures(run.results):
        rows = []
        for members in group.alike:
            first = members[0]
            value = value_in_words(first.value, first.unit)
            shown = [_link(each, names) for each in members]
            rows.append(
                tag(
                    "tr",
                    tag("th", *_as_lines(shown), scope="row"),
                    tag("td", badge(first.verdict), class_="verdict-cell"),
                    tag("td", without_device(first), class_="reason"),
                    tag("td", value or None, data_label="Found"),
                    tag("td", *_expected_cells(first), data_label="Expected"),
                    class_="bad",
                )
            )
        check = group.check
        head = ("Check", "Verdict", "Reason", "Found", "Expected")
        steps = tag(
            "div",
            tag("p", tag("b", "What it means: "), _code_marked(check.means)) if check else None,
            tag("p", tag("b", "Next: "), _code_marked(check.do)) if check else None,
            class_="advice",
        )
        table = _table(head, rows, f"Failures: {group.title}", card=False)
        parts.append(tag("div", table, steps, class_="card failures"))
    note = tag("p", "The gravest first. Every check is in docs/when-it-fails.md of the project.")
    return _section("Failures", note, *parts)


def run_card(run: Run) -> Markup:
    """Where, when and with what it ran."""
    info = run.info
    versions = ", ".join(f"{key} {value or 'none'}" for key, value in info.versions.items())
    facts: list[tuple[str, Child]] = [
        ("Target", info.target or "none: this hardware matches no target"),
        ("Started", info.started),
        ("Took", units.duration(info.duration_s)),
        ("Run", info.id),
    ]
    if info.replay:
        facts.insert(1, ("Judged", "a recording: nothing ran on this hardware"))
    else:
        facts[1:1] = [("Backend", info.backend or "none"), ("Host", info.host or "not named")]
    wide: list[tuple[str, Child]] = [
        *([("Recordings", _recordings(info.replay))] if info.replay else []),
        ("Devices", _devices(info.devices)),
        ("Versions", versions),
        ("Command", tag("code", shlex.join(info.command)) if info.command else "not recorded"),
    ]
    return _section("Run", _facts(facts, wide, class_="card"), failures=False)


def gates_section(run: Run, names: PageNames) -> Markup | None:
    """The gates of a bring-up in order, each with its verdict; None for another run."""
    grouped = _by_area(result for result in run.results if result.suite == "bringup")
    if not grouped:
        return None
    rows = []
    for number, ((suite, area), results) in enumerate(grouped.items(), 1):
        summed_s = sum(result.duration_s for result in results)
        took = units.duration(run.info.area_duration_s.get(area, summed_s))
        verdict = verdict_of(results)
        title = tag("a", names.title(suite, area), href=f"#{_slug(suite, area)}")
        rows.append(
            tag(
                "tr",
                tag("th", f"{number}. ", title, scope="row"),
                tag("td", badge(verdict), class_="verdict-cell"),
                tag("td", headline(results), class_="reason"),
                tag("td", took, class_="n", data_label="Took"),
                class_=_row_class(verdict),
            )
        )
    head = ("Gate", "Verdict", "Reason", "Took")
    return _section("Gates", _table(head, rows, "Gates in the order in which they ran"))


def curves_section(run: Run) -> Markup | None:
    """The charts of all curves; None if there is none."""
    charts = charts_of(run.results)
    if not charts:
        return None
    drawn = (figure_of(chart, f"chart-{index}") for index, chart in enumerate(charts))
    return _section("Curves", tag("div", *drawn, class_="charts"), failures=False)


def numbers_section(run: Run, names: PageNames) -> Markup | None:
    """Every measure with its unit, spread, expectation and evidence; None if there is none.

    Counts and text values are not measures: they are shown with their checks.
    """
    measured = [
        result
        for result in run.results
        if isinstance(result.value, int | float) and (result.unit != "1" or result.statistic)
    ]
    if not measured:
        return None
    limits = any(result.does_not_show for result in measured)
    rows = [
        tag(
            "tr",
            tag("th", _link(result, names), scope="row"),
            tag("td", *_value(result), class_="n", data_label="Value"),
            tag("td", *_expected_cells(result), data_label="Expected"),
            tag("td", badge(result.verdict), class_="verdict-cell"),
            tag("td", *_evidence_badges(result)),
            tag("td", result.does_not_show or None, data_label="Does not show") if limits else None,
            class_=_row_class(result.verdict),
        )
        for result in measured
    ]
    head = ["Measure", "Value", "Expected", "Verdict", "Evidence"]
    head += ["Does not show"] if limits else []
    table = _table(head, rows, "What was measured, and by what it is judged")
    return _section("Numbers", table, failures=any(result.failed for result in measured))


def checks_section(run: Run, names: PageNames) -> Markup | None:
    """Every result by suite and area; None for an empty run.

    Areas with a failure are open. In a long area, passed and skipped results are folded separately.
    """
    areas = []
    for (suite, area), results in _by_area(run.results).items():
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
        classes = "card area" if bad else "card area only-whole"
        slug = _slug(suite, area)
        areas.append(tag("details", summary, *body, class_=classes, open=bad, id=slug))
    return _section("Checks", *areas) if areas else None


_QUIET: Final = frozenset({Verdict.PASS, Verdict.SKIP})


def _checks_table(results: Sequence[Result], names: PageNames, caption: str) -> Markup:
    rows = [
        tag(
            "tr",
            tag("td", badge(result.verdict), class_="verdict-cell"),
            tag("th", _link(result, names), scope="row"),
            tag("td", _reason(result), class_="reason"),
            tag("td", *_evidence_badges(result)),
            tag("td", units.duration(result.duration_s), class_="n", data_label="Took"),
            class_=_row_class(result.verdict),
            id=names.anchor(result),
        )
        for result in results
    ]
    head = ("Verdict", "Check", "Reason", "Evidence", "Took")
    return _table(head, rows, caption, card=False)


def footer(run: Run) -> Markup:
    """What the verdicts and badges of this run mean."""
    verdicts = [(v.value, MEANING[v]) for v, count in run.counts.items() if count]
    earned = {badge for result in run.results for badge in result.evidence}
    badges = [(b.value, EVIDENCE_MEANING[b]) for b in Evidence if b in earned]
    return tag(
        "footer",
        _legend("Verdicts", verdicts) if verdicts else None,
        _legend("Evidence", badges) if badges else None,
        tag("p", "A run fails closed: what was not judged is never a PASS."),
    )


def icon(verdict: Verdict) -> Markup:
    """The verdict's shape, for readers who cannot see its colour."""
    path = tag("path", d=_ICONS[verdict])
    return tag("svg", path, viewBox="0 0 24 24", class_="icon", aria_hidden="true")


def badge(verdict: Verdict, words: str | None = None) -> Markup:
    """Shape, word and colour of a verdict."""
    return tag("span", icon(verdict), words or str(verdict), class_=f"badge {verdict.lower()}")


def _section(title: str, *content: Child, failures: bool = True) -> Markup:
    """A section of the page; without ``failures`` it is hidden while only failures are shown."""
    hidden = None if failures else "only-whole"
    return tag("section", tag("h2", title), *content, id=_slug(title), class_=hidden)


def _code_marked(text: str) -> Markup:
    """``text`` with backticks turned into ``code`` elements."""
    parts = text.split("`")
    return join(*(tag("code", part) if n % 2 else part for n, part in enumerate(parts)))


def _slug(*parts: str) -> str:
    """An anchor of a section or an area."""
    return "-".join("-".join(parts).lower().split())


def _row_class(verdict: Verdict) -> str:
    return "bad" if verdict in FAILING else "only-whole"


def _as_lines(parts: Sequence[Child]) -> list[Markup]:
    return [tag("div", part) for part in parts]


def _facts(
    facts: Sequence[tuple[str, Child]],
    wide: Sequence[tuple[str, Child]] = (),
    class_: str = "",
) -> Markup:
    narrow = [tag("div", tag("dt", name), tag("dd", value)) for name, value in facts]
    broad = [tag("div", tag("dt", name), tag("dd", value), class_="wide") for name, value in wide]
    return tag("dl", *narrow, *broad, class_=f"facts {class_}".strip())


def _legend(title: str, entries: Sequence[tuple[str, str]]) -> Markup:
    items = [join(tag("dt", word), tag("dd", meaning)) for word, meaning in entries]
    return join(tag("h2", title), tag("dl", *items))


def _table(
    head: Sequence[str], rows: Sequence[Markup], caption: str, *, card: bool = True
) -> Markup:
    header = tag("thead", tag("tr", *(tag("th", name, scope="col") for name in head)))
    table = tag("table", tag("caption", caption), header, tag("tbody", *rows), class_="cards")
    return tag("div", table, class_="wide-box card" if card else "wide-box")


def _by_area(results: Iterable[Result]) -> dict[tuple[str, str], list[Result]]:
    groups: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        groups.setdefault((result.suite, result.area), []).append(result)
    return groups


def _id(identifier: str) -> Markup:
    """An id that may be wrapped after its parts."""
    parts = re.split(r"(?<=[/,:._\[-])(?=.)", identifier)
    pieces = [join(part, tag("wbr")) for part in parts[:-1]]
    return tag("span", *pieces, parts[-1], class_="id")


def _link(result: Result, names: PageNames) -> Markup:
    """The result's id as a link to its check, and its device."""
    where = tag("span", f"on {result.device}", class_="soft") if result.device else None
    return join(tag("a", _id(result.id), href=f"#{quote(names.anchor(result))}"), where)


def _reason(result: Result) -> Child:
    blocked = None
    if result.blocked_by:
        blocked = tag("span", "blocked by ", _id(result.blocked_by), class_="soft")
    found = found_in_words(result)
    shown = tag("span", found, class_="soft") if found else None
    return join(result.reason, shown, blocked) if result.reason or shown or blocked else None


def _value(result: Result) -> list[Child]:
    assert isinstance(result.value, int | float)  # noqa: S101 - the caller chose those
    parts: list[Child] = [units.quantity(result.value, result.unit)]
    about = []
    if result.spread is not None:
        about.append(f"± {units.quantity(result.spread, result.unit, like=result.value)}")
    if result.statistic:
        about.append(result.statistic + (f" of {result.n}" if result.n else ""))
    if about:
        parts.append(tag("span", ", ".join(about), class_="soft"))
    if result.shape is not None:
        parts.append(tag("span", _shape(result.shape), class_="soft"))
    return parts


def _shape(shape: str | Sequence[int] | Mapping[str, int | str]) -> str:
    if isinstance(shape, str):
        return shape
    if isinstance(shape, dict):
        return ", ".join(f"{key} {value}" for key, value in shape.items())
    return " × ".join(map(str, shape))


def _expected_cells(result: Result) -> list[Child]:
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


def _evidence_badges(result: Result) -> list[Child]:
    return [tag("span", str(badge_), class_="evidence") for badge_ in result.evidence]


def _recordings(replay: Sequence[Mapping[str, str | None]]) -> Child:
    parts: list[Child] = []
    for each in replay:
        known = each["sha256"]
        parts.append("; " if parts else None)
        parts.append(f"{each['name']}, " + ("sha256 " if known else "too large to be hashed"))
        parts.append(tag("code", known) if known else None)
        parts.append(f", published at {each['source']}" if each["source"] else None)
    return join(*parts)


def _devices(devices: Sequence[Mapping[str, Any]]) -> Child:
    if not devices:
        return "none"
    counted: dict[str, int] = {}
    for device in devices:
        parts = [str(device["name"])]
        if device.get("arch"):
            parts.append(str(device["arch"]))
        if isinstance(device.get("memory_bytes"), int):
            parts.append(units.size(device["memory_bytes"]))
        shown = ", ".join(parts)
        counted[shown] = counted.get(shown, 0) + 1
    return "; ".join(f"{n} × {shown}" if n > 1 else shown for shown, n in counted.items())
