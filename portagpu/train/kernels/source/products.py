"""The matrix product, for every input dtype that a device's matrix unit has."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def matmul_kernel(
    a,
    b,
    target,
    m,
    n,
    k,
    a_row,
    a_column,
    b_row,
    b_column,
    target_row,
    target_column,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    ACCUMULATOR: tl.constexpr,
):
    """``target = a @ b`` in blocks, accumulated in fp32, or int32 for integers.

    Programs go down ``GROUP_M`` blocks of rows before they go right, so that neighbours share what
    the cache holds. Blocks are at least 16 a side: below that one vendor's compiler refuses, and
    the other's silently leaves the matrix unit.
    """
    program = tl.program_id(0)
    rows, columns = tl.cdiv(m, BLOCK_M), tl.cdiv(n, BLOCK_N)
    group = program // (GROUP_M * columns)
    first = group * GROUP_M
    height = tl.minimum(rows - first, GROUP_M)
    within = program % (GROUP_M * columns)
    block_m, block_n = first + within % height, within // height
    at_m = block_m.to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    at_n = block_n.to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    at_k = tl.arange(0, BLOCK_K)
    left = a + at_m[:, None] * a_row + at_k[None, :] * a_column
    right = b + at_k[:, None] * b_row + at_n[None, :] * b_column
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=ACCUMULATOR)
    for start in range(0, k, BLOCK_K):
        inside = start + at_k < k
        x = tl.load(left, mask=(at_m[:, None] < m) & inside[None, :], other=0.0)
        y = tl.load(right, mask=inside[:, None] & (at_n[None, :] < n), other=0.0)
        # a matrix unit may add fp8 products in fewer bits than fp32: only within a block here
        total = tl.dot(x, y, total, out_dtype=ACCUMULATOR, max_num_imprecise_acc=BLOCK_K)
        left += BLOCK_K * a_column
        right += BLOCK_K * b_row
    out = target + at_m[:, None] * target_row + at_n[None, :] * target_column
    inside = (at_m[:, None] < m) & (at_n[None, :] < n)
    tl.store(out, total.to(target.dtype.element_ty), mask=inside)
