"""What a hardware target is: plain values, all frozen, with their sources.

Import these names from :mod:`portagpu.facts.targets`.
"""

from __future__ import annotations

import datetime  # noqa: TC003 - documents read the types of fields
import math
import re
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from portagpu.facts.arch import Arch

OPERANDS: Final = ("real", "whole")
"""Real numbers, whose bits are all in use; a few small whole numbers, which take less power."""
CONTIGUOUS: Final = ("kk", "kn", "mk", "mn")
"""The index along which A (m, k) and along which B (k, n) is contiguous: "kn" is row by row."""

FactValue = bool | int | float | str | tuple[int, ...] | tuple[str, ...]


class Confidence(StrEnum):
    """The kind of evidence for a fact."""

    TOOLCHAIN = "toolchain"
    """A vendor's compiler or library was executed and gave it."""
    VENDOR_SOURCE = "vendor-source"
    """Read in the vendor's or upstream's code or documentation."""
    DEVICE_REPORTED = "device-reported"
    """Printed by a device."""
    SECONDARY = "secondary"
    """Published by a third party."""
    DERIVED = "derived"
    """Computed from sourced inputs; the note says how."""
    UNVERIFIED = "unverified"
    """Not confirmed by any source: never judge by it."""


class Scope(StrEnum):
    """What a target or a fact describes: one product, or every member of an architecture."""

    PRODUCT = "product"
    FAMILY = "family"


class Authority(StrEnum):
    """Who states an expectation. A third party's is a hint and never a failure."""

    VENDOR = "vendor"
    OWN = "own"
    THIRD_PARTY = "third-party"


@dataclass(frozen=True, slots=True)
class Fact:
    """One property of the hardware: ``value`` in ``unit`` (None: a bare number, flag or text).

    ``source`` holds ids of ``matrix/targets/sources.toml``. ``scope`` says whether the product or
    its family states the fact.
    """

    key: str
    value: FactValue
    unit: str | None
    source: tuple[str, ...]
    confidence: Confidence
    note: str
    scope: Scope


@dataclass(frozen=True, slots=True)
class Peak:
    """A theoretical rate: ``value`` in ``unit`` ("TFLOPS" or "TOPS", 1e12 operations a second).

    ``sparse`` rates assume 2:4 structured sparsity; ``matrix`` distinguishes the matrix unit's rate
    from the vector unit's.
    """

    value: float
    unit: str
    dtype: str
    sparse: bool
    matrix: bool
    source: tuple[str, ...]
    confidence: Confidence

    @property
    def per_second(self) -> float:
        """Operations a second."""
        return self.value * 1e12


@dataclass(frozen=True, slots=True)
class BoundsCheck:
    """Where a measured value lies; ``low`` and ``high`` are absolute, None where unbounded."""

    inside: bool
    side: str
    """"inside", "below", "above", or "not a number"."""
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """What a measure should give here, in ReFrame's form (reference, lower, upper, unit).

    ``lower`` and ``upper`` are fractions of ``reference`` (-0.1, 0.3), None where unbounded; the
    interval includes its ends. ``limit`` is the most that this algorithm can reach on this target,
    in ``unit``, by the formula named in ``limit_rule``.
    """

    metric: str
    reference: float
    lower: float | None
    upper: float | None
    unit: str
    statistic: str
    shape: str
    algorithm: str
    ranks: int | None
    size_bytes: int | None
    software: tuple[tuple[str, str], ...]
    """(component, version specifier): what the reference was obtained with; empty if not stated."""
    source: tuple[str, ...]
    authority: Authority
    note: str
    limit: float
    limit_rule: str
    dtype: str | None = None
    """The element type, where the metric does not name it; None where the source does not say."""
    operands: str | None = None
    """One of ``OPERANDS``: what a product multiplied; None where any will do or nothing is said."""
    contiguous: str | None = None
    """One of ``CONTIGUOUS``: how a product's operands lie in memory; None as ``operands``."""
    dated: datetime.date | None = None
    """The day of its newest source; None where no source has one."""

    @property
    def low(self) -> float | None:
        """The least value that is inside, in ``unit``."""
        return None if self.lower is None else self.reference * (1 + self.lower)

    @property
    def high(self) -> float | None:
        """The greatest value that is inside, in ``unit``."""
        return None if self.upper is None else self.reference * (1 + self.upper)

    def judge(self, value: float) -> BoundsCheck:
        """Whether ``value``, in ``unit``, is inside; what is not finite never is."""
        side = "inside"
        if not math.isfinite(value):
            side = "not a number"
        elif self.low is not None and value < self.low:
            side = "below"
        elif self.high is not None and value > self.high:
            side = "above"
        return BoundsCheck(side == "inside", side, self.low, self.high)


@dataclass(frozen=True, slots=True)
class ExpectedFailure:
    """Cases that are known to fail here until ``expires``; ``url`` is the report of it.

    ``case_id_pattern`` is a shell pattern (``fnmatch``) over case ids.
    """

    case_id_pattern: str
    reason: str
    url: str
    expires: datetime.date

    def expired(self, today: datetime.date) -> bool:
        """Whether the failure counts again: the day of expiry is the last that excuses it."""
        return today > self.expires


