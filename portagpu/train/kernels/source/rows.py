"""Kernels of one program a row: softmax, RMSNorm, and fp8 quantisation with a scale a row."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def softmax_kernel(source, target, columns, source_stride, target_stride, BLOCK: tl.constexpr):
    """Softmax of each row, in fp32, in two reads of the row whatever its length.

    Each lane keeps its own maximum and sum, which are joined at the end. A row that holds a NaN or
    +inf, or nothing but -inf, gives NaN, as in torch.
    """
    row = tl.program_id(0).to(tl.int64)
    lanes = tl.arange(0, BLOCK)
    most = tl.full((BLOCK,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, columns, BLOCK):
        at = start + lanes
        x = tl.load(source + row * source_stride + at, mask=at < columns, other=float("-inf"))
        x = x.to(tl.float32)
        # bare maximum lets a NaN pass on one vendor and hides it on another
        higher = tl.maximum(most, x, propagate_nan=tl.PropagateNan.ALL)
        # -inf minus -inf would be NaN for a lane that has seen nothing yet
        base = tl.where(higher == float("-inf"), 0.0, higher)
        total = total * tl.exp(most - base) + tl.exp(x - base)
        most = higher
    top = tl.max(most, axis=0)
    base = tl.where(top == float("-inf"), 0.0, top)
    total = tl.sum(total * tl.exp(most - base), axis=0)
    for start in range(0, columns, BLOCK):
        at = start + lanes
        inside = at < columns
        x = tl.load(source + row * source_stride + at, mask=inside).to(tl.float32)
        y = tl.exp(x - base) / total
        tl.store(target + row * target_stride + at, y.to(target.dtype.element_ty), mask=inside)


@triton.jit
def rms_norm_kernel(
    source, weight, target, columns, epsilon, source_stride, target_stride, BLOCK: tl.constexpr
):
    """``x * rsqrt(mean(x^2) + epsilon) * weight`` of each row, in fp32."""
    row = tl.program_id(0).to(tl.int64)
    lanes = tl.arange(0, BLOCK)
    squares = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, columns, BLOCK):
        at = start + lanes
        x = tl.load(source + row * source_stride + at, mask=at < columns, other=0.0).to(tl.float32)
        squares += x * x
    scale = 1.0 / tl.sqrt(tl.sum(squares, axis=0) / columns + epsilon)
    for start in range(0, columns, BLOCK):
        at = start + lanes
        inside = at < columns
        x = tl.load(source + row * source_stride + at, mask=inside).to(tl.float32)
        w = tl.load(weight + at, mask=inside).to(tl.float32)
        y = (x * scale * w).to(target.dtype.element_ty)
        tl.store(target + row * target_stride + at, y, mask=inside)


@triton.jit
def quantise_kernel(
    source, target, scales, columns, limit, source_stride, target_stride, BLOCK: tl.constexpr
):
    """Each row over its scale ``max|x| / limit``, rounded to the dtype of ``target``.

    A row of zeros has the scale 1. A NaN in a row makes its scale and all its values NaN.
    """
    row = tl.program_id(0).to(tl.int64)
    lanes = tl.arange(0, BLOCK)
    most = tl.zeros((BLOCK,), tl.float32)
    taint = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, columns, BLOCK):
        at = start + lanes
        x = tl.load(source + row * source_stride + at, mask=at < columns, other=0.0).to(tl.float32)
        most = tl.maximum(most, tl.abs(x), propagate_nan=tl.PropagateNan.ALL)
        # 0 for every number, NaN for a NaN: a reduction by maximum may lose it, a sum may not
        taint += tl.where(x == x, 0.0, x)
    peak = tl.max(most, axis=0)
    scale = tl.where(peak > 0, peak / limit, 1.0) + tl.sum(taint, axis=0)
    tl.store(scales + row, scale)
    for start in range(0, columns, BLOCK):
        at = start + lanes
        inside = at < columns
        x = tl.load(source + row * source_stride + at, mask=inside).to(tl.float32)
        # the division may round past the limit, which some formats turn into NaN and others into
        # infinity
        y = tl.clamp(x / scale, -limit, limit, propagate_nan=tl.PropagateNan.ALL)
        tl.store(target + row * target_stride + at, y.to(target.dtype.element_ty), mask=inside)
