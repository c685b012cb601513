"""HTML and SVG as text, and the style sheets of the report.

Everything that is not built here is escaped. The styles are for 360 px and wider, print, light and
dark.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from typing import Any, Final, TypeAlias

from portagpu.runs.results.plain import UNSAFE

_VOID: Final = frozenset({"input", "meta", "wbr"})
_CLOSED: Final = frozenset({"path", "rect", "use"})
"""Elements of SVG that hold nothing: they may close themselves."""


class Markup(str):
    """Finished markup. Only ``tag``, ``join`` and constants of this package make it."""

    __slots__ = ()


Child: TypeAlias = "Markup | str | None"
Attribute: TypeAlias = "str | int | float | bool | None"


def escape(value: object) -> Markup:
    """Text that is safe between tags and in quoted attributes, without control characters."""
    if isinstance(value, Markup):
        return value
    return Markup(html.escape(shown_text(str(value)), quote=True))


def shown_text(text: str) -> str:
    """``text`` without what controls a terminal or changes how nearby text is shown."""
    return UNSAFE.sub("", text)


def join(*children: Child) -> Markup:
    """The children joined; text is escaped, None is left out."""
    return Markup("".join(escape(child) for child in children if child is not None))


def tag(name: str, /, *children: Child, **attributes: Attribute) -> Markup:
    """The element ``name``: ``tag("td", "a<b", class_="n", data_label="Size")``.

    In attribute names a trailing underscore is dropped and others become hyphens; None and False
    leave the attribute out, True writes it without a value, and floats keep two digits.
    """
    written = "".join(
        _attribute(key.rstrip("_").replace("_", "-"), value) for key, value in attributes.items()
    )
    if name in _VOID:
        return Markup(f"<{name}{written}>")
    if name in _CLOSED and not children:
        return Markup(f"<{name}{written}/>")
    return Markup(f"<{name}{written}>{join(*children)}</{name}>")


def json_block(value: Any, identifier: str) -> Markup:
    """``value`` as JSON that a script of the page reads; nothing in it ends the element.

    Its texts have passed ``shown_text``.
    """
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    # "<" occurs in texts alone, so that its escape is the same JSON
    text = text.replace("<", r"\u003c")
    return tag("script", Markup(text), type="application/json", id=identifier)


def page(title: str, css: str, main: Markup, script: str = "") -> str:
    """A self-contained HTML document: its content security policy forbids every request.

    ``script``, a constant of this package, runs after the page was read; the policy names it by its
    hash and forbids every other.
    """
    policy = "default-src 'none'; base-uri 'none'; form-action 'none'; style-src 'unsafe-inline'"
    if script:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        policy += f"; script-src 'sha256-{digest}'"
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("title", title),
        tag("style", Markup(css)),
    )
    code = tag("script", Markup(script)) if script else None
    return f"<!doctype html>\n{tag('html', head, tag('body', main, code), lang='en')}\n"


def _attribute(key: str, value: Attribute) -> str:
    if value is None or value is False:
        return ""
    if value is True:
        return f" {key}"
    shown = f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else value
    return f' {key}="{escape(shown)}"'


CHART_CSS: Final = """
:root { color-scheme: light dark;
  --page: #f6f7f9; --card: #fff; --text: #1b1f26; --soft: #59626f; --line: #dde1e7;
  --pass: #14713d; --fail: #b3261e; --error: #8a1c7c; --open: #8a5a00; --skip: #59626f;
  --s0: #2563c9; --s1: #c2570c; --s2: #0f8a6d; --s3: #b02a7b; --s4: #6b4fc9; --s5: #857100; }
@media (prefers-color-scheme: dark) { :root {
  --page: #12151a; --card: #1b1f26; --text: #e7eaef; --soft: #a2abb8; --line: #343b46;
  --pass: #58c98b; --fail: #ff8a80; --error: #ee97e0; --open: #f0b955; --skip: #a2abb8;
  --s0: #6ea8fe; --s1: #ff9d5c; --s2: #4cc9a4; --s3: #f08bc3; --s4: #b39dfa; --s5: #d6c14f; } }
.chart text { fill: var(--soft); font-size: 11.5px; }
.chart text.axis { fill: var(--text); }
.chart text.x { text-anchor: middle; } .chart text.y { text-anchor: end; }
.grid { stroke: var(--line); } .base, .mark { stroke: var(--soft); }
.line { fill: none; stroke: var(--tone); stroke-width: 2; stroke-linejoin: round; }
.dashed .line { stroke-dasharray: 6 4; }
.point { fill: var(--tone); stroke: var(--card); stroke-width: .8; }
.s0 { --tone: var(--s0); } .s1 { --tone: var(--s1); } .s2 { --tone: var(--s2); }
.s3 { --tone: var(--s3); } .s4 { --tone: var(--s4); } .s5 { --tone: var(--s5); }
"""
"""What a chart needs where it stands alone; its text is laid out within 400 units."""

CSS: Final = (
    CHART_CSS
    + """
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--text); overflow-wrap: anywhere;
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 24px 20px 40px; }
h1, h2, h3, p, dl, dd, figure, ul { margin: 0; padding: 0; }
h2 { font-size: 18px; margin: 32px 0 12px; }
h3 { font-size: 15px; }
code, .id { font-size: .9em;
  font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
a { color: inherit; text-underline-offset: 2px; }
.soft { color: var(--soft); }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 10px; }
.pass { --tone: var(--pass); } .fail { --tone: var(--fail); } .error { --tone: var(--error); }
.inconclusive, .unverified { --tone: var(--open); } .skip { --tone: var(--skip); }
.shapes { position: absolute; width: 0; height: 0; }
:is(.badge, .verdict h1) > svg { fill: none; stroke: currentColor; stroke-width: 2;
  stroke-linecap: round; stroke-linejoin: round; width: 1.15em; height: 1.15em; flex: none; }
.badge { display: inline-flex; align-items: center; gap: 5px; color: var(--tone);
  font-weight: 600; font-size: 13px; white-space: nowrap; }
.evidence { display: inline-block; border: 1px solid var(--line); border-radius: 999px;
  padding: 0 8px; font-size: 12px; color: var(--soft); margin: 1px 4px 1px 0; white-space: nowrap; }
.verdict { padding: 22px 24px; border-left: 8px solid var(--tone);
  background: color-mix(in srgb, var(--tone) 9%, var(--card)); }
.verdict .about { color: var(--soft); margin-bottom: 4px; }
.verdict h1 { display: flex; align-items: center; gap: 10px; color: var(--tone);
  font-size: 38px; line-height: 1.2; letter-spacing: .01em; }
.verdict .why { font-size: 17px; margin-top: 8px; max-width: 75ch; }
.counts { display: flex; flex-wrap: wrap; gap: 4px 18px; list-style: none; margin-top: 14px; }
dl.facts { display: grid; gap: 12px 24px; padding: 16px 20px;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 190px), 1fr)); }
dl.facts .wide { grid-column: 1 / -1; }
dt { color: var(--soft); font-size: 12.5px; }
.verdict dl.facts { padding: 14px 0 0; }
table { border-collapse: separate; border-spacing: 0; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: 9px 14px; }
thead th { color: var(--soft); font-size: 12.5px; font-weight: 500; white-space: nowrap; }
tbody th, tbody td { border-top: 1px solid var(--line); }
.reason, .checks td:nth-child(3) { width: 50%; }
.checks td:nth-child(4) { color: var(--soft); font-size: 13px; overflow-wrap: normal; }
.of-runs td:nth-child(3) { width: 36%; } .checks.of-runs td:last-child { white-space: normal; }
tbody th { font-weight: 600; }
td .soft, th .soft { display: block; font-size: 13px; font-weight: 400; }
.n, .checks td:last-child { font-variant-numeric: tabular-nums; white-space: nowrap; }
.n .soft { white-space: normal; }
.verdict-cell, .checks td:first-child { white-space: nowrap; }
.charts { display: grid; gap: 16px;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 400px), 1fr)); }
.chart { background: var(--card); border: 1px solid var(--line); border-radius: 10px;
  padding: 14px 16px; min-width: 0; }
