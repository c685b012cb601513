"""A device without a communication library: nothing is judged of what is not there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from portagpu.runs.results.run import Verdict
from portagpu.suites.conformance import Selection
from portagpu.suites.conformance.cases import base_id
from tests.support import registry_state, suite_harness
from tests.support.case_files import by_id, conform
from tests.support.fake_plugins import install

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.torch


MODULE = """
from portagpu.devices.contract import Capability
from portagpu_cpu.plugin import CpuPlugin
from tests.process.test_suite_no_library import NoLibrary

class Alone(CpuPlugin):
    name = "alone"
    def open(self, index):
        handle = super().open(index)
        handle.name, handle.target = "alone", None
        handle.comm = NoLibrary("", "none", None, "cpu")
        handle.capabilities -= {Capability.COLLECTIVES}
        return handle

PLUGIN = Alone()
"""


def test_every_case_about_a_library_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    install(
        tmp_path, "portagpu-alone", {"alone": "portagpu_alone:PLUGIN"}, {"portagpu_alone": MODULE}
    )
    monkeypatch.syspath_prepend(tmp_path)
    registry_state.forget(monkeypatch)
    on_ranks = [k for k, each in suite_harness.everything().items() if each.needs_ranks]
    only = ("collectives", "failures", *{base_id(each) for each in on_ranks})
    found = by_id(conform("alone", selection=Selection(only=only)))
    other = {k: each for k, each in found.items() if each.verdict is not Verdict.SKIP}
    assert not other, {k: (str(each.verdict), each.reason) for k, each in other.items()}
    said = "it raised Unsupported, as it must"
    assert all(said in each.reason for each in found.values())
