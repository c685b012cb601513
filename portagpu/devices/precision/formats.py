"""Exact number formats, defined by exponent bits, mantissa bits, bias and kind.

Sources: IEEE 754-2019 (float64, float32, float16); OCP 8-bit floating point specification 1.0
(float8_e4m3fn, float8_e5m2); stablehlo RFC 20230321 (the FNUZ formats); OCP microscaling formats
specification 1.0 (float8_e8m0fnu, float6, float4); NVIDIA's A100 whitepaper (tf32: 8 bits of
exponent and 10 of mantissa); AMD's CDNA3 instruction set (xf32: the same). Names are torch's, and
those of ml_dtypes where torch has none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping


class Kind(StrEnum):
    """The meaning of a format's highest and lowest codes."""

    IEEE = "ieee"
    """The top exponent is infinity and NaN."""
    FN = "fn"
    """No infinity; NaN is the code with all exponent and mantissa bits set, in both signs."""
    FNUZ = "fnuz"
    """No infinity and no minus zero; the code of minus zero is the only NaN."""
    FINITE = "finite"
    """Neither infinity nor NaN."""
    SCALE = "scale"
    """A power of two without sign and zero; NaN is the code with all bits set."""
    INTEGER = "integer"
    """Two's complement."""


@dataclass(frozen=True, slots=True)
class Format:
    """One number format. ``bits`` are those that carry information; a code has as many.

    ``storage_bits`` is what an element takes in memory: 32 for tf32 and xf32, which are float32 in
    memory and lose 13 bits of mantissa when a matrix unit reads them.
    """

    name: str
    exponent_bits: int
    mantissa_bits: int
    bias: int
    kind: Kind
    storage_bits: int

    @property
    def bits(self) -> int:
        """Bits of a code: the sign where there is one, exponent and mantissa."""
        return self.exponent_bits + self.mantissa_bits + (self.kind is not Kind.SCALE)

    @property
    def max(self) -> float:
        """The largest finite value."""
        return self.decode(self._largest)

    @property
    def min(self) -> float:
        """The smallest finite value: ``-max``, but 2^-bias for a scale and -128 for int8."""
        if self.kind is Kind.SCALE:
            return self.decode(0)
        return -self.max - (self.kind is Kind.INTEGER)

    @property
    def min_normal(self) -> float:
        """The smallest positive value with a full mantissa."""
        if self.kind is Kind.INTEGER:
            return 1.0
        return math.ldexp(1.0, (0 if self.kind is Kind.SCALE else 1) - self.bias)

    @property
    def min_subnormal(self) -> float | None:
        """The smallest positive value; None where there are no subnormal values."""
        if self.kind in (Kind.SCALE, Kind.INTEGER):
            return None
        return math.ldexp(1.0, 1 - self.bias - self.mantissa_bits)

    @property
    def eps(self) -> float:
        """The distance from 1 to the next larger value."""
        return math.ldexp(1.0, -self.mantissa_bits) if self.kind is not Kind.INTEGER else 1.0

    @property
    def has_minus_zero(self) -> bool:
        """Whether zero has a sign."""
        return self.kind in (Kind.IEEE, Kind.FN, Kind.FINITE)

    @property
    def infinity_codes(self) -> tuple[int, ...]:
        """The codes of plus and minus infinity; empty where there are none."""
        if self.kind is not Kind.IEEE:
            return ()
        plus = self._exponent_mask << self.mantissa_bits
        return plus, self._sign | plus

    @property
    def nan_codes(self) -> tuple[range, ...]:
        """The codes of NaN as ranges, plus before minus; empty where there are none."""
        if self.kind is Kind.IEEE:
            return tuple(
                range(code + 1, (code | self._mantissa_mask) + 1) for code in self.infinity_codes
            )
        if self.kind is Kind.FN:
            return tuple(range(code, code + 1) for code in (self._sign - 1, 2 * self._sign - 1))
        if self.kind is Kind.FNUZ:
            return (range(self._sign, self._sign + 1),)
        return (range(255, 256),) if self.kind is Kind.SCALE else ()

    def decode(self, code: int) -> float:
        """The value of ``code``, exactly. Raises ValueError for a code that has too many bits."""
        if not 0 <= code < 1 << self.bits:
            raise ValueError(f"{self.name} has codes of {self.bits} bits; {code} is not one")
        if self.kind is Kind.INTEGER:
            return float(code - (code & self._sign) * 2)
        if code in self.infinity_codes:
            return -math.inf if code & self._sign else math.inf
        if any(code in codes for codes in self.nan_codes):
            return math.nan
        if self.kind is Kind.SCALE:
            return math.ldexp(1.0, code - self.bias)
        exponent = (code >> self.mantissa_bits) & self._exponent_mask
        mantissa = code & self._mantissa_mask
        if exponent:
            mantissa += 1 << self.mantissa_bits
        value = math.ldexp(mantissa, max(exponent, 1) - self.bias - self.mantissa_bits)
        return -value if code & self._sign else value

    @property
    def _sign(self) -> int:
        return 1 << (self.bits - 1)

    @property
    def _exponent_mask(self) -> int:
        return (1 << self.exponent_bits) - 1

    @property
    def _mantissa_mask(self) -> int:
        return (1 << self.mantissa_bits) - 1

    @property
    def _largest(self) -> int:
        if self.kind is Kind.IEEE:
            return self.infinity_codes[0] - 1
        if self.kind is Kind.SCALE:
            return 254
        return self._sign - (2 if self.kind is Kind.FN else 1)