.chart > svg { display: block; width: 100%; max-width: 560px; height: auto; margin: 8px 0 4px; }
.legend { display: flex; flex-wrap: wrap; gap: 2px 16px; list-style: none; font-size: 13.5px; }
.legend svg { width: 24px; height: 12px; margin-right: 6px; }
details summary { cursor: pointer; }
.chart details { margin-top: 8px; font-size: 13.5px; }
.chart summary { color: var(--soft); }
.scroll { overflow: auto; max-height: 320px; }
.wide-box { overflow-x: auto; }
.chart .scroll th, .chart .scroll td { padding: 4px 10px 4px 0; }
.area { margin-bottom: 10px; }
.area > summary { display: flex; flex-wrap: wrap; gap: 4px 16px; align-items: center;
  padding: 11px 16px; }
.area > summary::before { content: "+"; color: var(--soft); width: .7em; }
.area[open] > summary::before { content: "\\2212"; }
.area > summary::-webkit-details-marker { display: none; }
.area h3 { flex: 1 1 auto; }
footer { margin-top: 36px; color: var(--soft); font-size: 13.5px; }
footer dl { display: grid; gap: 6px 16px; margin: 8px 0 16px; }
footer dt { font-size: inherit; color: var(--text); }
@media (min-width: 801px) { footer dl { grid-template-columns: max-content 1fr; }
  .cards tbody th { min-width: 13em; } .cards td[data-label] { min-width: 9em; }
  .failures .reason { width: 34%; } .failures td[data-label="Found"] { min-width: 14em; } }
