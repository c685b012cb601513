"""The slow links and nodes that the folder of a fleet run shows, against what was planted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from portagpu.reports.fleet import measures
from portagpu.reports.fleet.measures import slow_of
from portagpu.reports.fleet.result_files import Fleet
from tests.unit.reports.test_fleet_rules import joints, rounds_of

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_a_slow_node_and_a_slow_link_are_distinguished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds = rounds_of(5)
    link = rounds[2][1]
    slow = {pair: 0.6 for own in rounds for pair in own if "n7" in pair} | {link: 0.7}
    gathered = Fleet(joint=joints(rounds, slow))
    monkeypatch.setattr(measures, "gather", lambda folders: gathered)
    found = {(each.what, each.nodes, each.slow, each.pairs) for each in slow_of(tmp_path)}
    assert found == {(measures.NODE, ("n7",), 5, 5), (measures.LINK, tuple(sorted(link)), 1, 5)}


def test_pairs_that_are_the_same_show_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gathered = Fleet(joint=joints(rounds_of(3), {}))
    monkeypatch.setattr(measures, "gather", lambda folders: gathered)
    assert slow_of(tmp_path) == []


def test_a_folder_without_results_shows_nothing(tmp_path: Path) -> None:
    assert slow_of(tmp_path) == []
