"""The page of several runs: target by area, what fails, measures side by side, and every check."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from portagpu.base import units
from portagpu.reports.html import compare, roofline
from portagpu.reports.html.components import (
    badge,
    code_marked,
    fact_list,
    filter_controls,
    icon,
    result_link,
    script,
    section,
    shapes,
    table_box,
    wrapped_id,
)
from portagpu.reports.html.markup import CSS, Child, Markup, join, json_block, page, shown_text, tag
from portagpu.reports.html.sections import contents, failure_cards, footer, hardware_of, named
from portagpu.reports.proofs.evidence import cells
from portagpu.reports.proofs.table import SUITES
from portagpu.runs.results.advice import gravest_first, severity_of
from portagpu.runs.results.verdicts import FAILING, Verdict, fold
from portagpu.runs.results.wording import found_in_words

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    from portagpu.reports.html.sections import NamedRun
    from portagpu.reports.proofs.evidence import Area, Cell
    from portagpu.runs.ledger import Clearance
    from portagpu.runs.results.run import Result, Run


def checks_section(runs: Sequence[NamedRun]) -> Markup:
    """The table that the script fills, and its data."""
    head = ("Verdict", "Check", "Reason", "Evidence", "Run")
    table = tag(
        "table",
        tag("caption", "The checks of all runs"),
        tag("thead", tag("tr", *(tag("th", name, scope="col") for name in head))),
        tag("tbody"),
        class_="cards checks of-runs",
    )
    note = "The checks of several runs need scripts. The result files have all of them."
    return section(
        "Checks",
        filter_controls(),
        tag("noscript", tag("p", note)),
        tag("div", table, class_="wide-box card"),
        tag("button", "Show more", type="button", class_="more", hidden=True),
        json_block(data_of(runs), "DATA"),
    )


def data_of(runs: Sequence[NamedRun]) -> dict[str, Any]:
    """Every result as whole numbers, which are places in the lists of the other keys.

    A row is run, check (suite, area, id), verdict, and the texts of device, reason, what was found
    and the evidence. So 100,000 results of 35 targets are 2.4 MB.
    """
    verdicts = list(Verdict)
    texts: dict[Hashable, int] = {"": 0}
    checks: dict[Hashable, int] = {}
    rows = [
        [
            place,
            _place(checks, tuple(map(shown_text, (*result.origin, result.id)))),
            verdicts.index(result.verdict),
            _place(texts, shown_text(result.device or "")),
            _place(texts, shown_text(result.reason)),
            _place(texts, shown_text(_further(result))),
            _place(texts, ", ".join(result.evidence)),
        ]
        for place, each in enumerate(runs)
        for result in each.run.results
    ]
    return {
        "verdicts": list(map(str, verdicts)),
        "runs": [{"name": shown_text(n.name), "target": shown_text(n.hardware)} for n in runs],
        "checks": list(checks),
        "texts": list(texts),
        "rows": rows,
    }


def _further(result: Result) -> str:
    """What was found and expected, and what kept the result from running."""
    blocked = f"blocked by {result.blocked_by}" if result.blocked_by else ""
    return ", ".join(filter(None, (found_in_words(result), blocked)))


def _place(known: dict[Hashable, int], value: Hashable) -> int:
    return known.setdefault(value, len(known))


_MAX_FAILURES: Final = 40
"""Failures of one run that are written out; the checks have all of them."""


def banner(runs: Sequence[NamedRun], title: str, standing: Sequence[Cell] = ()) -> Markup:
    """The verdict of all runs together, the most severe failure and what to do."""
    verdict = verdict_of_all(runs, standing)
    failing = {id(result): each for each in runs for result in each.run.failures}
    facts: list[tuple[str, Child]] = []
    wide: list[tuple[str, Child]] = []
    if failing:
        results = [result for each in runs for result in each.run.failures]
        gravest = gravest_first(results)[0]
        owner = failing[id(gravest)]
        facts.append(("Gravest failure", severity_of(gravest).title))
        facts.append(("Check", wrapped_id(gravest.id, _address(owner, gravest))))
        facts.append(("Run", owner.name))
        facts.append(("Device", gravest.device or "none named"))
        if owner.run.next_step:
            wide.append(("Next step", code_marked(owner.run.next_step)))
    counted = Counter(each.run.verdict for each in runs)
    counts = [
        tag("li", badge(each, f"{counted[each]} {each}")) for each in Verdict if counted[each]
    ]
    return tag(
        "header",
        tag("p", title, class_="about"),
        tag("h1", icon(verdict), str(verdict)),
        tag("p", _why(runs, standing), class_="why"),
        fact_list(facts, wide) if facts else None,
        tag("ul", *counts, class_="counts", aria_label="Runs by verdict"),
        class_=f"card verdict {verdict.lower()}",
    )


def verdict_of_all(runs: Sequence[NamedRun], standing: Sequence[Cell] = ()) -> Verdict:
    """The fold of the verdicts of the runs, and of what fails in them together alone, as a device
    that a later run lacks; strict if one of them was."""
    strict = any(each.run.info.strict for each in runs)
    verdicts = [each.run.verdict for each in runs]
    verdicts += (each.verdict for each in standing if each.verdict in FAILING)
    return fold(verdicts, strict=strict)


def _why(runs: Sequence[NamedRun], standing: Sequence[Cell]) -> str:
    """ "2 of 5 runs failed: A; B; 1 of 5 runs not judged: C"."""
    failed = [each.name for each in runs if each.run.verdict in FAILING]
    unjudged = [each.name for each in runs if each.run.verdict is Verdict.INCONCLUSIVE]
    together = [f"{each.area} of {each.target}" for each in standing if each.verdict in FAILING]
    whole = f"of {units.count(len(runs), 'run')}"
    parts = [
        f"{len(failed)} {whole} failed: {_listed(failed)}" if failed else None,
        f"{len(unjudged)} {whole} not judged: {_listed(unjudged)}" if unjudged else None,
        f"together they fail: {_listed(together)}" if together and not failed else None,
    ]
    return "; ".join(filter(None, parts)) or f"none {whole} failed"


def _listed(names: Sequence[str]) -> str:
    more = len(names) - 3
    return "; ".join(names[:3]) + (f" and {more} more" if more > 0 else "")


def standing_cells(runs: Sequence[NamedRun], clearances: Sequence[Clearance] = ()) -> list[Cell]:
    """What stands of each target and area; what ran stands before recordings."""
    found = cells(((each.name, each.run) for each in runs), hardware_of, clearances)
    ran = {(each.target, each.suite, each.area) for each in found if not each.recorded}
    return [
        each
        for each in found
        if not each.recorded or (each.target, each.suite, each.area) not in ran
    ]


def matrix_section(runs: Sequence[NamedRun], standing: Sequence[Cell]) -> Markup:
    """Target by area, as ``matrix show`` has it: what stands of each, and what it earned.

    Whichever are more stand below each other.
    """
    found: dict[str, dict[Area, Cell]] = {}
    for cell in standing:
        found.setdefault(cell.target, {})[cell.suite, cell.area] = cell
    # in the order in which they ran
    there = {result.origin: None for each in runs for result in each.run.results}
    there |= dict.fromkeys(area for areas in found.values() for area in areas)
    ordered = sorted(there, key=lambda area: _suite_place(area[0]))
    names = list(found)
    targets = [tag("span", name, class_="id") for name in names]
    titles = [join(area, tag("span", suite, class_="soft")) for suite, area in ordered]
    grid = [[_cell(found[name].get(area)) for area in ordered] for name in names]
    corner, below, across = "Target", targets, titles
    if len(targets) <= len(titles):
        corner, below, across = "Area", titles, targets
        grid = [list(row) for row in zip(*grid, strict=True)]
    head = [tag("th", corner, scope="col"), *(tag("th", shown, scope="col") for shown in across)]
    body = [
        tag("tr", tag("th", shown, scope="row"), *row)
        for shown, row in zip(below, grid, strict=True)
    ]
    table = tag(
        "table",
        tag("caption", _MATRIX),
        tag("thead", tag("tr", *head)),
        tag("tbody", *body),
        class_=_matrix_class(len(across)),
    )
    box = tag("div", table, class_="wide-box card", tabindex=0, role="region", aria_label="Matrix")
    return section("Matrix", box)


_MATRIX: Final = (
    "What stands of each target and area, with its strongest evidence and the number of results;"
    " empty where no run has a result"
)


def _matrix_class(columns: int) -> str:
    """How the style sheet prints it: upright, across the sheet, or across it and smaller."""
    return "matrix" if columns <= 8 else "matrix wide" if columns <= 16 else "matrix wide widest"


def _suite_place(suite: str) -> tuple[int, str]:
    return (SUITES.index(suite) if suite in SUITES else len(SUITES), suite)


def _cell(cell: Cell | None) -> Markup:
    if cell is None:
        return tag("td")
    address = fragment(target=cell.target, suite=cell.suite, area=cell.area)
    link = tag("a", badge(cell.verdict), href=address)
    return tag("td", link, tag("span", cell.detail, class_="soft"))


def fragment(**chosen: str) -> str:
    """The address that shows these checks alone: ``#?target=T&suite=S``."""
    return f"#?{urlencode({key: shown_text(value) for key, value in chosen.items()})}"


