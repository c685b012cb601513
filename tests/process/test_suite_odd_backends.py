"""Backends that cannot be judged: each is one line, which says what its author has to change."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from portagpu.base.patience import Limits
from portagpu.runs.world import Ranks
from portagpu.suites.conformance import runner
from portagpu.suites.conformance.fixtures import Session
from portagpu.suites.conformance.messages import Child, SuiteError
from tests.support.fake_plugins import install
from tests.support.waits import wait_until

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("forked")]

MODULE = """
import os
from portagpu_cpu.plugin import CpuPlugin

class Odd(CpuPlugin):
    name = "odd"
    def open(self, index):
        handle = super().open(index)
        handle.name = "odd"
        {change}
        return handle

PLUGIN = Odd()
"""


def test_a_device_that_hangs_is_reported_with_the_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mark = tmp_path / "hangs"
    change = f"open({str(mark)!r}, 'w').close(); __import__('threading').Event().wait()"
    source = MODULE.format(change=change)
    install(tmp_path, "portagpu-odd", {"odd": "portagpu_odd:PLUGIN"}, {"portagpu_odd": source})
    monkeypatch.syspath_prepend(tmp_path)
    folder = tmp_path / "cases"
    folder.mkdir()
    with Child(folder) as child:
        runner.collect(child)
        request = {"backend": "odd", "index": 0, "timeout_s": 60.0}
        child.send({**request, "ids": [], "searches": {}})
        wait_until(mark.exists, "the device is not opened")
        monkeypatch.setattr(runner, "LIMITS", Limits(start_s=0.0))
        with pytest.raises(SuiteError, match="not opened within 0 s and stood in "):
            runner._expect(child, "machine")


def test_ranks_that_did_not_start_are_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(ranks: Ranks) -> None:
        raise OSError(24, "Too many open files")

    session = Session()
    monkeypatch.setattr(Ranks, "start", full)
    for _ in range(2):
        with pytest.raises(OSError, match="Too many open files"):
            session.rank_server()
