"""The dtypes of the kernels, under torch's and Triton's names."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

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
