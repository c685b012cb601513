"""``portagpu fleet report``: files of many nodes, good and bad, to a page and a document."""

from __future__ import annotations

import json
import re
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from portagpu.cli import main
from portagpu.reports.condensed.read import read_nodes
from portagpu.reports.fleet.report import SCHEMA, FleetReport
from portagpu.reports.html.fleet_page import render
from portagpu.runs.results.verdicts import Verdict
from tests.process.test_fleet_report import browser as browser
from tests.process.test_fleet_report import fleet as fleet
from tests.process.test_fleet_report import judged as judged
from tests.process.test_fleet_report import rows
from tests.support.html_page import Page

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from portagpu.reports.fleet.report import FleetReport
    from tests.support.chromium import Page as Browser


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

    monkeypatch.setattr("portagpu.reports.condensed.read.ProcessPoolExecutor", pool)
    monkeypatch.setattr("portagpu.reports.condensed.read._SHARE", 8)
    paths = sorted(fleet.glob("*/result.json"))[:24]
    assert list(read_nodes(paths, 1)) == list(read_nodes(paths, 3))
    assert used == [3]


def test_the_command_writes_page_document_and_text(
    fleet: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out, document = tmp_path / "fleet.html", tmp_path / "fleet-report.json"
    assert main(["fleet", "report", str(fleet), "--out", str(out), "--json", str(document)]) == 1
    said = capfd.readouterr().out
    assert "the node died: NODE_FAIL" in said
    assert "550.1 on" in said
    assert re.search(r"FAIL: 60 nodes: .* worse than their peers", said)
    found = json.loads(document.read_text())
    assert found["schema"] == SCHEMA
    assert len(found["nodes"]) == 60
    assert all(len(each["gates"]) == len(found["gates"]) for each in found["nodes"])
    assert found["verdict"] == "FAIL"
    page = Page(out.read_text("utf-8"))
    for each in found["alike"]:
        assert each["nodes"][0] in page.text
        assert each["reason"] in page.text
    for each in found["outliers"]:
        assert each["node"] in page.text


def test_nodes_are_sorted_and_filtered(browser: Browser, judged: FleetReport) -> None:
    found = {each.name: each for each in judged.nodes}
    first = rows(browser)
    assert len(first) == 60
    assert found[first[0]].verdict is Verdict.FAIL
    browser.run("document.querySelector('#nodes thead button[value=node]').click()")
    assert rows(browser) == list(found)
    marked = "document.querySelector('#nodes [aria-sort=ascending]').textContent"
    assert browser.run(marked) == "Node"
    browser.run(
        "(() => { const list = document.querySelector('select[name=verdict]');"
        " list.value = 'FAIL'; list.dispatchEvent(new Event('change')); })()"
    )
    assert rows(browser) == [name for name, each in found.items() if each.failed]
    status = browser.run("document.querySelector('.filter [role=status]').textContent")
    assert status == f"{len(rows(browser))} of 60 nodes"
    browser.run("document.querySelector('.filter button').click()")