@media (max-width: 800px) {
  main { padding: 12px 12px 32px; }
  .verdict { padding: 18px 16px; }
  dl.facts { grid-template-columns: 1fr 1fr; padding: 14px; gap: 10px 16px; }
  .chart text { font-size: 13.5px; }
  .verdict h1 { font-size: 31px; }
  .cards thead, .compared thead { position: absolute; width: 1px; height: 1px; overflow: hidden;
    clip-path: inset(50%); }
  .cards, .cards caption, .cards tbody, .cards tr, .cards th, .cards td { display: block; }
  .cards tbody tr { display: grid; grid-template-columns: 1fr auto; column-gap: 12px;
    padding: 10px 14px; border-top: 1px solid var(--line); }
  .cards tbody tr:first-child { border-top: 0; }
  .cards th, .cards td { border: 0; padding: 2px 0; width: auto; white-space: normal;
    grid-column: 1 / -1; }
  .cards tbody th { grid-column: 1; grid-row: 1; }
  .cards .verdict-cell, .checks td:first-child { grid-column: 2; grid-row: 1; }
  .checks td:last-child::before { content: "Took: "; color: var(--soft); font-size: 12.5px; }
  .checks.of-runs td:last-child::before { content: "Run: "; }
  .cards.checks td:nth-child(n) { width: auto; }
  .cards td:empty { display: none; }
  .cards td[data-label]::before { content: attr(data-label) ": "; color: var(--soft);
    font-size: 12.5px; }
}
caption { text-align: left; color: var(--soft); font-size: 12.5px; padding: 9px 14px 2px; }
.chart caption { padding: 0 0 4px; }
.contents { display: flex; flex-wrap: wrap; gap: 4px 24px; margin: 14px 2px 0; font-size: 13.5px;
  color: var(--soft); }
.contents ul { display: flex; flex-wrap: wrap; gap: 2px 14px; list-style: none; }
.contents .areas { flex: 1 1 100%; order: 3; }
.switch { cursor: pointer; } .switch::before { content: "\\2610\\a0"; }
#only-failures { position: absolute; opacity: 0; }
#only-failures:checked ~ .contents .switch::before { content: "\\2611\\a0"; }
#only-failures:focus-visible ~ .contents .switch { outline: 2px solid; outline-offset: 2px; }
#only-failures:checked ~ section.only-whole,
#only-failures:checked ~ section :is(.only-whole, tbody tr:not(.bad)) { display: none; }
[hidden] { display: none !important; }
.matrix th, .matrix td { padding: 6px 10px; white-space: nowrap; }
.matrix caption { white-space: normal; position: sticky; left: 0;
  max-width: min(1078px, 100vw - 44px); }
