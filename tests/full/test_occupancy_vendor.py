"""Occupancy equals what the vendors' own code says, case by case."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from tests.support import occupancy_vendor as vendor
from tests.vendor_texts.test_occupancy_vendor import (
    amd_mismatch,
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
