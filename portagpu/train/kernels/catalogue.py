"""Every kernel to compile: its source, its dtypes, and its arguments.

What Triton specialises on at a launch is stated here as a launch on ordinary tensors would have it:
pointers and sizes that are multiples of 16, and strides of 1 as constants.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from portagpu.train.kernels.plan import FP8, TRITON_NAMES, product_name, sum_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from portagpu.facts.targets import Target


@dataclass(frozen=True, slots=True)
class Variant:
    """One kernel for one dtype.

    ``function`` lies in ``portagpu.train.kernels.source.<module>``. ``arguments`` are Triton types
    by name, in the kernel's order, or the text of a constant; ``kind`` chooses its block constants.
    ``matrix`` is the dtype that the matrix unit must compute in ("fp8"), None for kernels without
    it; ``needs`` is a dtype that the architecture must have."""

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
)
"""The variants that ``portagpu compile`` builds for every architecture."""


def variants_by_id() -> Mapping[str, Variant]:
    """The variants by id."""
    return {variant.id: variant for variant in VARIANTS}
