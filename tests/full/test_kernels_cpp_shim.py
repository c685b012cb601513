"""The shim catches what kernels written for warps of 32 get wrong, where it is wrong."""

from __future__ import annotations

import pytest

from tests.process.test_kernels_cpp_shim import ranks, sums
from tests.support import lane_shim

pytestmark = pytest.mark.skipif(
    lane_shim.COMPILER is None, reason="neither g++ nor clang++ is here"
)


WRITTEN_FOR_32 = [
    ("lane_and_31", sums),
    ("warp_shift_5", sums),
    ("loop_from_16", sums),
    ("ballot_in_32_bits", ranks),
    ("popcount_of_32_bits", ranks),
]


@pytest.mark.parametrize(("name", "run"), WRITTEN_FOR_32)
def test_a_kernel_for_32_lanes_is_right_at_32_and_wrong_at_64(name, run):
    found, expected = run(lane_shim.broken(32), name, 32)
    assert found == expected
    found, expected = run(lane_shim.broken(64), name, 64)
    assert found != expected
