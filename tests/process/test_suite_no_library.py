"""A device without a communication library: nothing is judged of what is not there."""

from __future__ import annotations

import pytest

from portagpu.base.errors import Unsupported
from portagpu.devices.contract import Capability
from portagpu.runs.results.run import Verdict
from portagpu.suites.conformance import case

torch = pytest.importorskip("torch")

from portagpu.devices.collectives.comm import Comm
from portagpu_cpu.backend import CpuBackend
from tests.support import suite_harness

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("forked")]


class NoLibrary(Comm):
    """What is asked of a library that is not there."""

    @property
    def init_string(self) -> str:
        raise Unsupported("this device has no communication library")


def test_a_library_that_is_not_claimed_must_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    class Shy(CpuBackend):
        """Claims no collectives and answers all the same."""

    gpu = suite_harness.open_device(monkeypatch, Shy)
    gpu.capabilities -= {Capability.COLLECTIVES}
    result = suite_harness.run(gpu, "collectives/init-string")
    assert result.verdict is Verdict.FAIL, result.reason
    assert "so it must raise Unsupported; instead it did what it does not claim" in result.reason


def test_a_case_about_a_library_declares_it() -> None:
    with pytest.raises(ValueError, match=r"covers Comm\.library and does not declare"):
        case("identity/name", spec="It has one.", covers=("Comm.library",))
