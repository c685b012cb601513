"""What runs a kernel: its configs, those that fit a device, its dtypes; and every kernel there is.

Candidates are in threads, not in warps, so that one list serves warps of 32 and waves of 64. The
dtypes have torch's and Triton's names.

What Triton specialises on at a launch is stated here as a launch on ordinary tensors would have it:
pointers and sizes that are multiples of 16, and strides of 1 as constants.
"""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from portagpu.devices.contract import Backend
    from portagpu.facts.targets import Target


OPTIN: Final = "shared_memory.per_block_optin"
"""The fact for the most shared memory of one block, B."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a block; ``shared_bytes`` is None where unknown."""

    warp_size: int
    max_threads: int
    shared_bytes: int | None

    @classmethod
    def of_target(cls, target: Target) -> Limits:
        """The limits in a target's facts."""
        shared = target.value(OPTIN)
        return cls(
            target.arch.warp_size,
            int(target.value("exec.max_threads_per_block") or target.arch.warp_size),
            shared if isinstance(shared, int) else None,
        )

    @classmethod
    def of_device(cls, gpu: Backend) -> Limits:
        """The limits of an open device; shared memory is its target's."""
        shared = None if gpu.target is None else gpu.target.value(OPTIN)
        return cls(
            gpu.arch.warp_size,
            gpu.sizing.max_threads_per_block,
            shared if isinstance(shared, int) else None,
        )


