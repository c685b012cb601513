"""The kernels' oracles: the same functions in torch and float64, and error bounds of kernels.

Each oracle has the arguments of its kernel. A bound is absolute, elementwise, and follows from the
arithmetic that the kernel states: roundings of fp32 (unit roundoff 2^-24) on the way, and one of
the output. Formulas are the standard first-order ones (Higham, Accuracy and Stability of Numerical
Algorithms, chapters 3 and 4). An input that is not finite has no bound: compare with
``equal_nan``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from portagpu.train.kernels.plan import as_fp32

if TYPE_CHECKING:
    import torch

ROUNDOFF: Final = 2.0**-24
"""Unit roundoff of fp32."""
_FP8_ACCUMULATION: Final = 2.0**-13
"""Relative error of one step of an fp8 accumulation inside a matrix unit, which keeps about 14 bits
(DeepSeek-V3 technical report, arXiv:2412.19437, section 3.3.2)."""
_FP8_STEPS: Final = 4
"""Steps of at least 32 products in a block of at most 128, after which the kernel adds in fp32."""


def copy(x: torch.Tensor) -> torch.Tensor:
    """``x`` again."""
    return x.clone()


def triad(b: torch.Tensor, c: torch.Tensor, scalar: float) -> torch.Tensor:
    """``b + scalar * c`` in float64."""
    return b.double() + scalar * c.double()


def triad_bound(b: torch.Tensor, c: torch.Tensor, scalar: float) -> torch.Tensor:
    """Three roundings in fp32 (the scalar's, the product's, the sum's) and one of the output."""
    magnitude = b.double().abs() + abs(scalar) * c.double().abs()
    return 3 * ROUNDOFF * magnitude + _output(triad(b, c, scalar), b.dtype)


def sum(x: torch.Tensor) -> torch.Tensor:  # noqa: A001 - torch's name
    """The sum of all elements, in float64, or int64 for integers. Shape ()."""
    return x.double().sum() if x.is_floating_point() else x.sum()


def sum_bound(x: torch.Tensor) -> torch.Tensor:
    """``depth`` roundings of the summands; ``depth`` is the most additions of one element.

    A lane adds every block of its program, the lanes of a block are added, then the programs: at
    most ``n / 2^20`` for 1024 programs of at least 1024 lanes, and twice 12 levels of a tree.
    """
    import torch

    if not x.is_floating_point():
        return torch.zeros((), dtype=torch.float64)
    depth = x.numel() / 2**20 + 24 + 1
    unit = 2.0**-53 if x.dtype is torch.float64 else ROUNDOFF
    return depth * unit * x.double().abs().sum()


def softmax(x: torch.Tensor) -> torch.Tensor:
    """Softmax over the last dimension, in float64."""
    import torch

    return torch.softmax(x.double(), dim=-1)


def softmax_bound(x: torch.Tensor) -> torch.Tensor:
    """exp: its argument's rounding and 4 units of its own. The sum: roundings by its depth."""
    y = softmax(x)
    if not x.numel():
        return y
    distance = (x.double() - x.double().amax(-1, keepdim=True)).abs()
    depth = x.shape[-1] / 1024 + 12
    return (4 * distance + 2 * depth + 16) * ROUNDOFF * y + _output(y, x.dtype)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    """``x * rsqrt(mean(x^2) + eps) * weight`` over the last dimension, in float64."""
    wide = x.double()
    scale = (wide.square().mean(-1, keepdim=True) + eps).rsqrt()
    return wide * scale * weight.double()


def rms_norm_bound(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    """Half of the error of the sum of squares, and 8 roundings of root, quotient and products."""
    y = rms_norm(x, weight, eps)
    depth = x.shape[-1] / 1024 + 12
    return (depth + 8) * ROUNDOFF * y.abs() + _output(y, x.dtype)


def matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """``a @ b`` in float64; products and sums of integers are exact in it."""
    return a.double() @ b.double()


def matmul_bound(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """``k`` roundings of ``|a| @ |b|``, for fp8 a short accumulation's too; none for int8."""
    import torch

    from portagpu.train.kernels.plan import product_dtype

    exact = matmul(a, b)
    if not a.dtype.is_floating_point:
        return torch.zeros_like(exact)
    magnitude = a.double().abs() @ b.double().abs()
    error = a.shape[1] * ROUNDOFF
    if a.dtype.itemsize == 1:
        error += _FP8_STEPS * _FP8_ACCUMULATION
    return error * magnitude + _output(exact, product_dtype(a.dtype))


def quantize_fp8(x: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Each row's values over its scale, cast by torch, and the scales in float32.

    The scale is ``max|x| / finfo(dtype).max``, 1 for a row of zeros, NaN for a row with a NaN.
    """
    import torch

    limit = torch.finfo(dtype).max
    wide = x.float()
    peak = wide.abs().amax(-1) if x.shape[-1] else wide.new_zeros(x.shape[:-1])
    scale = torch.where(peak == 0, torch.ones_like(peak), peak / limit)
    return (wide / scale.unsqueeze(-1)).clamp(-limit, limit).to(dtype), scale


def quantize_fp8_bound(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The bound of ``quantised * scale - x``: half a step of the format, times the scale.

    A step is ``eps`` of the value, and never below that of the subnormals; the quotient adds two
    roundings of fp32.
    """
    import torch

    info = torch.finfo(dtype)
    _, scale = quantize_fp8(x, dtype)
    smallest = info.smallest_normal * info.eps * scale.double().unsqueeze(-1)
    size = x.double().abs()
    return torch.maximum(size * info.eps, smallest) / 2 * (1 + 2**-10) + 4 * ROUNDOFF * size


def adamw_step(
    parameter: torch.Tensor,
    gradient: torch.Tensor,
    exp_avg: torch.Tensor,
    exp_avg_sq: torch.Tensor,
    *,
    step: int,
    lr: float = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 1e-2,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(parameter, exp_avg, exp_avg_sq) after the step, new, in float64; settings in fp32 first.

    Moments, their bias correction and the decoupled decay are those of arXiv 1711.05101,
    algorithm 2, with a decay of lr * weight_decay.
    """
    beta1, beta2, rate, epsilon, decay = map(as_fp32, (*betas, lr, eps, weight_decay))
    p, g, m, v = (each.double() for each in (parameter, gradient, exp_avg, exp_avg_sq))
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g.square()
    corrected = m / (1 - beta1**step), v / (1 - beta2**step)
    update = rate * corrected[0] / (corrected[1].sqrt() + epsilon)
    return p - rate * decay * p - update, m, v


def adamw_step_bound(
    parameter: torch.Tensor,
    gradient: torch.Tensor,
    exp_avg: torch.Tensor,
    exp_avg_sq: torch.Tensor,
    *,
    step: int,
    lr: float = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 1e-2,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The bounds of parameter and moments, operation by operation.

    A term of a moment is rounded three times, a square four times. With e the error of v, that of
    its root is at most e / sqrt(v), and at most sqrt(e). The denominator adds three roundings (the
    correction's, the quotient's, the sum's), the update three (the step size's, the product's, the
    quotient's), and the parameter that of the decay and of two differences.
    """
    import torch

    beta1, beta2, rate, epsilon, decay = map(as_fp32, (*betas, lr, eps, weight_decay))
    p, g, m = (each.double().abs() for each in (parameter, gradient, exp_avg))
    exact, average, square = adamw_step(
        *(parameter, gradient, exp_avg, exp_avg_sq),
        step=step,
        lr=lr,
        betas=betas,
        eps=eps,
        weight_decay=weight_decay,
    )
    # what eight operations may lose as subnormals
    lost = 8 * torch.finfo(torch.float32).smallest_normal
    average_error = 3 * ROUNDOFF * (beta1 * m + (1 - beta1) * g) + lost
    square_error = 4 * ROUNDOFF * square + lost
    root = square.sqrt()
    root_error = torch.minimum(square_error / root, square_error.sqrt()) + ROUNDOFF * root
    correction, step_size = (1 - beta2**step) ** 0.5, rate / (1 - beta1**step)
    denominator = root / correction + epsilon
    denominator_error = root_error / correction + 3 * ROUNDOFF * denominator
    update = step_size * average.abs() / denominator
    error = step_size * average_error + lost + update * denominator_error
    update_error = 3 * ROUNDOFF * update + error / (denominator - denominator_error).clamp_min(0)
    decayed = (2 * rate * decay + 1) * ROUNDOFF * p + ROUNDOFF * exact.abs()
    parameter_error = update_error + decayed + _output(exact, parameter.dtype)
    return parameter_error, average_error, square_error


def _output(exact: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """One rounding to ``dtype``: half of eps, or half of a subnormal's step (twice for a GPU that
    takes subnormals of fp32 as zero)."""
    import torch

    info = torch.finfo(dtype)
    return (exact.double().abs() * (info.eps / 2) * (1 + 2**-10)).clamp_min(info.smallest_normal)
