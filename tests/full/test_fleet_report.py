"""``portagpu fleet report``: files of many nodes, good and bad, to a page and a document."""

from __future__ import annotations

import re
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING, Any

from portagpu.reports.fleet.nodes import read_nodes
from portagpu.reports.html.fleet_page import render
from tests.process.test_fleet_report import fleet as fleet
from tests.process.test_fleet_report import judged as judged

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from portagpu.reports.fleet.report import FleetReport


def test_every_picture_has_every_node_once(judged: FleetReport) -> None:
    found = judged
    pictures = re.findall("<svg [^>]*data-columns.*?</svg>", render(found))
    assert len(pictures) == 2 + len(found.gates)
    for picture in pictures:
        cells = [
            (int(x) + offset, int(y))
            for x, y, width in re.findall(r"M(\d+) (\d+)h(\d+)v1h-\d+z", picture)
            for offset in range(int(width))
        ]
        assert len(cells) == len(set(cells)) == len(found.nodes)


def test_several_processes_read_what_one_does(fleet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    used = []

    def pool(processes: int, **options: Any) -> ProcessPoolExecutor:
        used.append(processes)
        return ProcessPoolExecutor(processes, **options)

    monkeypatch.setattr("portagpu.reports.fleet.nodes.ProcessPoolExecutor", pool)
    monkeypatch.setattr("portagpu.reports.fleet.nodes._SHARE", 8)
    paths = sorted(fleet.glob("*/result.json"))[:24]
    assert list(read_nodes(paths, 1)) == list(read_nodes(paths, 3))
    assert used == [3]
