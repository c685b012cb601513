"""Cases about a GPU that need no arithmetic, on fake builds of torch for every recorded GPU.

That shows the cases and the backends to be made for each other, and nothing about any hardware.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from portagpu.arch import Arch
from portagpu.results.run import Verdict
from tests import suite_harness
from tests.recorded_gpus import ALL, RecordedGpu
from tests.test_gpu_backends import BY_ID, opened

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
    *("memory/free-and-total", "memory/stats-keys", "memory/total-is-steady"),
    *("streams/block-changes-current", "streams/block-restores-after-error"),
    *("streams/blocks-nest", "streams/elapsed-time-needs-timing", "streams/none-changes-nothing"),
    *("streams/record-event", "streams/streams-differ"),
    "profiling/mark-leaves-no-range",
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
    result = suite_harness.run(handle, "profiling/random-programs")
    assert result.verdict is Verdict.PASS, result.reason


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