@dataclass(frozen=True, slots=True)
class Config:
    """One way to run a kernel: its block constants, ``threads`` a block, pipeline ``stages``."""

    blocks: tuple[tuple[str, int], ...]
    threads: int
    stages: int = 2

    def warps(self, warp_size: int) -> int:
        """Triton's ``num_warps``."""
        return max(1, self.threads // warp_size)

    def block(self, name: str) -> int:
        """The block constant of that name."""
        return dict(self.blocks)[name]


def _configs_in_one_dimension(*sizes: tuple[int, int]) -> tuple[Config, ...]:
    return tuple(Config((("BLOCK", block),), threads) for block, threads in sizes)


def _tiles(*sizes: tuple[int, int, int, int, int]) -> tuple[Config, ...]:
    return tuple(
        Config((("BLOCK_M", m), ("BLOCK_N", n), ("DEPTH_BYTES", depth), ("GROUP_M", 8)), *rest)
        for m, n, depth, *rest in sizes
    )


def _in_order(m: int, n: int, depth_bytes: int) -> Config:
    """Blocks of a product whose programs go from left to right."""
    return Config((("BLOCK_M", m), ("BLOCK_N", n), ("DEPTH_BYTES", depth_bytes)), 128)


# The first of each list that fits is the default; the others are for tuning. The last fits
# everywhere: it is taken where a device's shared memory is not known.
_CANDIDATES: Final[Mapping[str, tuple[Config, ...]]] = {
    "stream": _configs_in_one_dimension(
        (1024, 256), (4096, 512), (4096, 1024), (2048, 256), (512, 128)
    ),
    "sum": _configs_in_one_dimension((2048, 256), (4096, 512), (1024, 128)),
    "row": _configs_in_one_dimension(
        (2048, 256), (4096, 512), (4096, 1024), (1024, 256), (1024, 128)
    ),
    "matmul": _tiles(
        (128, 128, 64, 256, 2),
        (128, 256, 128, 256, 3),
        (128, 128, 128, 256, 3),
        (128, 128, 128, 128, 2),
        (128, 64, 64, 128, 3),
        (64, 128, 64, 128, 2),
        (32, 64, 128, 128, 2),
        (64, 64, 64, 128, 2),
    ),
    # small blocks: a product of a few hundred rows is to reach many units
    "matrix by unit": (_in_order(64, 64, 64),),
    # without a matrix unit a thread keeps more registers of its operands
    "vector by unit": (_in_order(32, 64, 64),),
}

_WIDEST_OUTPUT: Final = 4
"""Bytes of the widest output of a matrix product (fp32, int32)."""


def shared_estimate(config: Config) -> int:
    """An estimate, before compiling, of a config's shared memory, B.

    A product keeps ``stages`` blocks of each operand; where that is smaller, the output takes their
    place on its way to memory. Rows and streams need a few words a warp. Triton 3.9 takes up to 5 %
    more where it pads (gfx950), and up to 16 B more on sm_100 and sm_103.
    """
    sizes = dict(config.blocks)
    if "BLOCK_M" not in sizes:
        return config.threads * _WIDEST_OUTPUT
    m, n, depth = sizes["BLOCK_M"], sizes["BLOCK_N"], sizes["DEPTH_BYTES"]
    return max(config.stages * depth * (m + n), m * n * _WIDEST_OUTPUT)


def all_configs(kind: str) -> tuple[Config, ...]:
    """Every config of ``kind``, whether it fits a device or not."""
    return _CANDIDATES[kind]


@functools.cache  # 10 to 30 us, at every launch
def candidates(kind: str, limits: Limits) -> tuple[Config, ...]:
    """The configs of ``kind`` (such as "row" or "matmul") that fit, the default first.

    Left out are those of more threads than a block may have (32 warps of 64 are 2048), and those
    whose shared memory is estimated above the device's. Where that is not known, only the last is
    taken, which is the smallest.
    """
    possible = all_configs(kind)
    if limits.shared_bytes is None and kind == "matmul":
        possible = possible[-1:]
    return tuple(
        config
        for config in possible
        if config.warps(limits.warp_size) * limits.warp_size <= limits.max_threads
        and (limits.shared_bytes is None or shared_estimate(config) <= limits.shared_bytes)
    )


def constants(config: Config, element_bytes: int) -> dict[str, int]:
    """The block constants of the kernel, for inputs of ``element_bytes``.

    Configs state a product's depth in bytes, because a matrix unit reads a constant number of
    bytes at once: 16 numbers of 16 bits, or 32 of 8.
    """
    sizes = dict(config.blocks)
    if "DEPTH_BYTES" in sizes:
        sizes["BLOCK_K"] = sizes.pop("DEPTH_BYTES") // element_bytes
    return sizes


TRITON_NAMES: Final[Mapping[str, str]] = {
    "float64": "fp64",
    "float32": "fp32",
    "float16": "fp16",
    "bfloat16": "bf16",
    "float8_e4m3fn": "fp8e4nv",
    "float8_e5m2": "fp8e5",
    "float8_e4m3fnuz": "fp8e4b8",
    "float8_e5m2fnuz": "fp8e5b16",
    "int8": "i8",
    "int32": "i32",
    "int64": "i64",
}
"""torch's name -> the name in a Triton signature."""

FLOATS: Final = ("float16", "bfloat16", "float32")
"""The dtypes of row and stream kernels."""
FP8: Final = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")
MATMUL: Final = ("float16", "bfloat16", *FP8, "int8")
BY_UNIT: Final = ("float16", "bfloat16", "float32", "int8")
"""The dtypes of the product that records units, whose results are float32, or int32 for int8."""
SUMMED: Final = ("float16", "bfloat16", "float32", "float64", "int8", "int32", "int64")

_PRODUCTS: Final = {"float16": "float16", "bfloat16": "bfloat16", "int8": "int32"}


def name_of(dtype: torch.dtype) -> str:
    """ "float16" for ``torch.float16``."""
    return str(dtype).removeprefix("torch.")


def product_name(name: str) -> str:
    """The dtype of a product: the inputs' for fp16 and bf16, int32 for int8, float32 for fp8."""
    return _PRODUCTS.get(name, "float32")


def product_dtype(dtype: torch.dtype) -> torch.dtype:
    """:func:`product_name` as torch's dtype."""
    import torch

    found = getattr(torch, product_name(name_of(dtype)))
    assert isinstance(found, torch.dtype)  # noqa: S101 - the table is ours
    return found


def sum_name(name: str) -> str:
    """The dtype of a sum and its result: float32, float64 for float64, or int64."""
    if name == "float64":
        return name
    return "int64" if name.startswith("int") else "float32"


def as_fp32(number: float) -> float:
    """The fp32 number nearest to it; infinity beyond the range."""
    return ctypes.c_float(number).value


@dataclass(frozen=True, slots=True)
class Variant:
    """One kernel for one dtype.

    ``function`` lies in ``portagpu.train.kernels.source.<module>``. ``arguments`` are Triton types
    by name, in the kernel's order, or the text of a constant; ``kind`` chooses its block constants.
    ``matrix`` is the dtype that the matrix unit must compute in ("fp8"), None for kernels without
    it; ``needs`` is a dtype that the architecture must have. ``reads_unit`` is for kernels into
    which the vendor's instructions go that read the hardware unit (``Toolchain.unit_reading``)."""

    kernel: str
    dtype: str
    module: str
    function: str
    kind: str
    arguments: tuple[tuple[str, str], ...]
    element_bytes: int
    constants: tuple[tuple[str, int | str], ...] = ()
    matrix: str | None = None
    needs: str | None = None
    reads_unit: bool = False

    @property
    def id(self) -> str:
        """ "matmul[float16]"."""
        return f"{self.kernel}[{self.dtype}]"

    def why_not(self, target: Target) -> str:
        """The fact that says that an architecture lacks this variant's dtype; else empty."""
        if self.needs is None:
            return ""
        has = target.value("matrix.dtypes") or ()
        if self.needs not in has:
            listed = f"has {', '.join(has)}" if has else "is not stated"
            return f"{target.arch} has no {self.needs} matrix unit: matrix.dtypes {listed}"
        flavour = target.value("matrix.fp8_flavour")
        mine = "fnuz" if self.dtype.endswith("fnuz") else "ocp"
        if self.needs == "fp8" and flavour != mine:
            return f"{target.arch} runs the other fp8: matrix.fp8_flavour is {flavour}, not {mine}"
        return ""


def _pointer(dtype: str) -> str:
    return f"*{TRITON_NAMES[dtype]}"


def _stream(kernel: str, dtype: str, *pointers: str, scalar: bool = False) -> Variant:
    arguments = [(name, _pointer(dtype)) for name in pointers]
    if scalar:
        arguments.append(("scalar", "fp32"))
    return Variant(
        kernel, dtype, "streams", f"{kernel}_kernel", "stream", (*arguments, ("n", "i64")), 4
    )


def _adamw_step(dtype: str) -> Variant:
    numbers = ("beta1", "beta2", "decay", "step_size", "correction", "epsilon")
    return Variant(
        "adamw_step",
        dtype,
        "optimiser",
        "adamw_step_kernel",
        "stream",
        (
            ("parameter", _pointer(dtype)),
            ("gradient", _pointer(dtype)),
            ("exp_avg", "*fp32"),
            ("exp_avg_sq", "*fp32"),
            *((name, "fp32") for name in numbers),
            ("n", "i64"),
        ),
        4,
    )


def _row(kernel: str, dtype: str, function: str, *arguments: tuple[str, str]) -> Variant:
    strides = (("source_stride", "i32"), ("target_stride", "i32"))
    return Variant(kernel, dtype, "rows", function, "row", (*arguments, *strides), 4)


def _quantise(dtype: str) -> Variant:
    return Variant(
        "quantize_fp8",
        dtype,
        "rows",
        "quantise_kernel",
        "row",
        (
            ("source", "*bf16"),
            ("target", _pointer(dtype)),
            ("scales", "*fp32"),
            ("columns", "i32"),
            ("limit", "fp32"),
            ("source_stride", "i32"),
            ("target_stride", "i32"),
        ),
        4,
        needs="fp8",
    )


def _matmul(dtype: str, matrix: str) -> Variant:
    out = product_name(dtype)
    sizes = ("m", "n", "k", "a_row", "b_row", "target_row")
    order = ("a", "b", "target", "m", "n", "k", "a_row", "b_row", "target_row")
    types = {"a": _pointer(dtype), "b": _pointer(dtype), "target": _pointer(out)}
    types |= dict.fromkeys(sizes, "i32")
    return Variant(
        "matmul",
        dtype,
        "products",
        "matmul_kernel",
        "matmul",
        tuple((name, types[name]) for name in order),
        1 if matrix in ("fp8", "int8") else 2,
        constants=(
            ("a_column", 1),
            ("b_column", 1),
            ("target_column", 1),
            ("ACCUMULATOR", "int32" if matrix == "int8" else "float32"),
        ),
        matrix=matrix,
        needs=matrix,
    )


def kind_by_unit(dtype: str) -> str:
    """The kind of the product that records units: float32 in all of its bits has no matrix unit."""
    return "vector by unit" if dtype == "float32" else "matrix by unit"


def _product_by_unit(dtype: str, matrix: str | None, element_bytes: int) -> Variant:
    out = "int32" if dtype == "int8" else "float32"
    pointers = {"a": dtype, "b": dtype, "target": out, "units": "int64"}
    numbers = ("m", "n", "k", "a_row", "b_row", "shift")
    return Variant(
        "product_by_unit",
        dtype,
        "units",
        "product_by_unit_kernel",
        kind_by_unit(dtype),
        (
            *((name, _pointer(each)) for name, each in pointers.items()),
            *((name, "i32") for name in numbers),
        ),
        element_bytes,
        constants=(("a_column", 1), ("b_column", 1), ("ACCUMULATOR", out)),
        matrix=matrix,
        needs=matrix,
        reads_unit=True,
    )


VARIANTS: Final[tuple[Variant, ...]] = (
    _stream("copy", "int32", "source", "target"),
    _stream("triad", "float32", "target", "b", "c", scalar=True),
    Variant(
        "sum",
        "bfloat16",
        "reduction",
        "sum_kernel",
        "sum",
        (("source", "*bf16"), ("target", _pointer(sum_name("bfloat16"))), ("n", "i64")),
        2,
    ),
    _row(
        "softmax",
        "bfloat16",
        "softmax_kernel",
        ("source", "*bf16"),
        ("target", "*bf16"),
        ("columns", "i32"),
    ),
    _row(
        "rms_norm",
        "bfloat16",
        "rms_norm_kernel",
        ("source", "*bf16"),
        ("weight", "*bf16"),
        ("target", "*bf16"),
        ("columns", "i32"),
        ("epsilon", "fp32"),
    ),
    *(_quantise(dtype) for dtype in FP8),
    _adamw_step("float32"),
    _adamw_step("bfloat16"),
    _matmul("float16", "fp16"),
    _matmul("bfloat16", "bf16"),
    *(_matmul(dtype, "fp8") for dtype in FP8),
    _matmul("int8", "int8"),
    _product_by_unit("float16", "fp16", 2),
    _product_by_unit("bfloat16", "bf16", 2),
    _product_by_unit("float32", None, 4),
    _product_by_unit("int8", "int8", 1),
)
"""The variants that ``portagpu compile`` builds for every architecture."""


def variants_by_id() -> Mapping[str, Variant]:
    """The variants by id."""
    return {variant.id: variant for variant in VARIANTS}
