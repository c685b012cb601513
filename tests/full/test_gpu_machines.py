"""Machines with GPUs, through the command line: a torch of another build, no driver, bad masks.

The kernel's files are a folder and torch is one whose version file can be read and which cannot be
imported, as a GPU build without its libraries: choosing a backend needs no more."""

from __future__ import annotations

import json

import pytest

from portagpu.checks.bringup import load_gates
from portagpu.runs.results.run import Run
from tests.process.test_gpu_machines import MASKS, reason_of
from tests.process.test_gpu_machines import machine as machine

BLOCKED = {each.id for each in load_gates()} - {"environment"}

BROKEN = [
    # build, GPUs, drivers, backend, words of its reason
    ("cpu", "nvidia", True, "cuda", "cannot use 1 NVIDIA GPU: install a CUDA build of torch"),
    ("cpu", "amd", True, "rocm", "cannot use 1 AMD GPU: install a ROCm build of torch"),
    ("rocm", "nvidia", True, "cuda", "is a rocm build and cannot use 1 NVIDIA GPU: install a CUDA"),
    ("cuda", "amd", True, "rocm", "is a cuda build and cannot use 1 AMD GPU: install a ROCm"),
    ("cuda", "nvidia", False, "cuda", "no /dev/nvidiactl: load NVIDIA's driver"),
    ("rocm", "amd", False, "rocm", "no /dev/kfd: load the amdgpu driver"),
    ("cuda", "amd nvidia", True, "rocm", "is a cuda build and cannot use 1 AMD GPU"),
    ("rocm", "amd nvidia", True, "cuda", "is a rocm build and cannot use 1 NVIDIA GPU"),
]

broken = pytest.mark.parametrize(("kind", "vendors", "drivers", "backend", "words"), BROKEN)


@pytest.mark.parametrize("name", MASKS)
def test_a_mask_that_hides_every_gpu_is_one_line_everywhere(machine, name):
    variable = {"CUDA_VISIBLE_DEVICES": MASKS[name]}
    shown = machine(["info", "--json", "-"], "cuda", "nvidia", **variable)
    usable, reason = reason_of(shown, "cuda")
    assert not usable, reason
    assert reason.startswith("CUDA_VISIBLE_DEVICES="), reason
    assert "hides every GPU: " in reason, reason


@broken
def test_a_bringup_that_asks_for_it_judges_files_alone_and_says_why(
    machine, kind, vendors, drivers, backend, words
):
    ended = machine(
        ["bringup", "--backend", backend, "--json", "-"], kind, vendors, drivers=drivers
    )
    assert ended.code == 1, f"exit code {ended.code}: {ended.err}"
    run = Run.from_json(json.loads(ended.out))
    assert (
        f"FAIL: environment/backend: the backend {backend!r} cannot be used" in run.summary_line()
    )
    assert words in run.summary_line()
    assert {each.area for each in run.results if each.id.endswith("/blocked")} == BLOCKED
    assert not [each.id for each in run.results if each.evidence], "no device was opened"
    (count,) = (each for each in run.results if each.id == "identity/count")
    assert count.value, "no GPU is counted by the kernel's files"


@broken
def test_info_says_in_one_line_why_a_gpu_cannot_be_used(
    machine, kind, vendors, drivers, backend, words
):
    ended = machine(["info", "--json", "-"], kind, vendors, drivers=drivers)
    usable, reason = reason_of(ended, backend)
    assert not usable, reason
    assert words in reason, reason
