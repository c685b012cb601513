"""What a case can earn follows from what it asks for, and agrees with what it does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch")
from torch.utils._python_dispatch import TorchDispatchMode

from portagpu.runs.results.run import Evidence, Verdict
from portagpu.suites.conformance import list_cases
from portagpu_cpu.backend import CpuBackend, CpuEvent
from tests.support import suite_harness

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.torch


class Work(TorchDispatchMode):
    """Counts what torch and the CPU's queues are given to do."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.count = 0
        for owner, name in ((CpuEvent, "record"), (CpuBackend, "synchronize")):
            self._watch(monkeypatch, owner, name)

    def _watch(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        good = getattr(owner, name)

        def counted(*given: Any, **options: Any) -> Any:
            self.count += 1
            return good(*given, **options)

        monkeypatch.setattr(owner, name, counted)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        self.count += 1
        return func(*args, **(kwargs or {}))


def test_what_is_executed_works_and_what_is_loaded_does_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    earns = {each.id: each.evidence for each in list_cases()}
    gpu = suite_harness.open_device(monkeypatch)
    work = Work(monkeypatch)
    idle, busy, passed = [], [], 0
    for name, case in suite_harness.everything().items():
        # programs of memory run in a process of their own, as those of ranks and bad indices do
        own = case.listed.search == "memory" or name == "kernels/index-out-of-range"
        if case.needs_ranks or own:
            continue
        before = work.count
        with work:
            # a few random programs work as many do
            result = suite_harness.run(gpu, name, tmp_path, programs=50)
        worked = work.count > before
        if earns[name] is not Evidence.EXECUTED and worked:
            busy.append(name)
        if result.verdict is Verdict.PASS:
            passed += 1
            if earns[name] is Evidence.EXECUTED and not worked:
                idle.append(name)
    assert passed > 500, f"only {passed} cases passed"
    assert not idle, f"stamped executed, and nothing ran: {idle}"
    assert not busy, f"not stamped executed, and something ran: {busy}"