def runs_section(runs: Sequence[NamedRun]) -> Markup:
    """Each run with its verdict and its reason, when and with what it ran."""
    rows = [
        tag(
            "tr",
            tag("th", tag("a", each.name, href=fragment(run=each.name)), scope="row"),
            tag("td", badge(each.run.verdict), class_="verdict-cell"),
            tag("td", each.run.why or None),
            tag("td", *_when(each), data_label="Started"),
            tag("td", _versions(each.run.info.versions), data_label="Versions"),
        )
        for each in runs
    ]
    head = ("Run", "Verdict", "Reason", "Started", "Versions")
    return section("Runs", table_box(head, rows, "The runs, in the order in which they were named"))


def _when(each: NamedRun) -> list[Child]:
    info = each.run.info
    judged = "a recording" if info.replay else info.host
    return [info.started, tag("span", f"on {judged}", class_="soft") if judged else None]


def _versions(versions: Mapping[str, str | None]) -> str:
    return ", ".join(f"{key} {value}" for key, value in versions.items() if value)


def failures_section(runs: Sequence[NamedRun]) -> Markup | None:
    """What failed in each run, the most severe first; None if nothing did."""
    parts: list[Markup] = []
    for each in runs:
        if not (failures := each.run.failures):
            continue
        more = len(failures) - _MAX_FAILURES
        note = tag("p", f"and {more} more, among the checks", class_="soft") if more > 0 else None
        cards = failure_cards(failures[:_MAX_FAILURES], partial(_to_check, each))
        parts.append(tag("div", tag("h3", each.name), *cards, note, class_="of-run"))
    return section("Failures", *parts) if parts else None


