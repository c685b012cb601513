"""The checks of one run, and the filters and search that a script adds to a page."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Final

from portagpu.base import units
from portagpu.reports.html.components import (
    badge,
    by_area,
    result_link,
    row_class,
    section,
    slug,
    table_box,
    wrapped_id,
)
from portagpu.reports.html.markup import Child, Markup, join, tag
from portagpu.runs.results.expectations import expected_in_words, value_in_words
from portagpu.runs.results.run import verdict_of
from portagpu.runs.results.verdicts import Verdict
from portagpu.runs.results.wording import content_key, tally, without_device

if TYPE_CHECKING:
    from collections.abc import Sequence

    from portagpu.reports.html.components import PageNames
    from portagpu.runs.results.run import Result, Run


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
