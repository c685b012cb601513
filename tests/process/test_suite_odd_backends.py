"""Backends that cannot be judged: each is one line, which says what its author has to change."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from portagpu.base.errors import PortagpuError
from portagpu.base.patience import Limits
from portagpu.runs.world import Ranks
from portagpu.suites.conformance import runner
from portagpu.suites.conformance.messages import Child, SuiteError
from portagpu.suites.conformance.session import Session
from tests.support import registry_state
from tests.support.case_files import conform, write_cases
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
CHANGES = {
    "lists no capabilities": ("handle.capabilities = None", "'NoneType' object is not iterable"),
    "has no library for ranks": ("handle.comm = None", "no attribute 'version'"),
    "has no versions": ("handle.versions = None", "'NoneType' object is not a mapping"),
    "has a version that is not text": (
        "handle.versions = {'driver': 5}",
        "its driver is 5 instead",
    ),
    "has a product that is not text": ("handle.product = b'GPU'", "its product is b'GPU' instead"),
    "raises what is not an exception": ("raise BaseException('odd')", "BaseException: odd"),
    "aborts": ("os.write(2, b'no such queue\\n'); os.abort()", "SIGABRT: no such queue"),
    "aborts silently": ("os.abort()", "SIGABRT: Fatal Python error: Aborted"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_device_that_cannot_be_described_is_one_line(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change, said = CHANGES[name]
    source = MODULE.format(change=change)
    install(tmp_path, "portagpu-odd", {"odd": "portagpu_odd:PLUGIN"}, {"portagpu_odd": source})
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "portagpu_odd", raising=False)
    registry_state.forget(monkeypatch)
    folder = write_cases(tmp_path / "cases", '@case("rng/a", spec="Is.")\ndef test_a(gpu): pass\n')
    with pytest.raises(PortagpuError) as raised:
        conform("odd", folder=folder)
    (line,) = str(raised.value).splitlines()
    assert said in line


@pytest.mark.parametrize("name", ["has no versions", "aborts"])
def test_the_verb_prints_such_a_line(name: str, tmp_path: Path) -> None:
    change, said = CHANGES[name]
    source = MODULE.format(change=change)
    install(tmp_path, "portagpu-odd", {"odd": "portagpu_odd:PLUGIN"}, {"portagpu_odd": source})
    paths = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    words = ("conform", "--backend", "odd", "--only", "rng", "--seed", "0")
    done = subprocess.run(
        [sys.executable, "-m", "portagpu", *words],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode in (1, 3), done.stdout
    (line,) = done.stderr.splitlines()
    assert said in line


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
        runner._collect(child)
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
