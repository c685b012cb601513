"""The kernels as functions on GPU tensors. CuPy compiles and launches them without copies.

Tensors are torch's, or anything with ``__dlpack__`` or ``__cuda_array_interface__``; what is
returned is torch's, on the same device. A launch goes to the device's current stream and is not
waited for, if the function does not say so. The device is ``gpu``, by default the current one.

Every function raises Unsupported on a device without CUDA or HIP C++ (a CPU), MissingDependency
where CuPy is missing or made for the other vendor, and ValueError for a tensor of another device,
dtype or layout: tensors are contiguous.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.errors import MissingDependency, Unsupported
from portagpu.devices.sizing.rules import to_int
from portagpu.train.kernels.cpp.sources import read_source

if TYPE_CHECKING:
    import torch

    from portagpu.devices.contract import Backend
    from portagpu.devices.machine_code import Cupy
    from portagpu.devices.sizing import Launch

_OPTIONS: Final = ("--std=c++17",)
_NUMBERS: Final = {"float32": "f32", "float64": "f64", "int32": "i32", "int64": "i64"}
_INTEGERS: Final = {"int32": "i32", "int64": "i64"}
_FLAGS: Final = {"bool": "", "uint8": ""}
_SUM_OF: Final = {"i32": "i64"}
"""Sums of 32-bit integers have 64 bits, as in torch; others have the type of the summands."""
_SHARED_BINS_BYTES: Final = 8192
"""Shared memory of a block of ``histogram.cpp``."""


def sum_rows(x: Any, *, gpu: Backend | None = None) -> torch.Tensor:
    """The sums over the last dimension: fp32 and fp64 in their dtype, int32 and int64 in int64.

    A warp adds a row, of any length; shape ``(..., n)`` becomes ``(...)``.
    """
    gpu, tensor, kind = _input(x, _NUMBERS, gpu)
    rows, columns = _rows(tensor)
    result = tensor.new_zeros(tensor.shape[:-1], dtype=_sum_dtype(tensor))
    if tensor.numel():
        _launch_by_row(gpu, "warp_reduce", f"row_sum_{kind}", tensor, result, rows, columns)
    return result


def scan_rows(x: Any, *, gpu: Backend | None = None) -> torch.Tensor:
    """The inclusive prefix sums over the last dimension, in the dtypes of :func:`sum_rows`."""
    gpu, tensor, kind = _input(x, _NUMBERS, gpu)
    rows, columns = _rows(tensor)
    result = tensor.new_empty(tensor.shape, dtype=_sum_dtype(tensor))
    if tensor.numel():
        _launch_by_row(gpu, "warp_scan", f"row_scan_{kind}", tensor, result, rows, columns)
    return result


def rank_rows(flags: Any, *, gpu: Backend | None = None) -> torch.Tensor:
    """The number of set flags before each one in its row, int64: the compacted position.

    ``flags`` is bool, or uint8 with anything but 0 for set; a row is the last dimension.
    """
    import torch

    gpu, tensor, _ = _input(flags, _FLAGS, gpu)
    rows, columns = _rows(tensor)
    result = tensor.new_empty(tensor.shape, dtype=torch.int64)
    if tensor.numel():
        _launch_by_row(gpu, "ballot_rank", "row_rank", tensor, result, rows, columns)
    return result


def sum_all(x: Any, *, gpu: Backend | None = None) -> torch.Tensor:
    """The sum of all elements, shape (), in the dtypes of :func:`sum_rows`; 0 of nothing.

    Two launches in a fixed order of additions: the same input gives the same bits.
    """
    gpu, tensor, kind = _input(x, _NUMBERS, gpu)
    if not tensor.numel():
        return tensor.new_zeros((), dtype=_sum_dtype(tensor))
    plan = gpu.sizing.reduce(tensor.numel(), item_bytes=tensor.element_size())
    partials = tensor.new_empty(plan.partials.grid, dtype=_sum_dtype(tensor))
    _launch(
        gpu, "block_reduce", f"partial_sum_{kind}", plan.partials, tensor, partials, tensor.numel()
    )
    if plan.final is None:
        return partials.reshape(())
    result = partials.new_empty(plan.final.grid)
    function = f"partial_sum_{_SUM_OF.get(kind, kind)}"
    _launch(gpu, "block_reduce", function, plan.final, partials, result, partials.numel())
    return result.reshape(())


def histogram(
    values: Any, bins: int, *, check: bool = True, gpu: Backend | None = None
) -> torch.Tensor:
    """The counts of 0 to ``bins`` - 1 in ``values``.

    :param values: int32 or int64, any shape, contiguous
    :param bins: the number of bins
    :param check: whether to wait for the device and raise IndexError for a value outside; without
        it such values are not counted
    :param gpu: the device; by default the current one
    :returns: int64, shape (bins,)
    :raises IndexError: for a value outside, with ``check``
    """
    import torch

    gpu, tensor, kind = _input(values, _INTEGERS, gpu)
    bins = to_int("bins", bins, 1)
    counts = tensor.new_zeros(bins + 1, dtype=torch.int64)
    if tensor.numel():
        plan = gpu.sizing.launch(tensor.numel(), shared_memory=_SHARED_BINS_BYTES)
        _launch(gpu, "histogram", f"histogram_{kind}", plan, tensor, counts, tensor.numel(), bins)
    if check and (outside := int(counts[bins])):
        raise IndexError(f"{outside} of {tensor.numel()} values are outside 0 to {bins - 1}")
    return counts[:bins]


@dataclass(frozen=True, slots=True)
class FunctionResources:
    """The driver's figures for a loaded function: for a thread, a block, and a unit."""

    registers: int
    shared_memory: int
    blocks: int


