"""Occupancy equals what the vendors' own code says, case by case."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from tests.support import occupancy_vendor as vendor
from tests.vendor_texts.test_occupancy_vendor import (
    amd_mismatch,
    ask_amd,
    ask_cuda,
    cuda_mismatch,
    differing,
)

ANOTHER_SEED = vendor.SEED + 1


@pytest.mark.skipif(
    vendor.cuda_header() is None or vendor.cuda_compiler() is None,
    reason="no cuda_occupancy.h (pip install nvidia-cuda-runtime) or no C++ compiler",
)
def test_nvidia_equals_the_installed_header():
    cases = vendor.run_cuda(vendor.cuda_cases(ANOTHER_SEED, 10_000))
    wrong = differing(cuda_mismatch, cases)
    assert not wrong, f"{len(wrong)} of {len(cases)} differ, first {wrong[0]}"


@pytest.mark.skipif(find_spec("llvmlite") is None, reason="no LLVM (pip install llvmlite)")
def test_amd_equals_the_installed_llvm():
    cases = vendor.run_amd(vendor.amd_cases(ANOTHER_SEED, 10_000))
    wrong = differing(amd_mismatch, cases)
    assert not wrong, f"{len(wrong)} of {len(cases)} differ, first {wrong[0]}"


@pytest.mark.parametrize("arch", [*vendor.CUDA, *vendor.AMD])
def test_the_stored_cases_reach_every_architecture_and_limit(arch):
    cases = vendor.stored("nvidia" if arch in vendor.CUDA else "amd")
    ask = ask_cuda if arch in vendor.CUDA else ask_amd
    limits, full = set(), 0
    for case in cases:
        if case["arch"] == arch and case.get("by_memory") != 0:
            found = ask(case)
            limits |= set(found.limited_by)
            full += found.fraction == 1
    expected = {"waves", "registers", "shared memory"}
    assert limits >= expected, f"{arch} is never limited by {expected - limits}"
    assert full, f"no case fills {arch}"
