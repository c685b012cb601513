"""A machine with several devices: each is judged, and the one that computes wrong is named."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from portagpu.checks.bringup.checks import numerics
from portagpu.checks.bringup.device import CheckedDevice
from portagpu.checks.bringup.gates import load_gates
from portagpu.checks.bringup.run import Context, MachineUnderTest
from portagpu.runs.engine import add_result
from portagpu.runs.results.run import Evidence, Result, Verdict
from portagpu.runs.world import Ranks
from portagpu.suites import conformance as suite
from portagpu.suites.conformance import Selection, list_cases
from portagpu.suites.conformance.messages import DeviceUnderTest
from tests.conftest import run_child
from tests.support import registry_state
from tests.support.case_files import Recorder, conform, copy_cases
from tests.support.fake_plugins import install

if TYPE_CHECKING:
    from pathlib import Path

    from portagpu.runs.engine import Progress
    from portagpu.runs.results.run import Run
    from portagpu.suites.conformance import ConformOptions

pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("forked")]

WRONG, CLOSED = 2, 3
GATE = next(gate for gate in load_gates() if gate.id == "numerics")
MODULE = f"""
import torch
from portagpu_cpu.plugin import CpuPlugin

class Many(CpuPlugin):
    '''Four CPUs, of which one multiplies wrong and one does not open.'''
    name = "many"
    shared = False
    def count(self):
        return 4
    def open(self, index):
        if index == {CLOSED}:
            raise RuntimeError("the device fell off the bus")
        from portagpu_cpu.backend import CpuBackend

        class One(CpuBackend):
            __slots__ = ()
            def device_count(self):
                return 4

        handle = One(self, index)
        handle.name, handle.target = "many", None
        handle.device = torch.device("cpu", index)
        if index == {WRONG}:
            good = torch.Tensor.__matmul__
            torch.Tensor.__matmul__ = lambda left, right: good(left, right) * (
                1 if left.dtype == torch.float64 else 2
            )
        return handle

