"""Parts of a page of results, and the names of several runs on one page."""

from __future__ import annotations

import shlex
from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Final

from portagpu.base import units
from portagpu.base.text import shortened
from portagpu.reports.html import roofline
from portagpu.reports.html.charts import charts_of, figure_of
from portagpu.reports.html.components import (
    EVIDENCE_MEANING,
    MEANING,
    as_lines,
    badge,
    by_area,
    code_marked,
    evidence_badges,
    expected_cells,
    fact_list,
    icon,
    meanings,
    result_link,
    row_class,
    section,
    shape_of,
    slug,
    soft,
    statistic_of,
    table_box,
    value_and_spread,
    wrapped_id,
)
from portagpu.reports.html.markup import Child, Markup, join, tag
from portagpu.reports.proofs.evidence import target_of
from portagpu.runs.results.advice import severity_of
from portagpu.runs.results.run import verdict_of
from portagpu.runs.results.verdicts import Evidence, Verdict
from portagpu.runs.results.wording import failures, headline, tally, value_in_words, without_device

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any

    from portagpu.reports.html.components import PageNames
    from portagpu.runs.results.run import Result, Run


@dataclass(frozen=True)
class NamedRun:
    """A run with the ``name`` that the page gives it, and the ``hardware`` that it is of."""

    name: str
    hardware: str
    run: Run

    @cached_property
    def started(self) -> datetime:
        """When it started; the schema has checked that it can be read."""
        return datetime.fromisoformat(self.run.info.started)


def named(runs: Sequence[Run]) -> list[NamedRun]:
    """The runs in their order, each with the shortest name that no other has.

    That is its hardware; where others have the same its host too, then its start, then its id.
    """
    hardware = [hardware_of(run) for run in runs]
    shown: list[list[str]] = [[each] for each in hardware]
    for more in ("host", "started", "id"):
        same = Counter(map(tuple, shown))
        for run, parts in zip(runs, shown, strict=True):
            if same[tuple(parts)] > 1 and (text := getattr(run.info, more)):
                parts.append(shortened(text))
    times: Counter[str] = Counter()
    for parts in shown:
        times[", ".join(parts)] += 1
        if (number := times[", ".join(parts)]) > 1:
            parts[-1] += f" ({number})"
    return [
        NamedRun(", ".join(parts), each, run)
        for parts, each, run in zip(shown, hardware, runs, strict=True)
    ]


def is_measure(result: Result) -> bool:
    """Whether it has a number to compare: counts and words are shown with their checks."""
    return isinstance(result.value, int | float) and (
        result.unit != "1" or result.statistic is not None
    )


def hardware_of(run: Run) -> str:
    """The name of what a run is of: its target, or its device where it is of none."""
    info = run.info
    if info.target:
        return shortened(target_of(run) or f"{info.target}, on other hardware")
    name = str(info.devices[0]["name"]) if info.devices else info.backend
    return shortened(name or "unknown hardware")


ONLY_FAILURES: Final = "only-failures"
"""The id of the check box that hides what did not fail, by the style sheet alone."""


def banner(run: Run, title: str, names: PageNames) -> Markup:
    """The head of the page: verdict, reason, the most severe failure and what to do."""
    facts: list[tuple[str, Child]] = []
    wide: list[tuple[str, Child]] = []
    if failures := run.failures:
        gravest = failures[0]
        facts.append(("Gravest failure", severity_of(gravest).title))
        facts.append(("Check", wrapped_id(gravest.id, names.address(gravest))))
        facts.append(("Device", gravest.device or "none named"))
        if blocked := sum(result.blocked_by is not None for result in run.results):
            facts.append(("Blocked by a failure", f"{blocked} of {len(run.results)} checks"))
        if run.next_step:
            wide.append(("Next step", code_marked(run.next_step)))
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
        fact_list(facts, wide) if facts else None,
        tag("ul", *counts, class_="counts", aria_label="Results by verdict") if counts else None,
        class_=f"card verdict {run.verdict.lower()}",
    )


def contents(
    sections: Sequence[tuple[str, Markup | None]],
    areas: Iterable[tuple[str, str]] = (),
    *,
    only_failures: bool = False,
) -> Markup:
    """The table of contents: the sections that are there, and (title, anchor) of areas below.

    With ``only_failures`` it has the label of the box that hides all else.
    """
    links = [
        tag("li", tag("a", title, href=f"#{slug(title)}")) for title, there in sections if there
    ]
    below = [tag("li", tag("a", title, href=f"#{anchor}")) for title, anchor in areas]
    only = tag("label", "only failures", for_=ONLY_FAILURES, class_="switch")
    return tag(
        "nav",
        tag("ul", *links),
        tag("ul", *below, class_="areas", aria_label="Areas of the checks") if below else None,
        only if only_failures else None,
        class_="contents",
        aria_label="Contents",
    )


def areas_of(run: Run, names: PageNames) -> list[tuple[str, str]]:
    """The title and the anchor of each area of the checks."""
    return [(names.title(*area), slug(*area)) for area in by_area(run.results)]


def failures_section(run: Run, names: PageNames) -> Markup | None:
    """Every failure, the most severe first, worded as on the terminal; None without a failure."""
    if not run.failures:
        return None
    note = tag("p", "The gravest first. Every check is in docs/when-it-fails.md of the project.")
    cards = failure_cards(run.results, lambda result: result_link(result, names.address(result)))
    return section("Failures", note, *cards)


