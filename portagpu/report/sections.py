"""The parts of the report's page, each a function of the run."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Final

from portagpu import units
from portagpu.report.charts import collect, figure
from portagpu.report.markup import Child, Markup, join, tag
from portagpu.results import bounds
from portagpu.verdicts import FAILING, Evidence, Verdict, fold

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    from portagpu.results import Result, Run

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


def banner(run: Run, title: str) -> Markup:
    """The verdict, why, and the first failing gate and culprit: what a reader came for."""
    facts: list[tuple[str, Child]] = []
    if failure := run.first_failure:
        gate = "First failing gate" if failure.suite == "bringup" else "First failing area"
        facts.append((gate, failure.area))
        facts.append(("First failed check", _id(failure.id)))
        facts.append(("Culprit", run.culprit or "no device named"))
        blocked = sum(result.blocked_by is not None for result in run.results)
        if blocked:
            facts.append(("Blocked by a failure", f"{blocked} of {len(run.results)} checks"))
    counts = [
        tag("li", badge(verdict, f"{count} {verdict}"))
        for verdict, count in run.counts.items()
        if count
    ]
    return tag(
        "header",
        tag("p", title, class_="about"),
        tag("h1", icon(run.verdict), str(run.verdict)),
        tag("p", _why(run), class_="why"),
        _facts(facts) if facts else None,
        tag("ul", *counts, class_="counts", aria_label="Results by verdict") if counts else None,
        class_=f"card verdict {run.verdict.lower()}",
    )


def run_card(run: Run) -> Markup:
    """Where and when it ran."""
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
    return _section("Run", _facts(facts, wide, class_="card"))


def gates(run: Run) -> Markup | None:
    """The ordered gates of a bring-up, each with its verdict; None for a run without them."""
    grouped = _grouped(result for result in run.results if result.suite == "bringup")
    if not grouped:
        return None
    rows = []
    for number, ((_, area), results) in enumerate(grouped.items(), 1):
        summed_s = sum(result.duration_s for result in results)
        took = units.duration(run.info.area_duration_s.get(area, summed_s))
        rows.append(
            tag(
                "tr",
                tag("th", f"{number}. {area}", scope="row"),
                tag("td", badge(_folded(results)), class_="verdict-cell"),
                tag("td", _gate_reason(results), class_="reason"),
                tag("td", took, class_="n", data_label="Took"),
            )
        )
    return _section("Gates", _table(("Gate", "Verdict", "Reason", "Took"), rows))


def curves(run: Run) -> Markup | None:
    """Every curve that a result carries; None where there is none."""
    charts = collect(run.results)
    if not charts:
        return None
    drawn = (figure(chart, f"chart-{index}") for index, chart in enumerate(charts))
    return _section("Curves", tag("div", *drawn, class_="charts"))


def numbers(run: Run) -> Markup | None:
    """Every measure with its unit, spread, expectation and evidence; None where there is none."""
    measured = [result for result in run.results if result.value is not None]
    if not measured:
        return None
    limits = any(result.does_not_show for result in measured)
    rows = [
        tag(
            "tr",
            tag("th", *_name(result), scope="row"),
            tag("td", *_value(result), class_="n", data_label="Value"),
            tag("td", *_expected(result), data_label="Expected"),
            tag("td", badge(result.verdict), class_="verdict-cell"),
            tag("td", *_evidence(result)),
            tag("td", result.does_not_show or None, data_label="Does not show") if limits else None,
        )
        for result in measured
    ]
    head = ["Measure", "Value", "Expected", "Verdict", "Evidence"]
    return _section("Numbers", _table([*head, "Does not show"] if limits else head, rows))


def checks(run: Run) -> Markup | None:
    """Every result by suite and area, what failed first, its areas open; None for an empty run."""
    areas = []
    for (suite, area), results in _grouped(run.results).items():
        rows = [
            tag(
                "tr",
                tag("td", badge(result.verdict), class_="verdict-cell"),
                tag("th", *_name(result), scope="row"),
                tag("td", _reason(result), class_="reason"),
                tag("td", *_evidence(result)),
                tag("td", units.duration(result.duration_s), class_="n", data_label="Took"),
            )
            for result in sorted(results, key=lambda result: not result.failed)
        ]
        summary = tag(
            "summary",
            tag("h3", f"{area} ", tag("span", f"({suite})", class_="soft")),
            tag("span", _tally(results), class_="soft"),
            badge(_folded(results)),
        )
        table = _table(("Verdict", "Check", "Reason", "Evidence", "Took"), rows, card=False)
        failed = any(result.failed for result in results)
        areas.append(tag("details", summary, table, class_="card area", open=failed))
    return _section("Checks", *areas) if areas else None


def footer(run: Run) -> Markup:
    """What the words mean, as far as this run uses them."""
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
    """The verdict's shape, for eyes that do not see its colour."""
    path = tag("path", d=_ICONS[verdict])
    return tag("svg", path, viewBox="0 0 24 24", class_="icon", aria_hidden="true")