def _to_check(each: NamedRun, result: Result) -> Markup:
    return result_link(result, _address(each, result))


def _address(each: NamedRun, result: Result) -> str:
    suite, area = result.origin
    return fragment(verdict=str(result.verdict), suite=suite, area=area, run=each.name, q=result.id)


def render_runs(
    runs: Sequence[Run], *, title: str | None = None, clearances: Sequence[Clearance] = ()
) -> str:
    """``runs`` as an HTML document: all text from the runs is escaped.

    The order is: verdict and what to do, target by area, failures, runs, measures side by side,
    roofline, curves, history, and the checks, which a script lists. The first run is the one that
    others are compared with.

    :param runs: in the order of the page
    :param title: by default made of the numbers of runs and targets
    :param clearances: of devices in these runs: which failures no longer count
    :raises ValueError: without a run
    """
    if not runs:
        raise ValueError("a report needs at least one run")
    listed = named(runs)
    standing = standing_cells(listed, clearances)
    targets = len({each.hardware for each in listed})
    default = f"portagpu: {units.count(len(runs), 'run')} of {units.count(targets, 'target')}"
    shown = title or default
    parts = (
        ("Matrix", matrix_section(listed, standing)),
        ("Failures", failures_section(listed)),
        ("Runs", runs_section(listed)),
        ("Measures", compare.measures_section(listed)),
        ("Roofline", _roofline_section(listed)),
        ("Curves", compare.curves_section(listed)),
        ("History", compare.history_section(listed)),
        ("Checks", checks_section(listed)),
    )
    main = tag(
        "main",
        shapes(),
        banner(listed, shown, standing),
        contents(parts),
        *(part for _, part in parts),
        footer([result for run in runs for result in run.results]),
    )
    return page(f"{verdict_of_all(listed, standing)}: {shown}", CSS, main, script())


def _roofline_section(runs: Sequence[NamedRun]) -> Markup | None:
    figures = roofline.figures([(each.name, each.run) for each in runs])
    return section("Roofline", tag("div", *figures, class_="charts")) if figures else None
