"""The style sheet of a fleet's page: that of the reports, and its map, cells and histograms."""

from __future__ import annotations

from typing import Final

from portagpu.reports.html.style import CSS as REPORT_CSS

CSS: Final = (
    REPORT_CSS
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
