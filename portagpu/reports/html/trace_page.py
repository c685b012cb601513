"""A summary of traces as one self-contained HTML file: no script, no font, no request."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Final

from portagpu.base.units import quantity
from portagpu.reports.html.markup import CSS, page, tag
from portagpu.traces.analysis.model import (
    TEXTS,
    UNKNOWN,
    device_in_words,
    table_of,
    time_in_words,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from portagpu.reports.html.markup import Child, Markup
    from portagpu.traces.analysis.model import DeviceTime, Summary

_TITLE: Final = "Summary of traces"
_MAX_ROWS: Final = 100
"""Rows of a table; the JSON document has all."""
_FEW: Final = 20
"""Rows that stand open; the others are folded."""
_PARTS: Final = (
    ("compute", "s0"),
    ("exposed communication", "s1"),
    ("exposed copy", "s2"),
    ("idle", "idle"),
)
"""What a device does, and the colour of its bar."""
_LONG: Final = 90
"""Characters of a name; a longer one opens on a click."""

_CSS: Final = """
main { max-width: 1560px; }
.bars { display: grid; gap: 14px; padding: 16px 20px; }
.bar > svg { display: block; width: 100%; height: 22px; border-radius: 4px; margin: 4px 0; }
.bar rect { fill: var(--tone); } .idle { --tone: var(--line); }
.legend svg { width: 12px; vertical-align: -1px; }
.cards .name summary { font-weight: 400; } .cards .name { font-weight: 400; }
.folded > summary { padding: 9px 14px; color: var(--soft); }
.listed { padding: 12px 20px 12px 36px; }
@media (min-width: 801px) { .cards th, .cards td { padding: 6px 9px; font-size: 14px; }
  .cards td[data-label] { min-width: 0; } .cards .n { text-align: right; }
  .cards .name { min-width: 22em; } .cards .few { min-width: 9em; } }
