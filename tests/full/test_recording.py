"""Recordings: what is saved of a machine, and what anybody's files are read as."""

from __future__ import annotations

from typing import TYPE_CHECKING

from portagpu.checks.recordings.record import record
from portagpu.checks.recordings.replay import Recording
from portagpu.machine.inventory.sources import Live
from tests.vendor_texts.test_recording import described, eight

if TYPE_CHECKING:
    from pathlib import Path


def test_a_recording_of_a_recording_is_the_same(tmp_path: Path) -> None:
    record(tmp_path / "first", eight(tmp_path / "machine"), names=())
    record(tmp_path / "second", Recording(tmp_path / "first").tree, names=())
    assert described(Recording(tmp_path / "first")) == described(Recording(tmp_path / "second"))


def test_a_recording_gives_the_same_info_and_topology(tmp_path: Path) -> None:
    root = eight(tmp_path / "machine")
    saved = record(tmp_path / "saved", root, names=())
    live, replayed = Live(root, {}), Recording(tmp_path / "saved")
    assert described(live) == described(replayed)
    assert live.topology() == replayed.topology()
    assert len(described(replayed)["gpus"]) == 8
    assert saved.problems == ()
