"""What a description states is asked: a wrong value fails a case, and a sentence names it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")

from portagpu.devices.contract import Capability, Part
from portagpu.devices.precision import Arithmetic, Support
from portagpu.facts.arch import Arch
from portagpu.runs.results.run import Verdict
from tests.support import suite_harness

if TYPE_CHECKING:
    from pathlib import Path

    from portagpu_cpu.backend import CpuBackend

pytestmark = pytest.mark.torch

Wrong = tuple[str, Any, str, str]
"""An attribute of the handle, a value or a function of the right handle, the case, its sentence."""

WRONG: dict[str, Wrong] = {
    "another index": ("index", 1, "identity/current-device-in-range", "device 1 of 1"),
    "another name": ("name", "gpu", "identity/handle-is-one", "unknown backend 'gpu'"),
    "an empty product": ("product", "", "identity/unknown-is-none", "product is ''"),
    "an empty vendor": ("vendor", "", "identity/unknown-is-none", "vendor is ''"),
    "an empty uuid": ("uuid", "", "identity/unknown-is-none", "uuid is ''"),
    "a short PCI address": ("pci", "3B:00", "identity/pci-address-has-one-form", "'3B:00'"),
    "capitals in a PCI address": (
        *("pci", "0000:3B:00.0", "identity/pci-address-has-one-form", "'0000:3B:00.0'"),
    ),
    "a number as PCI address": ("pci", 3, "identity/unknown-is-none", "pci is 3"),
    "one part of one": ("part", Part("1g", "a GPU", 1), "identity/part-of-a-gpu", "a whole GPU"),
    "no version of torch": ("versions", {}, "identity/versions", "torch is None"),
    "another version of torch": ("versions", {"torch": "2.0"}, "identity/versions", "torch is 2.0"),
    "an empty version": (
        *("versions", {"torch": torch.__version__, "driver": ""}),
        *("identity/versions", "not empty: ['driver']"),
    ),
    "another architecture": (
        *("arch", Arch("cpu", "z80", 1), "identity/arch-agrees-with-target", "'z80'"),
    ),
    "a warp of 32 in arch": (
        *("arch", lambda gpu: replace(gpu.arch, warp_size=32)),
        *("identity/arch-agrees-with-target", "warp_size=32"),
    ),
    "another vendor's architecture": (
        *("arch", Arch("nvidia", "sm_90", 1), "identity/arch-agrees-with-target", "'sm_90'"),
    ),
    "one unit more": (
        *("sizing", lambda gpu: replace(gpu.sizing, unit_count=gpu.sizing.unit_count + 1)),
        *("kernels/sizing-units", "units, the properties"),
    ),
    "no threads in a block": (
        *("sizing", lambda gpu: replace(gpu.sizing, max_threads_per_block=0)),
        *("kernels/sizing-limits", "max_threads_per_block is 0"),
    ),
    "threads of units without blocks": (
        *("sizing", lambda gpu: replace(gpu.sizing, max_threads_per_unit=2048)),
        *("kernels/sizing-limits", "without blocks a unit has (threads, blocks) of (2048, 1)"),
    ),
    "many blocks in a unit without blocks": (
        *("sizing", lambda gpu: replace(gpu.sizing, max_blocks_per_unit=32)),
        *("kernels/sizing-limits", "(1, 32)"),
    ),
    "a warp of 32 in sizing": (
        *("sizing", lambda gpu: replace(gpu.sizing, warp_size=32)),
        *("identity/warp-size-is-the-devices", "'sizing': 32"),
    ),
    "float32 products in TF32": (
        *("precision", lambda gpu: replace(gpu.precision, tf32=Arithmetic.TF32)),
        *("precision/tf32-of-target", "ieee, not tf32"),
    ),
    "a reduce op that torch lacks": (
        *("comm", lambda gpu: _with_op(gpu, "MEDIAN")),
        *("collectives/reduce-ops-exist", "torch has no reduce op MEDIAN"),
    ),
    "a reduce op that floats lack": (
        *("comm", lambda gpu: _with_op(gpu, "BAND")),
        *("collectives/reduce-ops-exist", "BAND is claimed, which floating-point"),
    ),
    "a reduce op without its factor": (
        *("comm", lambda gpu: _with_op(gpu, "PREMUL_SUM")),
        *("collectives/reduce-ops-exist", "PREMUL_SUM is claimed, which floating-point"),
    ),
    "tensors of another device": (
        *("comm", lambda gpu: replace(gpu.comm, device_type="cuda")),
        *("collectives/library-moves-this-device", "the library moves cuda, the device is cpu"),
    ),
    "device ids of a CPU": (
        *("comm", lambda gpu: replace(gpu.comm, device_ids=[0])),
        *("collectives/device-ids", "device_ids, output_device and device_id are ([0]"),
    ),
    "float64 as storage": (
        *("precision", lambda gpu: _with_support(gpu, torch.float64, Support.STORAGE)),
        *("precision/support-as-it-runs[float64]", "stated as storage and ran as emulated"),
    ),
    "no int16": (
        *("precision", lambda gpu: _with_support(gpu, torch.int16, Support.NONE)),
        *("precision/storage-holds[int16]", "was not refused"),
    ),
}


def _with_op(gpu: CpuBackend, op: str) -> Any:
    return replace(gpu.comm, reduce_ops=gpu.comm.reduce_ops | {op})


def _with_support(gpu: CpuBackend, dtype: Any, support: Support) -> Any:
    return replace(gpu.precision, table={**gpu.precision.table, dtype: support})


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_fact_fails_a_case(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, wrong: str
) -> None:
    attribute, value, case, sentence = WRONG[wrong]
    if callable(value):
        value = value(suite_harness.open_device(monkeypatch))
    gpu = suite_harness.open_device(monkeypatch, **{attribute: value})
    result = suite_harness.run(gpu, case, tmp_path)
    reported = f"{wrong} is {result.verdict} in {case}: {result.reason}"
    assert result.verdict is Verdict.FAIL, reported
    assert sentence in result.reason, reported


@pytest.mark.parametrize(
    "claim", sorted({str(each) for each in Capability} - {"autocast", "collectives"})
)
def test_a_claim_without_its_calls_fails_a_case(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, claim: str
) -> None:
    claims = suite_harness.open_device(monkeypatch).capabilities
    if Capability(claim) in claims:
        pytest.skip(f"a CPU has {claim}")
    claims |= {Capability(claim)}
    gpu = suite_harness.open_device(monkeypatch, capabilities=claims)
    about = [
        name
        for name, each in suite_harness.everything().items()
        if claim in each.listed.capability and claims.issuperset(each.listed.capability)
    ]
    runnable = [name for name in about if not suite_harness.everything()[name].needs_ranks]
    assert any(suite_harness.run(gpu, name, tmp_path).failed for name in runnable), runnable
