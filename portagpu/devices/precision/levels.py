"""Enumerations: support of a dtype, recipes of scaling, kinds of arithmetic."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class Support(StrEnum):
    """The support of a dtype on a device.

    Arithmetic in an fp8 dtype is the scaled matrix product: torch adds and multiplies fp8 element
    by element on no device.
    """

    NATIVE = "native"
    """Arithmetic in the dtype has native instructions."""
    EMULATED = "emulated"
    """Arithmetic works through another dtype."""
    STORAGE = "storage"
    """Tensors can be stored and converted; there is no arithmetic."""
    NONE = "none"
    """The device has no tensors of the dtype."""


EVERYWHERE: Final = (
    "bool",
    "uint8",
    "int8",
    "int16",
    "int32",
    "int64",
    "float32",
    "float64",
    "complex64",
    "complex128",
)
"""Names of the torch dtypes with native instructions on CPUs and GPUs."""


class Recipe(StrEnum):
    """How the elements of a scaled matrix share their scales, along the dimension of the sum."""

    TENSOR = "tensor"
    """One scale for the whole matrix."""
    ROW = "row"
    """A scale for each row of the left operand and each column of the right one."""
    MX = "mx"
    """A power of two for each 32 elements (OCP microscaling formats specification 1.0)."""


class Arithmetic(StrEnum):
    """The arithmetic of float32 matrix products."""

    IEEE = "ieee"
    """float32, or a sum of narrower products that keeps all 24 bits of the inputs."""
    TF32 = "tf32"
    """Inputs with 11 significant bits: NVIDIA's TF32, AMD's XF32."""
    BF16X3 = "bf16x3"
    """Three products of bfloat16 pieces: inputs with about 16 significant bits."""
    BF16 = "bf16"
    """Inputs with 8 significant bits."""
    OTHER = "other"
    """None of these."""
