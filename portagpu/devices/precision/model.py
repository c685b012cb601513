"""The support of each number format on one device: data from facts and the build of torch."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from portagpu.base.errors import Unsupported
from portagpu.devices.precision.formats import FLAVOURS, FP8_NAMES

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from portagpu.facts.targets import Target


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


@dataclass(frozen=True, slots=True)
class Deterministic:
    """Settings with which the same program on the same device repeats its results exactly.

    ``env`` has to be set before the process starts: the vendor's libraries read it once. It is
    returned and never written: ``{**os.environ, **env}`` is for a child process or a launcher.
    """

    env: Mapping[str, str]

    def missing(self, environ: Mapping[str, str] | None = None) -> dict[str, str]:
        """The variables of ``env`` that are missing or different in ``environ`` or here."""
        have = os.environ if environ is None else environ
        return {name: value for name, value in self.env.items() if have.get(name) != value}

    def enable(self) -> None:
        """Set torch's own switches in this process; what has no such implementation then raises.

        They are torch's deterministic algorithms, and no search for the fastest convolution.
        Raises RuntimeError, and sets nothing, where variables are missing.
        """
        import torch

        missing = self.missing()
        if missing:
            wanted = " ".join(f"{name}={value}" for name, value in missing.items())
            raise RuntimeError(f"results would not repeat: start the process with {wanted}")
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = False


@dataclass(frozen=True, slots=True)
class MixedPrecision:
    """The choices of a training loop on one device."""

    autocast: torch.dtype | None
    """The dtype for ``autocast``; None where float32 is the right choice and autocast stays off."""
    scaler: bool
    """Whether gradients need a GradScaler: only in float16, whose exponent has 5 bits."""
    reduce_dtype: torch.dtype
    """The dtype in which ranks sum gradients: float32, because a sum of n bfloat16 numbers loses
    log2(n) of its 8 bits, and no library reduces the FNUZ formats."""
    alignment: int | None
    """The multiple of elements in dimensions of weights and batches that fills the matrix unit's
    tiles; None where unknown."""
    deterministic: Deterministic


def mixed_precision(precision: Precision, dtype: torch.dtype | None = None) -> MixedPrecision:
    """The settings of a training loop on a device with this precision.

    ``dtype`` is bfloat16 or float16 for autocast, or float32 for none. None chooses the first of
    bfloat16, float16 that the device has instructions for, else float32: emulation is slower.
    Raises Unsupported for a dtype that the device does not compute in, and ValueError for one
    that autocast does not take.
    """
    import torch

    halves = (torch.bfloat16, torch.float16)
    if dtype is None:
        native = (each for each in halves if precision.support(each) is Support.NATIVE)
        dtype = next(native, torch.float32)
    if dtype not in (*halves, torch.float32):
        raise ValueError(f"autocast takes bfloat16 or float16, and float32 for none; not {dtype}")
    support = precision.support(dtype)
    if support not in (Support.NATIVE, Support.EMULATED):
        raise Unsupported(f"this device does not compute in {dtype}: its support is {support}")
    return MixedPrecision(
        autocast=None if dtype is torch.float32 else dtype,
        scaler=dtype is torch.float16,
        reduce_dtype=torch.float32,
        alignment=precision.alignment.get(dtype),
        deterministic=Deterministic(precision.deterministic_env),
    )


@dataclass(frozen=True, slots=True)
class Fp8:
    """The pair of fp8 dtypes that runs natively: OCP or FNUZ, never a mixture of both."""

    e4m3: torch.dtype
    e5m2: torch.dtype


@dataclass(frozen=True, slots=True)
class Precision:
    """The support of each dtype on one device.

    ``fp8`` is the flavour with native instructions on this device, or None. The device does not
    compute in a dtype that ``table`` lacks: leave float64, complex numbers or fp8 out where the
    device has none.
    """

    table: Mapping[torch.dtype, Support]
    fp8: Fp8 | None = None
    recipes: frozenset[Recipe] = frozenset()
    """The recipes with native scaled products in torch, in the dtypes of ``fp8``."""
    tf32: Arithmetic = Arithmetic.IEEE
    """The arithmetic of float32 products where "tf32" is requested: IEEE where none is faster."""
    alignment: Mapping[torch.dtype, int] = field(default_factory=lambda: MappingProxyType({}))
    """By dtype: the multiple of elements in a matrix's dimensions that fills the matrix unit's
    tiles. Unknown dtypes, and those that ``table`` lacks, are absent."""
    flushes: frozenset[torch.dtype] = frozenset()
    """The dtypes whose matrix products treat subnormal numbers as zero."""
    deterministic_env: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Environment variables that make the vendor's libraries sum in the same order in each run. The
    libraries read them once."""
    saturates: frozenset[torch.dtype] = frozenset()
    """The integer dtypes whose matrix products are exact only where no element of the second
    operand is beyond half of the range: pairs of products are added in 16 bits, and saturate."""

    def support(self, dtype: torch.dtype) -> Support:
        """The support for ``dtype``; Support.NONE for a dtype that the backend does not list.

        Raises TypeError for a dtype's name.
        """
        if isinstance(dtype, str):
            raise TypeError(f"support is of a torch.dtype, not of {dtype!r}")
        return self.table.get(dtype, Support.NONE)

    def training(self, dtype: torch.dtype | None = None) -> MixedPrecision:
        """The settings of a training loop; see :func:`mixed_precision`."""
        return mixed_precision(self, dtype)


