"""The public functions. They take and return torch tensors, and launch Triton once or twice."""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import math
import os
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.errors import Unsupported
from portagpu.base.plugins import install
from portagpu.train.kernels.plan import (
    FLOATS,
    FP8,
    MATMUL,
    SUMMED,
    Config,
    Limits,
    as_fp32,
    candidates,
    constants,
    name_of,
    product_dtype,
    sum_name,
)

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    import torch

    from portagpu.devices.contract import Backend

_SUM_PROGRAMS: Final = 1024
"""The most partial sums: one block of the second pass reads them all."""
# what Triton's interpreter is given, which has no warps: values that any config fits
_INTERPRETED: Final = Limits(warp_size=1, max_threads=1024, shared_bytes=1 << 20)


def copy(x: torch.Tensor, *, config: Config | None = None) -> torch.Tensor:
    """A contiguous copy of a tensor, bit by bit.

    :param x: any shape, any dtype; contiguous
    :param config: how to run it; by default the first that fits the device
    :returns: the shape and dtype of ``x``
    :raises ValueError: for a tensor that is not contiguous
    :raises Unsupported: where Triton cannot run
    """
    import torch

    place = place_of(x)
    check_contiguous(x)
    result = torch.empty_like(x)
    # bits are copied: a dtype that Triton lacks has an integer of its width
    raw = {1: torch.uint8, 2: torch.int16, 4: torch.int32}.get(x.element_size(), torch.int64)
    source, target = (t.view(-1).view(raw) if t.numel() else t for t in (x.detach(), result))
    launch_flat(place, "streams", "copy_kernel", config, source.numel(), source, target)
    return result


def triad(
    b: torch.Tensor, c: torch.Tensor, scalar: float, *, config: Config | None = None
) -> torch.Tensor:
    """``b + scalar * c``, computed in fp32, in the dtype of ``b``.

    :param b: any shape; fp16, bf16 or fp32; contiguous
    :param c: the shape and dtype of ``b``; contiguous
    :param scalar: a number
    :param config: how to run it; by default the first that fits the device
    :returns: the shape and dtype of ``b``
    :raises ValueError: for other tensors
    :raises Unsupported: where Triton cannot run
    """
    import torch

    place = place_of(b, c)
    check_dtype(b, FLOATS)
    check_same_shape(b, c)
    check_contiguous(b, c)
    result = torch.empty_like(b)
    launch_flat(place, "streams", "triad_kernel", config, b.numel(), result, b, c, float(scalar))
    return result


