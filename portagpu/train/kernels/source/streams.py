"""Copy and triad: the two ends of STREAM, which measure memory bandwidth."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def copy_kernel(source, target, n, BLOCK: tl.constexpr):
    """``target[i] = source[i]`` for i in 0..n-1."""
    # 64 bits: a tensor of 2^31 elements fits a device
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(target + at, tl.load(source + at, mask=inside), mask=inside)


@triton.jit
def triad_kernel(target, b, c, scalar, n, BLOCK: tl.constexpr):
    """``target[i] = b[i] + scalar * c[i]``, computed in fp32 for narrower dtypes."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    left = tl.load(b + at, mask=inside).to(tl.float32)
    right = tl.load(c + at, mask=inside).to(tl.float32)
    tl.store(target + at, (left + scalar * right).to(target.dtype.element_ty), mask=inside)