def precision_from_facts(
    target: Target | None, deterministic_env: Mapping[str, str] = MappingProxyType({})
) -> Precision:
    """The support of each dtype on a GPU, from the facts of its target or architecture.

    Without a fact a 16-bit format is emulated, and fp8 is storage: torch computes in and stores
    them everywhere. Imports torch.

    :param target: the facts; None where there are none.
    :param deterministic_env: variables that results need to be the same in each run, with their
        values.
    """
    import torch

    deterministic_env = MappingProxyType(dict(deterministic_env))
    pairs = {
        "ocp": Fp8(torch.float8_e4m3fn, torch.float8_e5m2),
        "fnuz": Fp8(torch.float8_e4m3fnuz, torch.float8_e5m2fnuz),
    }
    halves = {"fp16": torch.float16, "bf16": torch.bfloat16}
    pair = None
    if target is not None and _has_arithmetic(target, "fp8"):
        pair = pairs.get(target.value("matrix.fp8_flavour"))
    native = (pair.e4m3, pair.e5m2) if pair is not None else ()
    table = dict.fromkeys((getattr(torch, name) for name in EVERYWHERE), Support.NATIVE)
    for name, dtype in halves.items():
        stated = target is not None and _has_arithmetic(target, name)
        table[dtype] = Support.NATIVE if stated else Support.EMULATED
    for each in pairs.values():
        for dtype in (each.e4m3, each.e5m2):
            table[dtype] = Support.NATIVE if dtype in native else Support.STORAGE
    if target is None:
        return Precision(MappingProxyType(table), deterministic_env=deterministic_env)
    flushes = target.value("matrix.flushes_subnormals") or ()
    return Precision(
        MappingProxyType(table),
        pair,
        recipes=frozenset(Recipe(each) for each in target.value("matrix.scaled_recipes") or ()),
        tf32=_tf32(target),
        alignment=_alignment(target, halves if pair is None else {**halves, "fp8": pair.e4m3}),
        flushes=frozenset(halves[each] for each in flushes if each in halves),
        deterministic_env=deterministic_env,
    )


def _tf32(target: Target) -> Arithmetic:
    """The arithmetic for TF32 in torch: the matrix unit's own, or its library's emulation."""
    if {"tf32", "xf32"} & set(target.value("matrix.dtypes") or ()):
        return Arithmetic.TF32
    return Arithmetic(target.value("matrix.tf32_emulation") or Arithmetic.IEEE)