def sum(x: torch.Tensor, *, config: Config | None = None) -> torch.Tensor:  # noqa: A001 - torch's
    """The sum of all elements: the same bits for the same input on the same device.

    :param x: any shape; fp16, bf16, fp32, fp64, int8, int32 or int64; contiguous
    :param config: how to run it; by default the first that fits the device
    :returns: shape (); fp32 for fp16, bf16 and fp32, which are summed in fp32; fp64 for fp64; int64
        for integers; 0 for no element
    :raises ValueError: for other tensors
    :raises Unsupported: where Triton cannot run
    """
    import torch

    place = place_of(x)
    check_dtype(x, SUMMED)
    check_contiguous(x)
    dtype = getattr(torch, sum_name(name_of(x.dtype)))
    config = config or candidates("sum", place.limits)[0]
    programs = min(-(-x.numel() // config.block("BLOCK")), _SUM_PROGRAMS)
    if not programs:
        return torch.zeros((), dtype=dtype, device=x.device)
    partial = torch.empty(programs, dtype=dtype, device=x.device)
    result = torch.empty(1, dtype=dtype, device=x.device)
    kernel = load_kernel("reduction", "sum_kernel")
    options = place.options(config, x.element_size())
    with place.current():
        kernel[(programs,)](x, partial, x.numel(), **options)
        kernel[(1,)](partial, result, programs, **options)
    return result.reshape(())


def softmax(x: torch.Tensor, *, config: Config | None = None) -> torch.Tensor:
    """Softmax over the last dimension, computed in fp32.

    A row with a NaN, with +inf, or of nothing but -inf gives NaN, as in torch.

    :param x: shape (..., n); fp16, bf16 or fp32; contiguous
    :param config: how to run it; by default the first that fits the device
    :returns: the shape and dtype of ``x``
    :raises ValueError: for other tensors
    :raises Unsupported: where Triton cannot run
    """
    import torch

    place = place_of(x)
    check_dtype(x, FLOATS)
    rows = _rows(x)
    result = torch.empty_like(x)
    if x.numel():
        out = result.view(rows.shape)
        words = (rows, out, rows.shape[1], rows.stride(0), out.stride(0))
        _launch_by_row(place, "softmax_kernel", config, rows, *words)
    return result


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6, *, config: Config | None = None
) -> torch.Tensor:
    """``x * rsqrt(mean(x^2) + eps) * weight`` over the last dimension, computed in fp32.

    :param x: shape (..., n); fp16, bf16 or fp32; contiguous
    :param weight: shape (n,); fp16, bf16 or fp32; contiguous
    :param eps: added to the mean of squares
    :param config: how to run it; by default the first that fits the device
    :returns: the shape and dtype of ``x``
    :raises ValueError: for other tensors
    :raises Unsupported: where Triton cannot run
    """
    import torch

    place = place_of(x, weight)
    check_dtype(x, FLOATS)
    check_dtype(weight, FLOATS)
    rows = _rows(x)
    if weight.shape != x.shape[-1:]:
        raise ValueError(
            f"weight has the shape {tuple(weight.shape)}; it must be {tuple(x.shape[-1:])}, the "
            "last dimension of x"
        )
    check_contiguous(weight)
    result = torch.empty_like(x)
    if x.numel():
        out = result.view(rows.shape)
        words = (rows, weight, out, rows.shape[1], float(eps), rows.stride(0), out.stride(0))
        _launch_by_row(place, "rms_norm_kernel", config, rows, *words)
    return result


def matmul(a: torch.Tensor, b: torch.Tensor, *, config: Config | None = None) -> torch.Tensor:
    """``a @ b``, accumulated in fp32, or in int32 for int8.

    An fp8 that is not the device's own (``gpu.precision.fp8``) is refused: the compiler would
    silently not use the fp8 unit.

    :param a: shape (m, k); fp16, bf16, int8 or fp8 of either flavour; any strides
    :param b: shape (k, n); the dtype of ``a``; any strides
    :param config: how to run it; by default the first that fits the device
    :returns: shape (m, n); fp16 and bf16 give their own dtype, int8 gives int32, fp8 gives fp32
    :raises ValueError: for other shapes and dtypes
    :raises Unsupported: where Triton or the device cannot
    """
    import torch

    place = place_of(a, b)
    name = check_dtype(a, MATMUL)
    if b.dtype is not a.dtype:
        raise ValueError(f"a is {name} and b {name_of(b.dtype)}; a product takes one dtype")
    if a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[0]:
        raise ValueError(f"{tuple(a.shape)} @ {tuple(b.shape)} must be (m, k) @ (k, n)")
    place.check_fp8(a.dtype)
    (m, k), n = a.shape, b.shape[1]
    result = torch.empty((m, n), dtype=product_dtype(a.dtype), device=a.device)
    if not result.numel():
        return result
    config = config or candidates("matmul", place.limits)[0]
    blocks = -(-m // config.block("BLOCK_M")) * -(-n // config.block("BLOCK_N"))
    kernel = load_kernel("products", "matmul_kernel")
    language = importlib.import_module("triton.language")
    accumulator = language.float32 if a.dtype.is_floating_point else language.int32
    strides = (*a.stride(), *b.stride(), *result.stride())
    options = place.options(config, a.element_size())
    with place.current():
        kernel[(blocks,)](a, b, result, m, n, k, *strides, ACCUMULATOR=accumulator, **options)
    return result


def quantize_fp8(
    x: torch.Tensor, dtype: torch.dtype | None = None, *, config: Config | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """``x`` in fp8 with a scale for each row: ``x`` is about ``values.float() * scale[..., None]``.

    A scale is the row's greatest magnitude over the format's, 1 for a row of zeros, NaN for a row
    with a NaN, whose values are then NaN.

    :param x: shape (..., n); fp16, bf16 or fp32; contiguous
    :param dtype: by default the e4m3 of the device (``gpu.precision.fp8.e4m3``), which is another
        on gfx942 than elsewhere
    :param config: how to run it; by default the first that fits the device
    :returns: the values, of the shape of ``x``, and the scales, float32, of the shape of ``x``
        without its last dimension
    :raises ValueError: for other tensors and dtypes
    :raises Unsupported: where the device has no fp8 or another one, or Triton cannot run
    """
    import torch

    place = place_of(x)
    check_dtype(x, FLOATS)
    dtype = place.default_fp8() if dtype is None else dtype
    if name_of(dtype) not in FP8:
        raise ValueError(f"{name_of(dtype)} is not an fp8 dtype; take {_alternatives(FP8)}")
    place.check_fp8(dtype)
    rows = _rows(x)
    values = torch.empty(x.shape, dtype=dtype, device=x.device)
    scales = torch.ones(x.shape[:-1], dtype=torch.float32, device=x.device)
    if x.numel():
        out = values.view(rows.shape)
        limit = torch.finfo(dtype).max
        words = (rows, out, scales.view(-1), rows.shape[1], limit, rows.stride(0), out.stride(0))
        _launch_by_row(place, "quantise_kernel", config, rows, *words)
    return values, scales


class Place:
    """Where a call runs: an open device, or Triton's interpreter."""

    def __init__(self, device: torch.device, interpreted: bool) -> None:
        from portagpu.devices.registry import handle_for

        self.device = device
        self.gpu: Backend | None = None if interpreted else handle_for(device)
        self.limits: Limits = _INTERPRETED if self.gpu is None else Limits.of_device(self.gpu)

    def options(self, config: Config, element_bytes: int) -> dict[str, Any]:
        """Block constants and Triton's own options."""
        warps = config.warps(self.limits.warp_size)
        return {
            **constants(config, element_bytes),
            "num_warps": warps,
            "num_stages": config.stages,
        }

    def current(self) -> AbstractContextManager[Any]:
        """Triton launches on the current device: make it the tensors'."""
        import torch

        if self.gpu is None:
            return contextlib.nullcontext()
        return torch.accelerator.device_index(self.device.index)

    def default_fp8(self) -> torch.dtype:
        """The e4m3 that this device computes with."""
        fp8 = None if self.gpu is None else self.gpu.precision.fp8
        if fp8 is None:
            raise Unsupported(
                f"{self._device_text()} has no fp8 of its own; name a dtype that it has"
            )
        return fp8.e4m3

    def check_fp8(self, dtype: torch.dtype) -> None:
        """Raise Unsupported for an fp8 dtype that is not the device's flavour."""
        if self.gpu is None or name_of(dtype) not in FP8:
            return
        fp8 = self.gpu.precision.fp8
        if fp8 is None or dtype not in (fp8.e4m3, fp8.e5m2):
            own = "none" if fp8 is None else f"{fp8.e4m3} and {fp8.e5m2}"
            raise Unsupported(
                f"{dtype} does not run natively on {self._device_text()}, which has {own}"
            )

    def _device_text(self) -> str:
        return "Triton's interpreter" if self.gpu is None else f"{self.gpu.arch} ({self.device})"


@functools.cache
def triton_runs_on(device_type: str) -> bool:
    """Whether Triton is installed and its driver launches on that torch device type."""
    if device_type == "cpu" or importlib.util.find_spec("triton") is None:
        return False
    from triton.runtime import driver

    try:
        return bool(driver.active.get_active_torch_device().type == device_type)
    except RuntimeError:  # "0 active drivers"
        return False


def place_of(*tensors: torch.Tensor) -> Place:
    """Where a call with these tensors runs.

    Raises TypeError for an argument that is not a tensor, ValueError for tensors on several devices
    and for negative or conjugate views, and Unsupported where a gradient is required or Triton
    cannot run.
    """
    import torch

    for each in tensors:
        if not isinstance(each, torch.Tensor):
            raise TypeError(f"kernels take tensors of torch, not {type(each).__name__}")
    first = tensors[0]
    if any(each.device != first.device for each in tensors):
        raise ValueError(
            f"tensors are on {', '.join(str(t.device) for t in tensors)}; move them to one device"
        )
    if any(each.is_neg() or each.is_conj() for each in tensors):
        raise ValueError(
            "a tensor is a negative or conjugate view, whose memory holds other values; call "
            ".resolve_neg() or .resolve_conj() first"
        )
    if torch.is_grad_enabled() and any(each.requires_grad for each in tensors):
        raise Unsupported("this kernel has no gradient: call it under torch.no_grad(), or detach()")
    if importlib.util.find_spec("triton") is None:
        raise Unsupported(f"portagpu.kernels needs triton: {install('compile')}")
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    if not interpreted and not triton_runs_on(first.device.type):
        raise Unsupported(
            f"Triton does not run on {first.device.type!r} here: move the tensors to a GPU that it "
            "supports, or call the same function of portagpu.kernels.reference"
        )
    return Place(first.device, interpreted)


def load_kernel(module: str, name: str) -> Any:
    """A kernel of ``portagpu.train.kernels.source``, as a Triton function."""
    return getattr(importlib.import_module(f"portagpu.train.kernels.source.{module}"), name)


def launch_flat(
    place: Place, module: str, name: str, config: Config | None, n: int, *words: object
) -> None:
    """Launch a kernel of the kind "stream" over ``n`` elements; ``words`` come before ``n``."""
    if not n:
        return
    config = config or candidates("stream", place.limits)[0]
    grid = (-(-n // config.block("BLOCK")),)
    with place.current():
        load_kernel(module, name)[grid](*words, n, **place.options(config, 1))


def _launch_by_row(
    place: Place, name: str, config: Config | None, rows: torch.Tensor, *words: object
) -> None:
    config = config or candidates("row", place.limits)[0]
    with place.current():
        load_kernel("rows", name)[(rows.shape[0],)](*words, **place.options(config, 1))


def _rows(x: torch.Tensor) -> torch.Tensor:
    """``x`` as (rows, columns)."""
    if x.dim() == 0:
        raise ValueError("a tensor without dimensions has no rows; give it one with x.reshape(1)")
    check_contiguous(x)
    return x.detach().reshape(-1, x.shape[-1]) if x.numel() else x.detach()


def check_dtype(x: torch.Tensor, names: tuple[str, ...]) -> str:
    """The name of the dtype; raises ValueError unless it is one of ``names``."""
    name = name_of(x.dtype)
    if name not in names:
        raise ValueError(f"{name} is not supported here; convert to {_alternatives(names)}")
    return name


def _alternatives(names: tuple[str, ...]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}"


def check_same_shape(b: torch.Tensor, c: torch.Tensor) -> None:
    """Raise ValueError unless both have one shape and one dtype."""
    if b.shape != c.shape or b.dtype is not c.dtype:
        shown = [f"{tuple(t.shape)} of {name_of(t.dtype)}" for t in (b, c)]
        raise ValueError(f"{shown[0]} and {shown[1]} must be of one shape and one dtype")


def check_contiguous(*tensors: torch.Tensor) -> None:
    """Raise ValueError for a tensor that is not contiguous."""
    for each in tensors:
        if not each.is_contiguous():
            raise ValueError("a tensor is not contiguous; call .contiguous() first")


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
    2). It computes in fp32, with settings rounded to fp32 first. A gradient that is not finite
    makes the parameter NaN, as in torch. One tensor is one launch; amsgrad, maximize and scaled
    gradients are not supported. All four tensors are contiguous and of one shape.

    :param parameter: fp16, bf16 or fp32
    :param gradient: the dtype of ``parameter``
    :param exp_avg: fp32, zeros at first
    :param exp_avg_sq: fp32, zeros at first
    :param step: counts from 1 and sets the bias correction; a graph that is replayed repeats it
    :param lr: the learning rate, which also scales the decay, as in torch
    :param betas: the decay rates of the two moments, each at least 0 and below 1
    :param eps: added to the denominator
    :param weight_decay: the decay of the weights
    :param config: how to run it; by default the first that fits the device
    :raises ValueError: for other tensors, and for settings out of range
    :raises Unsupported: where Triton cannot run
    """
    import torch

    place = place_of(parameter, gradient, exp_avg, exp_avg_sq)
    check_dtype(parameter, FLOATS)
    check_same_shape(parameter, gradient)
    check_dtype(exp_avg, ("float32",))
    check_same_shape(exp_avg, exp_avg_sq)
    if exp_avg.shape != parameter.shape:
        raise ValueError(
            f"the moments have the shape {tuple(exp_avg.shape)}; it must be that of the parameter, "
            f"{tuple(parameter.shape)}"
        )
    check_contiguous(parameter, gradient, exp_avg, exp_avg_sq)
    beta1, beta2, rate, epsilon, decay = (as_fp32(each) for each in (*betas, lr, eps, weight_decay))
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