.matrix tbody th { position: sticky; left: 0; background: var(--card); }
.matrix td a { text-decoration: none; } .of-run > h3 { margin: 14px 0 0; }
.compared { table-layout: fixed; min-width: 560px; }
.compared thead :nth-child(1) { width: 30%; } .compared thead :nth-child(2) { width: 34%; }
.compared thead :nth-child(3) { width: 24%; }
.compared th, .compared td { padding: 4px 14px; } .compared .n { white-space: normal; }
.compared [scope=rowgroup] { padding-top: 12px; border-top: 1px solid var(--line); }
.compared tr :not([scope=rowgroup]) { border-top: 0; } .compared tbody [scope=row] {
  font-weight: 400; }
.bar svg { display: block; width: 100%; height: 14px; }
.bar rect { fill: var(--tone); } .spread { stroke: var(--text); stroke-width: 1.5; }
.more { margin-top: 10px; cursor: pointer; }
@media (max-width: 800px) {
  .compared { min-width: 0; } .compared :is(tbody, caption, th, td) { display: block; }
  .compared, .compared tbody tr:first-child { display: block; }
  .compared tbody tr { display: grid; grid-template-columns: 1fr 8.5em 3.5em; align-items: center; }
  .compared tbody [scope=row] { grid-column: 1 / -1; padding-bottom: 0; }
  .compared td { padding: 2px 14px; } .compared td.n { padding: 2px 8px 2px 0; font-size: 13px; }
}
.filter { display: flex; flex-wrap: wrap; gap: 10px 16px; align-items: end; padding: 12px 16px;
  margin-bottom: 10px; }
.filter label { display: grid; font-size: 12.5px; color: var(--soft); min-width: 0; }
.filter input, .filter select, .filter button, .more { font: inherit; font-size: 14px;
  padding: 5px 8px; border: 1px solid var(--line); border-radius: 6px; background: var(--page);
  color: var(--text); max-width: 100%; }
.filter input { width: 17em; } .filter select { max-width: 15em; }
.filter [role=status] { flex: 1 1 100%; font-size: 13.5px; }
:is(a, input, select, button, summary, [tabindex]):focus-visible { outline: 2px solid var(--s0);
  outline-offset: 2px; }
.failures { margin-top: 10px; } .advice { padding: 4px 14px 12px; }
.quiet { border-top: 1px solid var(--line); } .quiet > summary { padding: 9px 16px;
  color: var(--soft); }
td a, th a { text-decoration: none; }
td a:hover, th a:hover, a:focus { text-decoration: underline; }
.checks th > [id] { display: inline-block; font-weight: 400; font-size: 13px; }
:is(.checks th > [id], .n div) .soft { display: inline; } .n div .soft { white-space: nowrap; }
:is(tr, .checks th > [id]):target { outline: 2px solid var(--tone, var(--soft));
  outline-offset: -2px; }
