"""The sum of all elements, in two passes whose order does not depend on timing."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def sum_kernel(source, target, n, BLOCK: tl.constexpr):
    """``target[p]`` is the sum of every block p, p + programs, ... of ``source``.

    Accumulates in ``target``'s dtype. No atomics: the same input gives the same bits.
    """
    program = tl.program_id(0).to(tl.int64)
    stride = tl.num_programs(0).to(tl.int64) * BLOCK
    lanes = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), dtype=target.dtype.element_ty)
    for start in range(program * BLOCK, n, stride):
        at = start + lanes
        total += tl.load(source + at, mask=at < n, other=0).to(target.dtype.element_ty)
    tl.store(target + program, tl.sum(total, axis=0))
