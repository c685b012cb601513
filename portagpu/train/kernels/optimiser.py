"""An optimiser's step as one launch: AdamW."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from portagpu.train.kernels import dtypes
from portagpu.train.kernels.ops import (
    check_alike,
    check_contiguous,
    check_dtype,
    launch_flat,
    place_of,
)

if TYPE_CHECKING:
    import torch

    from portagpu.train.kernels.plan import Config


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
    config: Config | None = None,
) -> None:
    """Update ``parameter`` and its two moments in place by one step of AdamW, as torch's AdamW.

    AdamW is Adam with decoupled weight decay (Loshchilov and Hutter, arXiv 1711.05101, algorithm
    2); as in torch, ``lr`` scales the decay. ``step`` counts from 1 and sets the bias correction; a
    graph that is replayed repeats it. ``parameter`` and ``gradient`` have one dtype of fp16, bf16
    and fp32, the moments are fp32 and begin as zeros, and all four are contiguous and of one shape.
    It computes in fp32, with settings rounded to fp32 first. A gradient that is not finite makes
    the parameter NaN, as in torch. One tensor is one launch; amsgrad, maximize and scaled gradients
    are not there.

    Raises ValueError for other tensors and for settings out of range, and Unsupported where Triton
    cannot run.
    """
    import torch

    place = place_of(parameter, gradient, exp_avg, exp_avg_sq)
    check_dtype(parameter, dtypes.FLOATS)
    check_alike(parameter, gradient)
    check_dtype(exp_avg, ("float32",))
    check_alike(exp_avg, exp_avg_sq)
    if exp_avg.shape != parameter.shape:
        raise ValueError(
            f"the moments have the shape {tuple(exp_avg.shape)}; it must be that of the parameter, "
            f"{tuple(parameter.shape)}"
        )
    check_contiguous(parameter, gradient, exp_avg, exp_avg_sq)
    beta1, beta2, rate, epsilon, decay = (
        dtypes.as_fp32(each) for each in (*betas, lr, eps, weight_decay)
    )
    _check_settings(step, (beta1, beta2), rate, epsilon, decay)
    settings = {
        "beta1": beta1,
        "beta2": beta2,
        "decay": rate * decay,
        "step_size": rate / (1 - beta1**step),
        "correction": math.sqrt(1 - beta2**step),
        "epsilon": epsilon,
    }
    tensors = (parameter, gradient, exp_avg, exp_avg_sq)
    words = (*tensors, *settings.values())
    launch_flat(place, "optimiser", "adamw_step_kernel", config, parameter.numel(), *words)
    # so that a backward pass that still needs the old values raises, as after an operator of torch
    torch.autograd.graph.increment_version((parameter, exp_avg, exp_avg_sq))


def _check_settings(
    step: int, betas: tuple[float, float], lr: float, eps: float, weight_decay: float
) -> None:
    """Raise ValueError for settings that torch's AdamW refuses too, and for a step before 1."""
    if not isinstance(step, int) or step < 1:
        raise ValueError(f"step is {step!r}; it must be a whole number from 1 on")
    if not all(0 <= beta < 1 for beta in betas):
        raise ValueError(f"betas are {betas} in fp32; each must be at least 0 and below 1")
    others = {"lr": lr, "eps": eps, "weight_decay": weight_decay}
    for name, value in others.items():
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(f"{name} is {value} in fp32; it must be finite and at least 0")
