"""Cases about a GPU that need no arithmetic, on fake builds of torch for every recorded GPU.

That shows the cases and the backends to be made for each other, and nothing about any hardware.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar, cast

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("hypothesis")

# a build with GPUs has more names, which it looks up when it is first imported
pytest.importorskip("torch._dynamo.device_interface")

from hypothesis import given, seed, settings

from portagpu.facts.arch import Arch
from portagpu.runs.results.run import Verdict
from portagpu.suites.search.memory.model import wrong_counters, wrong_info
from portagpu.suites.search.ordering import Ordering
from portagpu.suites.search.ordering.model import FACTOR
from portagpu.suites.search.ordering.run import TIMED
from portagpu.suites.search.worker import SETTINGS
from tests.support import suite_harness
from tests.support.recorded_gpus import ALL, RecordedGpu
from tests.torch.test_gpu_backends import BY_ID, opened

if TYPE_CHECKING:
    from portagpu.runs.world import Rank
    from portagpu.suites.search.area import Program
    from portagpu.suites.search.ordering.model import Kernel

pytestmark = pytest.mark.torch

CASES = (
    *("identity/arch-agrees-with-target", "identity/arch-is-the-bare-name"),
    *("identity/architectures-have-no-order", "identity/capabilities-are-known"),
    *("identity/contract-version", "identity/current-device-in-range"),
    *("identity/libraries-are-the-vendors", "identity/target-warp-size"),
    *("identity/unknown-is-none", "identity/variables-are-not-set", "identity/versions"),
    *("identity/warp-size-is-the-devices", "identity/foreign-device-is-refused"),
    *("collectives/device-ids", "collectives/init-string", "collectives/library-is-named"),
    *("collectives/library-is-the-vendors", "collectives/library-moves-this-device"),
    "collectives/no-foreign-tuning",
    *("collectives/reduce-ops-exist", "kernels/launch-fills-the-device-once"),
    *("kernels/launch-beyond-a-limit", "kernels/launch-has-whole-warps"),
    *("kernels/launch-of-nothing", "kernels/sizing-limits", "kernels/sizing-units"),
    *("profiling/mark-leaves-no-range", "streams/objects-are-of-their-types"),
)
SKIPPED_WITHOUT_FACTS = ("precision/fp8-flavour-is-one", "precision/fp8-flavour-of-target")


def _named(bases: tuple[str, ...]) -> list[str]:
    return [name for name in suite_harness.everything() if name.partition("[")[0] in bases]


@pytest.mark.parametrize("gpu", ALL, ids=[gpu.id for gpu in ALL])
def test_cases_pass_on_what_a_machine_printed(
    monkeypatch: pytest.MonkeyPatch, gpu: RecordedGpu
) -> None:
    handle, _ = opened(monkeypatch, gpu)
    found = {name: suite_harness.run(handle, name) for name in _named(CASES)}
    wrong = {k: each.reason for k, each in found.items() if each.verdict is not Verdict.PASS}
    assert not wrong, f"on {gpu.id}: {wrong}"
    assert {name.partition("[")[0] for name in found} == set(CASES), "a case is gone"


@pytest.mark.parametrize("gpu", ALL, ids=[gpu.id for gpu in ALL])
def test_what_no_fact_states_is_skipped(monkeypatch: pytest.MonkeyPatch, gpu: RecordedGpu) -> None:
    handle, _ = opened(monkeypatch, gpu)
    expected = Verdict.PASS if handle.precision.fp8 is not None else Verdict.SKIP
    for name in SKIPPED_WITHOUT_FACTS:
        result = suite_harness.run(handle, name)
        assert result.verdict is expected, f"{name} on {gpu.id}: {result.reason}"


@pytest.mark.parametrize("gpu_id", ["h200", "mi300x-spx"])
def test_live_visibility_cases_know_the_runtime(
    monkeypatch: pytest.MonkeyPatch, gpu_id: str
) -> None:
    handle, _ = opened(monkeypatch, BY_ID[gpu_id])
    case = suite_harness.everything()["visibility/child-sees-the-device-by-index"]
    module = sys.modules[case.function.__module__]
    for name in module.NAMES.values():
        monkeypatch.delenv(name, raising=False)
    assert module._mask_runtime(handle) == BY_ID[gpu_id].kind, "its masks are said not to exist"


@pytest.mark.parametrize("gpu_id", ["h200", "mi300x-spx"])
def test_ranges_pass_on_what_a_machine_printed(
    monkeypatch: pytest.MonkeyPatch, gpu_id: str
) -> None:
    handle, _ = opened(monkeypatch, BY_ID[gpu_id])
    result = suite_harness.run(handle, "profiling/random-programs", programs=suite_harness.WELL)
    assert result.verdict is Verdict.PASS, result.reason


class HostKernels:
    """Kernels that are over when they were launched, without a tensor of any device."""

    most: ClassVar[int] = 1
    waits: ClassVar[bool] = False

    def __init__(self, gpu: Any) -> None:
        self.values: dict[str, int] = {}
        self.time_s = 0.0

    def start(self, values: dict[str, int]) -> None:
        self.values = dict(values)

    def launch(self, kernel: Kernel) -> None:
        source = kernel.value if kernel.kind == "write" else self.values[kernel.source]
        before = FACTOR * self.values[kernel.target] if kernel.kind == "add" else 0
        self.values[kernel.target] = (before + source + 2**63) % 2**64 - 2**63

    def launch_through(self, kernel: Kernel) -> None:
        self.launch(kernel)

    def busy(self, work: int) -> None:
        pass

    def peek(self, buffer: str) -> frozenset[int]:
        return frozenset((self.values[buffer],))

    def settle(self) -> None:
        pass

    def now(self) -> float:
        self.time_s += 1e-6
        return self.time_s

    def pause(self, seconds: float) -> None:
        self.time_s += seconds


def _as_builds_have(program: Program) -> Program:
    """Without what no fake build does: capture, time, and another current stream by thread."""
    return [
        (name, given | ({"thread": False} if "thread" in given else {}))
        for name, given in program
        if name not in ("capture", "replay", "pause")
        and (name != "elapsed" or not {given["first"], given["second"]} <= set(TIMED))
    ]


@pytest.mark.parametrize("gpu", ALL, ids=[gpu.id for gpu in ALL])
def test_streams_pass_on_what_a_machine_printed(
    monkeypatch: pytest.MonkeyPatch, gpu: RecordedGpu
) -> None:
    handle, _ = opened(monkeypatch, gpu)
    area, rank = Ordering(HostKernels), cast("Rank", SimpleNamespace(gpu=handle, rank=0, world=1))
    wrong: list[str] = []

    @settings(SETTINGS, max_examples=40, phases=SETTINGS.phases[:1])
    @seed(15)
    @given(area.programs(handle))
    def each(program: Program) -> None:
        wrong.append(area.difference(rank, _as_builds_have(program)))

    each()
    assert not any(wrong), f"on {gpu.id}: {[each for each in wrong if each][:3]}"


@pytest.mark.parametrize("gpu", ALL, ids=[gpu.id for gpu in ALL])
def test_memory_is_reported_as_a_machine_printed(
    monkeypatch: pytest.MonkeyPatch, gpu: RecordedGpu
) -> None:
    handle, _ = opened(monkeypatch, gpu)
    assert wrong_counters(handle.memory_stats()) == ""
    assert wrong_info(handle, handle) == ""


def _swapped(handle: Any) -> None:
    flavours = handle.precision.fp8
    other = replace(flavours, e4m3=torch.float8_e4m3fn, e5m2=torch.float8_e5m2)
    handle.precision = replace(handle.precision, fp8=other)


WRONG = {
    "a wave of 32 lanes": (
        "identity/target-warp-size",
        lambda handle: setattr(handle, "arch", Arch("amd", "gfx942", 32)),
        "states a warp size of 64",
    ),
    "the suffixes of its features": (
        "identity/arch-is-the-bare-name",
        lambda handle: setattr(handle, "arch", Arch("amd", "gfx942:sramecc+:xnack-", 64)),
        "should be 'gfx942'",
    ),
    "the other vendor's library": (
        "collectives/library-is-the-vendors",
        lambda handle: setattr(handle, "comm", replace(handle.comm, library="NCCL")),
        "communicates over NCCL",
    ),
    "OCP fp8 on a device of FNUZ": (
        "precision/fp8-flavour-of-target",
        _swapped,
        "fnuz",
    ),
}


@pytest.mark.parametrize("fault", WRONG)
def test_an_amd_device_with_a_fault_fails(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    name, change, sentence = WRONG[fault]
    handle, _ = opened(monkeypatch, BY_ID["mi300x-spx"])
    change(handle)
    result = suite_harness.run(handle, name)
    assert result.verdict is Verdict.FAIL, f"a device with {fault} is {result.verdict} in {name}"
    assert sentence in result.reason, result.reason