"""


def render(summary: Summary) -> str:
    """``summary`` as an HTML document; all text from the traces is escaped."""
    main = tag("main", tag("h1", _TITLE), _facts(summary), *_sections(summary))
    return page(_TITLE, CSS + _CSS, main)


def _facts(summary: Summary) -> Markup:
    devices = dict.fromkeys(each.name for each in summary.hardware if each.name)
    tools = dict.fromkeys(f"{each.tool} {each.version}".strip() for each in summary.sources)
    facts: list[tuple[str, str]] = [
        ("Captures", str(len(summary.sources))),
        ("Tools", ", ".join(filter(None, tools)) or "unknown"),
        ("Devices", ", ".join(devices) or "unknown"),
        ("Events", ", ".join(f"{count:,} {kind}" for kind, count in summary.events.items())),
        ("Left out", f"{summary.dropped:,} events"),
    ]
    facts += sorted(summary.details.items())
    return tag(
        "dl",
        *(tag("div", tag("dt", name), tag("dd", value)) for name, value in facts),
        tag(
            "div",
            tag("dt", "Files"),
            *(tag("dd", f"{each.path} ({each.format})", class_="id") for each in summary.sources),
            class_="wide",
        ),
        class_="facts card",
    )


def _sections(summary: Summary) -> Iterator[Markup]:
    problems = [*summary.problems, *(f"{each.level}: {each.text}" for each in summary.messages)]
    if problems:
        items = tag("ul", *(tag("li", each) for each in problems), class_="listed")
        yield _section("Problems", tag("div", items, class_="card"))
    if summary.devices:
        bars = [_bar(each) for each in summary.devices]
        yield _section("Time of devices", tag("div", *bars, class_="card bars"))
    for name, heading, caption in (
        ("device", "Devices", "Shares are of the time from the first to the last event"),
        ("category", "Categories", "Exposed: while nothing of another category ran"),
        ("kernel", "Kernels and copies", "The longest total first"),
        ("range", "Ranges", "On device: the union of all that the range started"),
        ("collective", "Collectives", "The largest skew between ranks first"),
        ("operator", "Operators", "On the host. Self: without the operators in it, by thread"),
        ("api", "Calls of the runtime", "On the host, all calls together"),
    ):
        columns, rows = table_of(summary, name)
        if rows:
            yield _section(heading, *_tables(columns, rows, caption))
    if summary.steps:
        yield _section("Steps", *_tables(*_steps(summary), "The range that repeats, by rank"))
    if not summary.rows.num_rows:
        yield _section("Kernels", tag("p", "Nothing ran on a device in what was captured."))


def _section(title: str, *content: Child) -> Markup:
    return tag("section", tag("h2", title), *content, id="-".join(title.lower().split()))


def _bar(time: DeviceTime) -> Markup:
    parts = (
        time.compute_ns,
        time.exposed_communication_ns,
        time.exposed_copy_ns,
        time.idle_ns,
    )
    where = device_in_words(time)
    wall = time.wall_ns or 1
    rects, legend, at = [], [], 0.0
    for (name, colour), ns in zip(_PARTS, parts, strict=True):
        width = 1000 * ns / wall
        words = f"{name} {quantity(ns, 'ns')} ({100 * ns / wall:.1f} %)"
        rects.append(
            tag("rect", tag("title", words), x=at, y=0, width=width, height=22, class_=colour)
        )
        swatch = tag("rect", x=0, y=0, width=12, height=12, class_=colour)
        swatch = tag("svg", swatch, viewBox="0 0 12 12", aria_hidden="true")
        legend.append(tag("li", swatch, words))
        at += width
    svg = tag(
        "svg",
        tag("title", f"{where}: how its {quantity(time.wall_ns, 'ns')} were spent"),
        *rects,
        viewBox="0 0 1000 22",
        preserveAspectRatio="none",
        role="img",
    )
    heading = tag("h3", f"{where}: {quantity(time.wall_ns, 'ns')}")
    return tag("div", heading, svg, tag("ul", *legend, class_="legend"), class_="bar")


def _steps(summary: Summary) -> tuple[tuple[str, ...], list[list[str]]]:
    rows = []
    for each in summary.steps:
        figures = (median(each.host_ns), min(each.host_ns), max(each.host_ns))
        device = time_in_words(median(each.device_ns) if each.device_ns else None)
        rank = UNKNOWN if each.rank is None else str(each.rank)
        rows.append([rank, *map(time_in_words, figures), device, str(len(each.host_ns)), each.name])
    return ("rank", "median", "shortest", "longest", "median on device", "steps", "name"), rows


def _tables(head: Sequence[str], rows: Sequence[Sequence[str]], caption: str) -> Iterator[Markup]:
    yield _table(head, rows[:_FEW], caption)
    if len(rows) > _FEW:
        most = rows[_FEW:_MAX_ROWS]
        left = (
            f"; the JSON document has {len(rows) - _MAX_ROWS} more" if len(rows) > _MAX_ROWS else ""
        )
        table = _table(head, most, f"Rows {_FEW + 1} to {_FEW + len(most)}{left}")
        words = tag("summary", f"{len(most)} more rows{left}")
        yield tag("details", words, table, class_="folded")


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], caption: str) -> Markup:
    # the name of a row first: it heads the card of a narrow page
    order = [len(head) - 1, *range(len(head) - 1)]
    styles = [None if title in TEXTS else "n" for title in head]
    header = tag("tr", *(tag("th", head[at], scope="col", class_=styles[at]) for at in order))
    long = any(len(row[-1]) > _LONG // 3 for row in rows)
    body = [
        tag(
            "tr",
            tag("th", _name(row[-1]), scope="row", class_="name" if long else "few"),
            *(tag("td", row[at], data_label=head[at], class_=styles[at]) for at in order[1:]),
        )
        for row in rows
    ]
    table = tag(
        "table",
        tag("caption", caption),
        tag("thead", header),
        tag("tbody", *body),
        class_="cards",
    )
    return tag("div", table, class_="wide-box card", tabindex=0, role="region", aria_label=caption)


def _name(text: str) -> Markup:
    if len(text) <= _LONG:
        return tag("span", text, class_="id")
    start = tag("summary", f"{text[:_LONG]}…", class_="id")
    return tag("details", start, tag("span", text, class_="id"))
