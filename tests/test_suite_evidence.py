"""What a case can earn follows from what it asks for, and agrees with what it does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode

from portagpu.results.run import Evidence, Verdict
from portagpu.suite import ConformOptions, conform, list_cases
from portagpu_cpu.backend import CpuBackend
from portagpu_cpu.queues import CpuEvent
from tests import suite_harness
from tests.case_files import by_id, write_cases

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.torch

CASES = """
import pytest

@pytest.fixture
def handle(backend): return backend

@case("rng/device", spec="Runs.")
def test_device(gpu): pass

@case("rng/device-and-torch", spec="Runs.")
def test_device_and_torch(gpu, torch): pass

@case("rng/ranks", spec="Runs.", capability="collectives")
def test_ranks(world): pass

@case("rng/backend", spec="Asks.")
def test_backend(backend, tmp_path): pass

@case("rng/own-fixture", spec="Asks.")
def test_own_fixture(handle): pass

@case("rng/target", spec="Asks.")
def test_target(target): pass

@case("rng/library", spec="Asks.", capability="collectives")
def test_library(comm): pass

@case("rng/torch", spec="Asks.")
def test_torch(torch): pass

@case("rng/packages", spec="Asks.")
def test_packages(installed): pass

@case("rng/nothing", spec="Is the same everywhere.", params={"n": (1, 2)})
def test_nothing(tmp_path, record, n): pass
"""
EARNED = {
    **dict.fromkeys(("device", "device-and-torch", "ranks"), (Evidence.EXECUTED,)),
    **dict.fromkeys(("backend", "own-fixture", "target", "library", "torch"), (Evidence.LOADED,)),
    "packages": (),
}


def test_what_a_case_asks_for_is_what_it_earns(tmp_path: Path) -> None:
    found = by_id(
        conform(ConformOptions(backend="cpu", folder=write_cases(tmp_path, CASES))).results
    )
    refused = [found.pop(name) for name in list(found) if name.startswith("suite/")]
    assert {name: each.evidence for name, each in found.items()} == {
        f"rng/{name}": evidence for name, evidence in EARNED.items()
    }
    assert [each.id for each in refused] == [f"suite/test_nothing[n{n}]" for n in (1, 2)]
    for each in refused:
        assert (each.verdict, each.evidence) == (Verdict.ERROR, ())
        assert "test_rng.py::test_nothing takes none of gpu, ranks, backend, torch" in each.reason
        assert "make it a test of the package" in each.reason


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


@pytest.mark.slow
def test_what_is_executed_works_and_what_is_loaded_does_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    earns = {each.id: each.evidence for each in list_cases()}
    gpu = suite_harness.open_device(monkeypatch)
    work = Work(monkeypatch)
    idle, busy, passed = [], [], 0
    for name, case in suite_harness.everything().items():
        if case.needs_ranks:
            continue
        before = work.count
        with work:
            result = suite_harness.run(gpu, name, tmp_path)
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
