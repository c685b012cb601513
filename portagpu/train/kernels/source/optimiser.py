"""A step of AdamW in one kernel, which reads and writes each number once."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def adamw_step_kernel(
    parameter,
    gradient,
    exp_avg,
    exp_avg_sq,
    beta1,
    beta2,
    decay,
    step_size,
    correction,
    epsilon,
    n,
    BLOCK: tl.constexpr,
):
    """Update parameter and moments in place, in fp32, in the order of torch's fused kernel.

    That is ``adam_math`` in aten/src/ATen/native/cuda/fused_adam_utils.cuh of torch 2.13, lines 123
    to 142. It has ``fma(-beta, g, g)`` for ``(1 - beta) * g``, which gives the same number from a
    beta of 1/2 on, where ``1 - beta`` is exact, and NaN for an infinite g. ``correction`` is
    ``sqrt(1 - beta2^step)``.
    """
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    p = tl.load(parameter + at, mask=inside).to(tl.float32)
    g = tl.load(gradient + at, mask=inside).to(tl.float32)
    m = tl.load(exp_avg + at, mask=inside)
    v = tl.load(exp_avg_sq + at, mask=inside)
    if decay != 0:
        p = tl.fma(-decay, p, p)
    m = tl.fma(beta1, m, (1.0 - beta1) * g)
    v = tl.fma(beta2, v, (1.0 - beta2) * (g * g))
    # a plain sqrt or / may be an approximation
    denominator = tl.div_rn(tl.sqrt_rn(v), correction) + epsilon
    p -= tl.div_rn(step_size * m, denominator)
    tl.store(parameter + at, p.to(parameter.dtype.element_ty), mask=inside)
    tl.store(exp_avg + at, m, mask=inside)
    tl.store(exp_avg_sq + at, v, mask=inside)