def badge(verdict: Verdict, words: str | None = None) -> Markup:
    """Shape, word and colour of a verdict."""
    return tag("span", icon(verdict), words or str(verdict), class_=f"badge {verdict.lower()}")


def _why(run: Run) -> str:
    if run.verdict is not Verdict.PASS:
        return run.why
    passed, open_ = run.counts[Verdict.PASS], run.counts[Verdict.UNVERIFIED]
    beside = f"; {open_} measured with nothing to judge by" if open_ else ""
    return f"{passed} judged, and all passed{beside}."


def _section(title: str, *content: Child) -> Markup:
    return tag("section", tag("h2", title), *content)


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


def _table(head: Sequence[str], rows: Sequence[Markup], *, card: bool = True) -> Markup:
    header = tag("thead", tag("tr", *(tag("th", name, scope="col") for name in head)))
    table = tag("table", header, tag("tbody", *rows), class_="cards")
    return tag("div", table, class_="wide-box card" if card else "wide-box")


def _grouped(results: Iterable[Result]) -> dict[tuple[str, str], list[Result]]:
    groups: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        groups.setdefault((result.suite, result.area), []).append(result)
    return groups


def _folded(results: Sequence[Result]) -> Verdict:
    """The verdict of a group; one that holds a single kind of result is called by that kind."""
    kinds = {result.verdict for result in results}
    return kinds.pop() if len(kinds) == 1 else fold(result.verdict for result in results)


def _gate_reason(results: Sequence[Result]) -> Child:
    verdict = _folded(results)
    if verdict in FAILING or verdict is Verdict.INCONCLUSIVE:
        kinds = FAILING if verdict in FAILING else {Verdict.INCONCLUSIVE}
        first = next((result for result in results if result.verdict in kinds), None)
        if first is not None:
            return join(tag("div", *_name(first)), tag("div", _reason(first)))
    return tag("span", _tally(results), class_="soft")


def _tally(results: Sequence[Result]) -> str:
    kinds = [result.verdict for result in results]
    return ", ".join(f"{kinds.count(v)} {v}" for v in Verdict if v in kinds)


def _id(identifier: str) -> Markup:
    return tag("span", identifier, class_="id")


def _name(result: Result) -> list[Child]:
    where = tag("span", f"on {result.device}", class_="soft") if result.device else None
    return [_id(result.id), where]


def _reason(result: Result) -> Child:
    blocked = None
    if result.blocked_by:
        blocked = tag("span", "blocked by ", _id(result.blocked_by), class_="soft")
    return join(result.reason, blocked) if result.reason or blocked else None


def _value(result: Result) -> list[Child]:
    assert result.value is not None  # noqa: S101 - the caller chose results that have one
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


def _expected(result: Result) -> list[Child]:
    if result.expected is None:
        return ["none"]
    lower, upper = bounds(result.expected)
    unit = result.expected["unit"]
    if lower is not None and upper is not None:
        allowed = f"{units.number(lower)} to {units.quantity(upper, unit)}"
    elif lower is not None:
        allowed = f"at least {units.quantity(lower, unit)}"
    elif upper is not None:
        allowed = f"at most {units.quantity(upper, unit)}"
    else:
        allowed = "any value"
    source = tag("span", _source(result.expected), class_="soft")
    return [allowed, source]


def _source(expected: Mapping[str, Any]) -> Markup:
    reference = units.quantity(expected["reference"], expected["unit"])
    source = expected["source"]
    linked = source.startswith(("https://", "http://")) and not source.split()[1:]
    shown = tag("a", source, href=source, rel="noreferrer") if linked else source
    return join(f"reference {reference}, ", shown)


def _evidence(result: Result) -> list[Child]:
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
        told = ", ".join(parts)
        counted[told] = counted.get(told, 0) + 1
    return "; ".join(f"{n} × {told}" if n > 1 else told for told, n in counted.items())