@page { size: A4; margin: 12mm; }
@page wide { size: A4 landscape; }
@media print {
  :root { color-scheme: light; --page: #fff; --card: #fff; --text: #000; --soft: #444;
    --line: #bbb; --pass: #14713d; --fail: #b3261e; --error: #8a1c7c; --open: #8a5a00;
    --skip: #444; --s0: #2563c9; --s1: #c2570c; --s2: #0f8a6d; --s3: #b02a7b; --s4: #6b4fc9;
    --s5: #857100; }
  body { background: none; font-size: 9.5pt; line-height: 1.35; }
  main { max-width: none; padding: 0; }
  .verdict h1 { font-size: 24pt; } .verdict .why { font-size: 11pt; max-width: none; }
  .switch, .more, .filter > :not([role=status]) { display: none; }
  .filter { border: 0; padding: 0; }
  .matrix.wide { page: wide; zoom: .65; } .matrix.widest { zoom: .4; }
  .matrix :is(caption, tbody th) { position: static; max-width: none; }
  .compared { min-width: 0; }
  .chart .scroll table { font-size: 7pt; } .chart .scroll :is(th, td) { padding: 1px 5px 1px 0;
    width: auto; white-space: normal; }
  details::details-content { content-visibility: visible; display: block; height: auto;
    overflow: visible; }
  .scroll, .wide-box { overflow: visible; max-height: none; }
  .charts { display: block; } .chart { margin-bottom: 10px; } .chart > svg { max-width: 130mm; }
  tr, .chart > svg, .verdict, .advice, figcaption { break-inside: avoid; }
  h2, h3, summary, caption { break-after: avoid; }
  thead { display: table-header-group; }
  th, td { padding: 3px 6px; } td .soft, th .soft, caption, .badge, .evidence { font-size: 8pt; }
  .area > summary::before { content: none; }
  .cards { table-layout: auto; } .cards tbody th, .cards td[data-label] { min-width: 7.5em; }
.cards td.n[data-label] { min-width: 0; }
  .reason { width: auto; } tbody th { width: 26%; }
}
"""
)


FLEET_CSS: Final = (
    CSS
    + """
:root { --cell-pass: #bcd9c7; --cell-skip: #e4e8ed; --cell-none: #76808d; --cell-open: #f2b632;
  --cell-fail: #c1160d; --cell-error: #8a1c7c; --on-cell: #12151a; --on-bad: #fff; }
@media (prefers-color-scheme: dark) { :root {
  --cell-pass: #28503a; --cell-skip: #2a303a; --cell-none: #97a1af; --cell-open: #c98d16;
  --cell-fail: #ff6a5c; --cell-error: #e982da; --on-cell: #e7eaef; --on-bad: #12151a; } }
.cell { --cell: var(--cell-none); }
.cell.pass { --cell: var(--cell-pass); } .cell.skip { --cell: var(--cell-skip); }
.cell.fail { --cell: var(--cell-fail); } .cell.error { --cell: var(--cell-error); }
.cell.inconclusive { --cell: var(--cell-open); }
.cell.unverified { --cell: color-mix(in srgb, var(--cell-open) 35%, var(--cell-pass)); }
path.cell { fill: var(--cell); } .lines { stroke: var(--card); stroke-width: .12; }
i.cell { display: inline-block; width: 13px; height: 13px; border-radius: 2px; margin-right: 6px;
  background: var(--cell); vertical-align: -1px; }
.cards tbody th { min-width: 9em; } .cards td[data-label] { min-width: 7.5em; }
.cards td.n[data-label] { min-width: 0; }
.badge.none { --tone: var(--soft); }
.maps { display: grid; gap: 12px; margin: 12px 0 6px;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 240px), 1fr)); }
.maps.large { grid-template-columns: repeat(auto-fill, minmax(min(100%, 330px), 1fr)); }
.many .cell:is(.fail, .error, .inconclusive, .none) { stroke: var(--cell); stroke-width: .7; }
.maps figure { padding: 10px 12px 12px; min-width: 0; }
.maps figcaption { font-size: 13px; margin-bottom: 6px; }
.maps figcaption .soft { display: block; font-size: 12.5px; }
.maps svg { display: block; width: 100%; height: auto; cursor: pointer;
  shape-rendering: crispEdges; }
.names { min-width: 9em; } .names > div { font-weight: 400; max-width: 22em; overflow: hidden;
  text-overflow: ellipsis; white-space: nowrap; } .names details { font-weight: 400;
  font-size: 13px; }
.nodes th, .nodes td { padding: 4px 8px; } .nodes thead th { vertical-align: bottom; }
.nodes tbody th { white-space: nowrap; max-width: 22em; overflow: hidden;
  text-overflow: ellipsis; }
.nodes .turned { padding: 4px 2px; }
.nodes .turned button { writing-mode: vertical-rl; transform: rotate(180deg); }
.nodes thead button { font: inherit; color: inherit; background: none; border: 0; padding: 2px;
  cursor: pointer; text-align: left; }
.nodes thead button:hover, .nodes [aria-sort=ascending] button { text-decoration: underline;
  color: var(--text); }
.nodes td.cell { background: var(--cell); background-clip: padding-box; color: var(--on-cell);
  border: 1px solid var(--card); width: 28px; min-width: 28px; padding: 3px 0; font-size: 12px;
  text-align: center; border-radius: 4px; }
.nodes td.cell:is(.fail, .error) { color: var(--on-bad); font-weight: 700; }
.nodes td:nth-last-child(2) { white-space: nowrap; } .nodes td:last-child { min-width: 18em; }
.bars { fill: var(--s0); opacity: .75; } .median { stroke: var(--text); stroke-width: 1.2;
  stroke-dasharray: 4 3; } .far { stroke: var(--fail); stroke-width: 1.6; }
@media print { .maps svg, .cell { print-color-adjust: exact; } .nodes thead button { border: 0; } }
"""
)