@dataclass(frozen=True, slots=True)
class Match:
    """How a device is recognised as this product.

    ``names`` are normalised product names, compared for equality. ``name`` is the first of them as
    the file writes it. Another product prints the names in ``shared`` too, so that only its units
    identify it; ``shared_name`` is the first of those as the file writes it. ``memory_bytes`` and
    ``unit_count`` are inclusive ranges. A device outside them is something else: a partition, a
    slice, or another product of the same name. ``pci_ids`` are PCI device ids of this product
    alone: "74a1", or "744c:c8" with a revision.
    """

    names: frozenset[str] = frozenset()
    name: str | None = None
    shared: frozenset[str] = frozenset()
    shared_name: str | None = None
    any_product: bool = False
    memory_bytes: tuple[int, int] | None = None
    unit_count: tuple[int, int] | None = None
    source: tuple[str, ...] = ()
    """Where devices printed one of the names; empty: they are the vendor's spelling."""
    pci_ids: frozenset[str] = frozenset()
    pci_source: tuple[str, ...] = ()


def normalise(name: str) -> str:
    """A product name without case and punctuation: "Instinct(TM) MI300X" -> "instinct mi300x"."""
    bare = re.sub(r"\((tm|r|c)\)|[™®©]", " ", name.lower())
    return " ".join(re.findall(r"[a-z0-9]+", bare))


DTYPE_BITS: Final[Mapping[str, int]] = MappingProxyType(
    {
        "fp64": 64,
        "fp32": 32,
        "tf32": 32,
        "xf32": 32,
        "fp16": 16,
        "fp16_acc16": 16,
        "bf16": 16,
        "fp8": 8,
        "fp8_acc16": 8,
        "fp6": 6,
        "fp4": 4,
        "int8": 8,
        "int4": 4,
    }
)
"""Element types in which a peak is stated, with their width in bits. tf32 and xf32 are 32 bits in
memory; ``_acc16`` marks the rate with 16-bit accumulation where it differs."""

_DTYPE_ALIASES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "float64": "fp64",
        "double": "fp64",
        "float32": "fp32",
        "float": "fp32",
        "float16": "fp16",
        "half": "fp16",
        "bfloat16": "bf16",
        "float8_e4m3fn": "fp8",
        "float8_e5m2": "fp8",
        "float8_e4m3fnuz": "fp8",
        "float8_e5m2fnuz": "fp8",
        "float4_e2m1fn_x2": "fp4",
        "i8": "int8",
    }
)


def dtype_name(dtype: object) -> str | None:
    """The name of ``dtype`` in the keys of peaks ("bf16"), or None when there is none.

    ``dtype`` is a ``torch.dtype`` or a name: ``torch.bfloat16``, "bfloat16" and "bf16" are one.
    """
    name = str(dtype).removeprefix("torch.").lower()
    name = _DTYPE_ALIASES.get(name, name)
    return name if name in DTYPE_BITS else None


def fp8_flavour(dtype: object) -> str | None:
    """ "fnuz" or "ocp" for a torch fp8 dtype, None for every other dtype and for plain "fp8"."""
    name = str(dtype).removeprefix("torch.").lower()
    if not name.startswith("float8_"):
        return None
    return "fnuz" if name.endswith("fnuz") else "ocp"


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Target:
    """One kind of hardware: sourced facts, expectations and claimed capabilities.

    Of scope "family" it is an architecture whose product is unknown: what every member shares, and
    no peaks, memory or expectations. Targets are made once and compare by identity.
    """

    id: str
    vendor: str
    product: str | None
    arch: Arch
    scope: Scope
    facts: Mapping[str, Fact]
    claims: tuple[str, ...] = ()
    """Ids of the capabilities that software on this hardware is held to."""
    expected_failures: tuple[ExpectedFailure, ...] = ()
    all_expectations: tuple[Expectation, ...] = ()
    match: Match = field(default_factory=Match)

    def fact(self, key: str) -> Fact | None:
        """The fact of that key ("exec.unit_count"), or None when it is not known."""
        return self.facts.get(key)

    def value(self, key: str) -> Any:
        """The value of the fact of that key, or None when it is not known."""
        fact = self.facts.get(key)
        return None if fact is None else fact.value

    def expectations(self, metric: str) -> tuple[Expectation, ...]:
        """What is expected of ``metric`` ("gemm/bf16"); empty when nothing is."""
        return tuple(each for each in self.all_expectations if each.metric == metric)

    def peak(
        self, dtype: object, sparse: bool = False, *, matrix: bool | None = None
    ) -> Peak | None:
        """The theoretical rate in a dtype, or None when it is not known.

        A torch fp8 dtype of the flavour that this hardware does not run is not known here.

        :param dtype: a ``torch.dtype`` or a name ("bf16").
        :param sparse: whether the rate is that with structured sparsity.
        :param matrix: the matrix unit or the vector unit; None takes the faster.
        :returns: the rate with its unit and source.
        """
        name = dtype_name(dtype)
        flavour = fp8_flavour(dtype)
        if name is None or flavour not in (None, self.value("matrix.fp8_flavour")):
            return None
        units = (True, False) if matrix is None else (matrix,)
        found = [peak for unit in units if (peak := self._peak(name, sparse, unit)) is not None]
        return max(found, key=lambda peak: peak.value, default=None)

    def _peak(self, dtype: str, sparse: bool, matrix: bool) -> Peak | None:
        fact = self.facts.get(peak_key(dtype, sparse=sparse, matrix=matrix))
        if fact is None or fact.unit is None or not isinstance(fact.value, int | float):
            return None
        return Peak(
            float(fact.value), fact.unit, dtype, sparse, matrix, fact.source, fact.confidence
        )


@cache
def peak_key(dtype: str, *, sparse: bool, matrix: bool) -> str:
    """The key of a peak: ``peak.dense.matrix.bf16``.

    :param dtype: a name that :func:`dtype_name` returns.
    :param sparse: whether the rate is that with structured sparsity.
    :param matrix: whether it is the matrix unit's, or the vector unit's.
    """
    return f"peak.{'sparse' if sparse else 'dense'}.{'matrix' if matrix else 'vector'}.{dtype}"
