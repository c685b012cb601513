"""Portable kernels are timed next to torch's at the pace of the suite, on larger arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.process.test_bench_kernels import interpreting, measured

if TYPE_CHECKING:
    from portagpu.runs.world import Ranks

__all__ = ["interpreting"]


SHARES = {
    "copy": 1.0,
    "triad": 1.5,
    "sum": 0.5,
    "softmax": 1.0,
    "rms_norm": 1.0,
    # parameter, gradient and two moments read, all but the gradient written
    "adamw_step": 3.5,
}
"""Bytes that a kernel reads and writes over those of a copy."""


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


@pytest.mark.torch
@pytest.mark.parametrize("kernel", [*SHARES, "matmul"])
def test_a_kernel_is_timed_next_to_torchs(interpreting: Ranks, kernel: str) -> None:
    dtype = "float16" if kernel == "matmul" else "float32"
    readings = measured(interpreting, kernel, dtype, **({"rows": 20} if kernel == "matmul" else {}))
    works = [1.0] if kernel == "matmul" else [1.0, SHARES[kernel]]
    for reading, work in zip(readings, works, strict=True):
        assert (reading["wrong"], reading["skip"]) == ("", "")
        (point,) = reading["points"]
        assert point["work"] == work
        assert len(point["seconds"]) >= 5
        assert min(point["seconds"]) > 0
    if kernel == "adamw_step":
        assert readings[0]["notes"]["torch_form"] == "fused"
