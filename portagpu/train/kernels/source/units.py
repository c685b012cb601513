"""The matrix product that records which hardware unit computed each tile."""

from __future__ import annotations

import triton
import triton.language as tl


# any shift is the same code
@triton.jit(do_not_specialize=["shift"])
def product_by_unit_kernel(
    a,
    b,
    target,
    units,
    m,
    n,
    k,
    a_row,
    a_column,
    b_row,
    b_column,
    shift,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    ACCUMULATOR: tl.constexpr,
    READS: tl.constexpr,
    CONSTRAINT: tl.constexpr,
):
    """``target[copy] = a @ b`` for each copy, with the words that name the unit of each tile.

    ``READS`` are instructions of the vendor's that each give one 32-bit word: the lower and the
    upper half of ``units[copy, tile]``. Without any nothing is recorded. ``shift`` moves which
    program computes which tile, so that a unit gets others.
    """
    rows, columns = tl.cdiv(m, BLOCK_M), tl.cdiv(n, BLOCK_N)
    tile = (tl.program_id(0) + shift) % tl.num_programs(0)
    copy, place = tile // (rows * columns), tile % (rows * columns)
    at_m = (place // columns) * BLOCK_M + tl.arange(0, BLOCK_M)
    at_n = (place % columns) * BLOCK_N + tl.arange(0, BLOCK_N)
    at_k = tl.arange(0, BLOCK_K)
    left = a + at_m.to(tl.int64)[:, None] * a_row + at_k[None, :] * a_column
    right = b + at_k[:, None] * b_row + at_n.to(tl.int64)[None, :] * b_column
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=ACCUMULATOR)
    for start in range(0, k, BLOCK_K):
        inside = start + at_k < k
        x = tl.load(left, mask=(at_m[:, None] < m) & inside[None, :], other=0.0)
        y = tl.load(right, mask=inside[:, None] & (at_n[None, :] < n), other=0.0)
        # float32 in all of its bits, which one vendor's default would not keep
        total = tl.dot(x, y, total, out_dtype=ACCUMULATOR, input_precision="ieee")
        left += BLOCK_K * a_column
        right += BLOCK_K * b_row
    out = target + copy.to(tl.int64) * m * n + at_m.to(tl.int64)[:, None] * n + at_n[None, :]
    tl.store(out, total, mask=(at_m[:, None] < m) & (at_n[None, :] < n))
    if len(READS) > 0:
        # all of them before the store, whose branch a compiler may duplicate with what follows
        unit = tl.zeros((), dtype=tl.int64)
        for word in tl.static_range(len(READS)):
            read = tl.inline_asm_elementwise(
                READS[word], CONSTRAINT, [], dtype=tl.int32, is_pure=False, pack=1
            )
            unit |= (read.to(tl.int64) & 0xFFFFFFFF) << (32 * word)
        tl.store(units + tile, unit)