PLUGIN = Many()
"""
PRODUCT = "precision/matmul-of-small-integers[float32-n16]"
DATA = "precision/finfo[float64]"
RANKS = "collectives/asynchronous[count1]"


@pytest.fixture
def site(tmp_path: Path) -> Path:
    folder = tmp_path / "site"
    folder.mkdir()
    install(folder, "portagpu-many", {"many": "portagpu_many:PLUGIN"}, {"portagpu_many": MODULE})
    return folder


def _installed(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(site)
    registry_state.forget(monkeypatch)


def _cases(site: Path) -> Path:
    """The files that have the cases that are asked for."""
    return copy_cases(site / "cases", "precision", "precision_products", "collectives_async")


def _judged(site: Path, monkeypatch: pytest.MonkeyPatch, *index: int, **more: Any) -> list[Result]:
    _installed(site, monkeypatch)
    selection = Selection(only=(PRODUCT, DATA, RANKS))
    return conform("many", selection=selection, index=index, folder=_cases(site), **more)


def test_any_device_can_be_the_one_that_is_judged(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {each.id: each for each in _judged(site, monkeypatch, WRONG)}
    assert {name: each.verdict for name, each in found.items()} == {
        DATA: Verdict.PASS,
        PRODUCT: Verdict.FAIL,
        # its ranks begin with this device, and the next one does not open
        RANKS: Verdict.FAIL,
    }
    assert found[PRODUCT].device == f"cpu:{WRONG}"
    assert "fell off the bus" in found[RANKS].reason


def test_a_further_device_is_not_begun_when_time_is_up(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _installed(site, monkeypatch)
    recorder = Recorder()
    recorder.ended = lambda: "no time is left" if len(recorder.results) >= 3 else ""
    selection = Selection(only=(PRODUCT, DATA, RANKS))
    options = suite.ConformOptions(
        backend="many", selection=selection, index=(0, WRONG), folder=_cases(site)
    )
    last = suite.conform(options, recorder).results[-1]
    assert (last.id, last.device) == ("suite/device", f"many device {WRONG}")
    assert (last.verdict, last.reason) == (Verdict.INCONCLUSIVE, "no time is left")


@pytest.mark.parametrize(
    ("counted", "said"),
    [
        ("raise OSError('no driver')", "raised OSError: no driver"),
        ("return '4'", "counts '4' devices"),
        ("return -4", "counts -4 devices"),
    ],
)
@pytest.mark.parametrize("index", ["1", "all"])
def test_a_count_that_is_none_is_reported_in_one_line(
    site: Path, tmp_path: Path, counted: str, said: str, index: str
) -> None:
    (site / "portagpu_many.py").write_text(MODULE.replace("return 4", counted, 1), "utf-8")
    words = ("-m", "portagpu", "conform", "--backend", "many", "--index", index)
    ended = run_child(tmp_path, *words, "--only", DATA, path=[site])
    assert ended.code == 3, ended.err
    assert said in ended.err, ended.err


def test_what_is_of_a_device_is_given_it_and_no_ranks() -> None:
    cases = {case.id: case for case in list_cases()}
    per_device = {name for name, case in cases.items() if case.per_device}
    assert PRODUCT in per_device
    assert "collectives/device-ids" in per_device
    assert not {DATA, RANKS, "graphs/collective-in-a-graph"} & per_device
    assert {case.area for case in cases.values()} - {cases[name].area for name in per_device} == {
        "failures",
        "parallel",
    }


def _context(devices: int, *, shared: bool = False, **more: Any) -> Context:
    listed = [CheckedDevice(index, f"cpu:{index}", {}) for index in range(devices)]
    tested = MachineUnderTest("many", Ranks(), devices=listed, device_count=devices, shared=shared)
    return Context(tested, GATE, "quick", **more)


def test_the_gate_sums_up_each_further_device(monkeypatch: pytest.MonkeyPatch) -> None:
    first = DeviceUnderTest(
        backend="many",
        name="cpu:0",
        product=None,
        vendor=None,
        arch="cpu",
        capabilities=frozenset(),
        target=None,
        count=3,
    )

    def result(verdict: Verdict, device: str | None, name: str = "rng/a") -> Result:
        reason = "" if verdict is Verdict.PASS else "it is so"
        ran = () if verdict is Verdict.SKIP else (Evidence.EXECUTED,)
        return Result(
            id=name,
            suite="conformance",
            area="rng",
            verdict=verdict,
            device=device,
            reason=reason,
            evidence=ran,
        )

    def outcome_of(run: Run, options: ConformOptions, progress: Progress, ranks: Ranks) -> None:
        assert (options.backend, options.selection.smoke) == ("many", True)
        assert options.index == [0, 1, 2]
        add_result(run, progress, result(Verdict.ERROR, None, "suite/broken"))
        progress.opened(first)
        add_result(run, progress, result(Verdict.PASS, "cpu:0"))
        progress.opened(replace(first, name="cpu:1"))
        for verdict, name in ((Verdict.PASS, "rng/a"), (Verdict.SKIP, "rng/b")):
            add_result(run, progress, result(verdict, "cpu:1", name))
        progress.opened(replace(first, name="cpu:2"))
        for verdict, name in ((Verdict.PASS, "rng/a"), (Verdict.FAIL, "rng/b")):
            add_result(run, progress, result(verdict, "cpu:2", name))

    monkeypatch.setattr(numerics, "judge_cases", outcome_of)
    found = [(each.id, each.device, each.verdict) for each in numerics.check(_context(3))]
    assert found == [
        ("suite/broken", None, Verdict.ERROR),
        ("rng/a", "cpu:0", Verdict.PASS),
        ("numerics/device", "cpu:1", Verdict.PASS),
        ("rng/b", "cpu:2", Verdict.FAIL),
        ("numerics/device", "cpu:2", Verdict.FAIL),
    ]


def test_a_device_of_which_nothing_was_judged_is_not_a_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def late(run: Run, options: ConformOptions, progress: Progress, ranks: Ranks) -> None:
        result = Result(
            id="suite/device",
            suite="conformance",
            area="suite",
            verdict=Verdict.INCONCLUSIVE,
            device="many device 1",
            reason=progress.stop_reason(),
        )
        add_result(run, progress, result)

    monkeypatch.setattr(numerics, "judge_cases", late)
    found = list(numerics.check(_context(2, started_s=-1e6)))
    last = found[-1]
    assert (last.id, last.device) == ("numerics/device", "many device 1")
    assert last.verdict is Verdict.INCONCLUSIVE
    assert last.reason.endswith("the gate numerics has used up its 720 s")


def test_a_device_that_all_share_is_judged_once(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def late(run: Run, options: ConformOptions, progress: Progress, ranks: Ranks) -> None:
        asked.append(options.index)

    monkeypatch.setattr(numerics, "judge_cases", late)
    list(numerics.check(_context(2, shared=True)))
    assert asked == [0]
    selection = Selection(only=(PRODUCT,))
    found = conform("cpu", selection=selection, index=(0, 1), folder=_cases(site))
    assert [(each.id, each.device) for each in found] == [(PRODUCT, None)]