def function_resources(
    source: str, function: str, threads: int, *, gpu: Backend | None = None
) -> FunctionResources:
    """The resources of a C++ kernel's function in blocks of ``threads``, from the driver.

    Raises as the kernels do on a device without them.

    :param source: the name of a kernel's source, of
        :data:`~portagpu.train.kernels.cpp.sources.KERNELS`
    :param function: one of its functions
    :param threads: threads of a block
    :param gpu: the device; by default the current one
    :returns: registers of a thread, shared memory of a block in bytes, and blocks of a unit by the
        driver's own occupancy
    """
    from portagpu.devices.registry import backend

    gpu = backend() if gpu is None else gpu
    cupy = _cupy(gpu)
    with cupy.cuda.Device(gpu.device.index):
        kernel = _module(cupy, source).get_function(function)
        blocks = cupy.cuda.driver.occupancyMaxActiveBlocksPerMultiprocessor(
            kernel.kernel.ptr, threads, 0
        )
        return FunctionResources(kernel.num_regs, kernel.shared_size_bytes, blocks)


def _launcher(gpu: Backend) -> Cupy:
    """The CuPy for this device; raises Unsupported where C++ cannot be launched on it."""
    toolchain = gpu.plugin.toolchain()
    if toolchain is None or toolchain.cupy is None:
        raise Unsupported(f"{gpu.name} does not run CUDA or HIP C++: kernels in C++ need a GPU")
    return toolchain.cupy


def _input(x: Any, kinds: dict[str, str], gpu: Backend | None) -> tuple[Backend, torch.Tensor, str]:
    """The device, the tensor without a copy, and the suffix of the kernel for its dtype."""
    import torch

    from portagpu.devices.registry import backend

    gpu = backend() if gpu is None else gpu
    _launcher(gpu)
    if isinstance(x, torch.Tensor):
        tensor = x.detach()
    elif hasattr(x, "__dlpack__"):
        tensor = torch.utils.dlpack.from_dlpack(x)
    elif hasattr(x, "__cuda_array_interface__"):
        tensor = torch.as_tensor(x, device=gpu.device)
    else:
        raise TypeError(f"{type(x).__name__} is neither a tensor nor shares memory as one")
    if tensor.device != gpu.device:
        raise ValueError(f"the tensor is on {tensor.device}, and the kernel runs on {gpu.device}")
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype not in kinds:
        raise ValueError(f"{dtype} has no kernel; there are {', '.join(kinds)}")
    if tensor.is_neg():
        raise ValueError("the tensor is a negative view: call .resolve_neg(), which copies it")
    if not tensor.is_contiguous():
        raise ValueError("the tensor is not contiguous: call .contiguous(), which copies it")
    return gpu, tensor, kinds[dtype]


def _sum_dtype(tensor: torch.Tensor) -> torch.dtype:
    import torch

    return tensor.dtype if tensor.is_floating_point() else torch.int64


def _rows(tensor: torch.Tensor) -> tuple[int, int]:
    if not tensor.dim():
        raise ValueError("the tensor has no dimension, and so no rows")
    columns = tensor.shape[-1]
    return (tensor.numel() // columns if columns else 0), columns


def _launch_by_row(gpu: Backend, source: str, function: str, *arguments: Any) -> None:
    """Launch a kernel that gives each warp a row; the last two arguments are rows and columns."""
    rows = arguments[-2]
    plan = gpu.sizing.launch(rows * gpu.arch.warp_size)
    _launch(gpu, source, function, plan, *arguments)


class _Stream:
    """torch's stream with the CUDA stream protocol, which some versions of torch lack."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __cuda_stream__(self) -> tuple[int, int]:
        """The version of the protocol, and the address."""
        return 0, self._stream.cuda_stream


def _launch(gpu: Backend, source: str, function: str, plan: Launch, *arguments: Any) -> None:
    """Launch on the current stream. Tensors are passed as addresses, numbers as 64-bit integers."""
    cupy = _cupy(gpu)
    kernel = _module(cupy, source).get_function(function)
    words = tuple(word if isinstance(word, int) else word.data_ptr() for word in arguments)
    stream = cupy.cuda.Stream.from_external(_Stream(gpu.current_stream()))
    with cupy.cuda.Device(gpu.device.index), stream:
        kernel((plan.grid,), (plan.block,), words)


@cache
def _module(cupy: Any, source: str) -> Any:
    """Let CuPy build it on first use for each device. CuPy caches builds on disk."""
    return cupy.RawModule(code=read_source(source), options=_OPTIONS)


def _cupy(gpu: Backend) -> Any:
    needed = _launcher(gpu)
    try:
        cupy = import_module("cupy")
    except ImportError as error:
        raise MissingDependency(
            f"kernels in C++ need CuPy ({error}): pip install {needed.install}"
        ) from error
    if bool(cupy.cuda.runtime.is_hip) != needed.is_hip:
        raise MissingDependency(
            f"the installed CuPy is made for another vendor than {gpu.arch.vendor}: uninstall it, "
            f"and pip install {needed.install}"
        )
    return cupy