def _alignment(target: Target, named: Mapping[str, torch.dtype]) -> Mapping[torch.dtype, int]:
    """The longest side of one matrix instruction, by dtype."""
    tiles = {dtype: target.value(f"matrix.tile.{name}") for name, dtype in named.items()}
    return MappingProxyType(
        {dtype: max(map(int, tile.split("x"))) for dtype, tile in tiles.items() if tile}
    )


def _has_arithmetic(target: Target, dtype: str) -> bool:
    """Whether facts state arithmetic in ``dtype`` for the matrix or vector unit."""
    if dtype in (target.value("matrix.dtypes") or ()) or target.peak(dtype) is not None:
        return True
    return target.fact(f"vector.rate.{dtype}") is not None


_RUNS: Final = (Support.NATIVE, Support.EMULATED)
_REFUSED: Final = (RuntimeError, TypeError, ValueError, NotImplementedError)
"""torch's exceptions for a dtype that an operation does not support: ``TORCH_CHECK_VALUE`` in
aten/src/ATen/native/cuda/ScaledBlas.cpp is a ValueError."""


@dataclass(frozen=True, slots=True)
class DtypeSupport:
    """The stated support of a dtype on a device, and the result of a probe.

    Running shows whether there are tensors and whether there is arithmetic. It does not distinguish
    native instructions from emulation: where arithmetic ran as stated, ``found`` is ``stated``.
    """

    dtype: torch.dtype
    stated: Support
    found: Support | None = None
    """None without a probe."""
    reason: str = ""
    """torch's message where it refused."""

    @property
    def disagreement(self) -> str:
        """One sentence where the probe differs from the stated support; empty where it does not.

        A device on which it was not run does not disagree.
        """
        if self.found in (None, self.stated):
            return ""
        said = f" ({self.reason})" if self.reason else ""
        return f"{self.dtype} is stated as {self.stated} and ran as {self.found}{said}"


def dtype_support(
    precision: Precision, dtype: torch.dtype, device: torch.device, *, probe: bool = False
) -> DtypeSupport:
    """The support of ``dtype`` on ``device``; ``probe`` runs it there and waits for the result."""
    stated = precision.support(dtype)
    if not probe:
        return DtypeSupport(dtype, stated)
    reason = ""
    found = Support.NONE
    try:
        _store(dtype, device)
        found = Support.STORAGE
        _compute(dtype, device, paired=stated is Support.NATIVE)
        found = stated if stated in _RUNS else Support.EMULATED
    except _REFUSED as error:
        reason = str(error).partition("\n")[0]
    return DtypeSupport(dtype, stated, found, reason)


def _store(dtype: torch.dtype, device: torch.device) -> None:
    """Copy ones to the device and back; raise if they changed."""
    import torch

    ones = torch.ones(16, 16, device=device).to(dtype)
    if not bool((ones.real.to(torch.float32) == 1).all()):
        raise RuntimeError("ones came back as something else")


def _compute(dtype: torch.dtype, device: torch.device, *, paired: bool) -> None:
    """A product of ones: scaled for fp8, of matrices for floats, else element by element.

    ``paired``, an fp8 dtype meets the e4m3 of its flavour: cuBLASLt multiplies no two matrices of
    e5m2 (ScaledBlas.cpp, "Multiplication of two Float8_e5m2 matrices is not supported").
    """
    import torch

    ones = torch.ones(16, 16, device=device).to(dtype)
    name = str(dtype).removeprefix("torch.")
    if name in FP8_NAMES:
        one = torch.ones((), device=device)
        e4m3 = next(pair[0] for pair in FLAVOURS.values() if name in pair)
        other = torch.ones(16, 16, device=device).to(getattr(torch, e4m3 if paired else name)).t()
        result = torch._scaled_mm(ones, other, one, one, out_dtype=torch.bfloat16)
        expected = 16
    elif dtype.is_floating_point:
        result, expected = ones @ ones, 16
    else:
        result, expected = ones * ones, 1
    if not bool((result.real.to(torch.float32) == expected).all()):
        raise RuntimeError(f"a product of ones is not {expected}")
