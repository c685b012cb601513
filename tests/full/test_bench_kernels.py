"""Portable kernels are timed next to torch's at the pace of the suite, on larger arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.process.test_bench_kernels import SHARES, interpreting, measured

if TYPE_CHECKING:
    from portagpu.runs.world import Ranks

__all__ = ["interpreting"]


@pytest.mark.torch
@pytest.mark.parametrize("kernel", [*SHARES, "matmul"])
def test_a_kernel_is_timed_at_the_pace_of_the_suite(
    interpreting: Ranks,
    kernel: str,
) -> None:
    dtype = "float16" if kernel == "matmul" else "float32"
    for reading in measured(interpreting, kernel, dtype, rows=64, columns=64, few=False):
        assert (reading["wrong"], reading["skip"]) == ("", "")
        (point,) = reading["points"]
        assert len(point["seconds"]) >= 5
        assert min(point["seconds"]) > 0