def failure_cards(results: Iterable[Result], link: Callable[[Result], Child]) -> list[Markup]:
    """A table of each kind of failure with what it means and what to do, the gravest first.

    ``link`` writes the id of a failure.
    """
    cards: list[Markup] = []
    for group in failures(results):
        rows = []
        for members in group.groups:
            first = members[0]
            value = value_in_words(first.value, first.unit)
            rows.append(
                tag(
                    "tr",
                    tag("th", *as_lines([link(each) for each in members]), scope="row"),
                    tag("td", badge(first.verdict), class_="verdict-cell"),
                    tag("td", without_device(first), class_="reason"),
                    tag("td", value or None, data_label="Found"),
                    tag("td", *expected_cells(first), data_label="Expected"),
                    class_="bad",
                )
            )
        check = group.check
        head = ("Check", "Verdict", "Reason", "Found", "Expected")
        steps = tag(
            "div",
            tag("p", tag("b", "What it means: "), code_marked(check.means)) if check else None,
            tag("p", tag("b", "Next: "), code_marked(check.do)) if check else None,
            class_="advice",
        )
        table = table_box(head, rows, f"Failures: {group.title}", card=False)
        cards.append(tag("div", table, steps, class_="card failures"))
    return cards


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
    return section("Run", fact_list(facts, wide, class_="card"), failures=False)


def gates_section(run: Run, names: PageNames) -> Markup | None:
    """The gates of a bring-up in order, each with its verdict; None for another run."""
    grouped = by_area(result for result in run.results if result.suite == "bringup")
    if not grouped:
        return None
    rows = []
    for number, ((suite, area), results) in enumerate(grouped.items(), 1):
        summed_s = sum(result.duration_s for result in results)
        took = units.duration(run.info.area_duration_s.get(area, summed_s))
        verdict = verdict_of(results)
        title = tag("a", names.title(suite, area), href=f"#{slug(suite, area)}")
        rows.append(
            tag(
                "tr",
                tag("th", f"{number}. ", title, scope="row"),
                tag("td", badge(verdict), class_="verdict-cell"),
                tag("td", headline(results), class_="reason"),
                tag("td", took, class_="n", data_label="Took"),
                class_=row_class(verdict),
            )
        )
    head = ("Gate", "Verdict", "Reason", "Took")
    return section("Gates", table_box(head, rows, "Gates in the order in which they ran"))


def roofline_section(run: Run) -> Markup | None:
    """Every measure that states operations and bytes, under the ceilings; None without any."""
    figures = roofline.figures([("", run)])
    return (
        section("Roofline", tag("div", *figures, class_="charts"), failures=False)
        if figures
        else None
    )


def curves_section(run: Run) -> Markup | None:
    """The charts of all curves; None if there is none."""
    drawn = [figure_of(chart, f"chart-{n}") for n, chart in enumerate(charts_of(run.results))]
    return section("Curves", tag("div", *drawn, class_="charts"), failures=False) if drawn else None


def numbers_section(run: Run, names: PageNames) -> Markup | None:
    """Every measure with its unit, spread, expectation and evidence; None if there is none.

    Devices that differ in their values alone share a row. Counts and text values are not measures:
    they are shown with their checks.
    """
    measures = list(filter(is_measure, run.results))
    if not measures:
        return None
    limits = any(result.does_not_show for result in measures)
    same: dict[tuple[object, ...], list[Result]] = {}
    for result in measures:
        stated = (*expected_cells(result), shape_of(result), result.does_not_show)
        said = (result.suite, result.id, result.verdict, result.evidence, *stated)
        same.setdefault(said, []).append(result)
    rows = [_numbers_row(members, names, limits=limits) for members in same.values()]
    head = ["Measure", "Value", "Expected", "Verdict", "Evidence"]
    head += ["Does not show"] if limits else []
    table = table_box(head, rows, "What was measured, and by what it is judged")
    return section("Numbers", table, failures=any(result.failed for result in measures))


def _numbers_row(same: Sequence[Result], names: PageNames, *, limits: bool) -> Markup:
    first = same[0]
    head = result_link(first, names.address(first))
    if len(same) > 1:
        head = wrapped_id(first.id)
    return tag(
        "tr",
        tag("th", head, scope="row"),
        tag("td", *_values(same, names), class_="n", data_label="Value"),
        tag("td", *expected_cells(first), data_label="Expected"),
        tag("td", badge(first.verdict), class_="verdict-cell"),
        tag("td", *evidence_badges(first.evidence)),
        tag("td", first.does_not_show or None, data_label="Does not show") if limits else None,
        class_=row_class(first.verdict),
    )


def _values(same: Sequence[Result], names: PageNames) -> list[Child]:
    """The value of one device, or that of each on a line of its own, and how they were made."""
    first = same[0]
    if len(same) == 1:
        value, spread = value_and_spread(first)
        return [value, soft(spread, statistic_of(first)), soft(shape_of(first))]
    shared = len({statistic_of(each) for each in same}) == 1
    lines = []
    for each in same:
        value, spread = value_and_spread(each)
        link = tag("a", each.device or "no device", href=names.address(each))
        about = soft(spread, None if shared else statistic_of(each))
        lines.append(join(link, f" {value} ", about))
    return [*as_lines(lines), soft(statistic_of(first) if shared else None), soft(shape_of(first))]


def footer(results: Sequence[Result]) -> Markup:
    """What the verdicts and badges of these results mean."""
    verdicts = {result.verdict for result in results}
    earned = {each for result in results for each in result.evidence}
    said = [(each.value, MEANING[each]) for each in Verdict if each in verdicts]
    badges = [(each.value, EVIDENCE_MEANING[each]) for each in Evidence if each in earned]
    return tag(
        "footer",
        meanings("Verdicts", said) if said else None,
        meanings("Evidence", badges) if badges else None,
        tag("p", "A run fails closed: what was not judged is never a PASS."),
    )


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