FORMATS: Final[Mapping[str, Format]] = MappingProxyType(
    {
        each.name: each
        for each in (
            Format("float64", 11, 52, 1023, Kind.IEEE, 64),
            Format("float32", 8, 23, 127, Kind.IEEE, 32),
            Format("tf32", 8, 10, 127, Kind.IEEE, 32),
            Format("xf32", 8, 10, 127, Kind.IEEE, 32),
            Format("bfloat16", 8, 7, 127, Kind.IEEE, 16),
            Format("float16", 5, 10, 15, Kind.IEEE, 16),
            Format("float8_e4m3fn", 4, 3, 7, Kind.FN, 8),
            Format("float8_e5m2", 5, 2, 15, Kind.IEEE, 8),
            Format("float8_e4m3fnuz", 4, 3, 8, Kind.FNUZ, 8),
            Format("float8_e5m2fnuz", 5, 2, 16, Kind.FNUZ, 8),
            Format("float8_e8m0fnu", 8, 0, 127, Kind.SCALE, 8),
            Format("float6_e2m3fn", 2, 3, 1, Kind.FINITE, 6),
            Format("float6_e3m2fn", 3, 2, 3, Kind.FINITE, 6),
            Format("float4_e2m1fn", 2, 1, 1, Kind.FINITE, 4),
            Format("int8", 0, 7, 0, Kind.INTEGER, 8),
        )
    }
)
"""Every format by name, widest first."""

FLAVOURS: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        "ocp": ("float8_e4m3fn", "float8_e5m2"),
        "fnuz": ("float8_e4m3fnuz", "float8_e5m2fnuz"),
    }
)
"""The fp8 formats of arithmetic by flavour: e4m3, then e5m2."""

FP8_NAMES: Final = (*FLAVOURS["ocp"], *FLAVOURS["fnuz"])

_ALIASES: Final = MappingProxyType({"float4_e2m1fn_x2": "float4_e2m1fn"})
"""torch's dtype with two 4-bit numbers in a byte has the format of one number."""


def format_of(dtype: object) -> Format:
    """The format of a ``torch.dtype``, or of that name. Raises ValueError where none is known."""
    name = str(dtype).removeprefix("torch.")
    found = FORMATS.get(_ALIASES.get(name, name))
    if found is None:
        raise ValueError(f"no number format is called {name}; there are {', '.join(FORMATS)}")
    return found
