"""Arithmetic element by element, which vector units do: integers times powers of two.

One addition, product or comparison of two numbers is rounded once, in the same way on every device
(IEEE 754), so full mantissas are judged too; ``x y + z`` is exact, because it may be fused or not.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from portagpu.devices.precision import Support
from portagpu.train.exact.probe import Expected, Probe
from portagpu.train.exact.rule import EXPONENTS, SIGNIFICANT_BITS, powers_of_two

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from portagpu.devices.contract import Backend
    from portagpu.train.exact.draws import Draws
    from portagpu.train.exact.probe import Work

_ROWS: Final = 256
"""Times ``scale``; each has a magnitude of its own."""
_COLUMNS: Final = 256
_DTYPES: Final = ("float64", "float32", "bfloat16", "float16")
_MAX_EXPONENT: Final = 30
"""Of a row's power of two in wide formats; sixteen bits with five of exponent have fewer."""
_FACTOR_BITS: Final = 11
"""Of the second factor: with 52 bits of the first the product fits int64."""


def lacks(dtype: str, gpu: Backend) -> str:
    """Why a device does not compute in a dtype; empty where it does."""
    import torch

    support = gpu.precision.table.get(getattr(torch, dtype), Support.NONE)
    if support in (Support.NATIVE, Support.EMULATED):
        return ""
    return f"the {gpu.name} backend does not compute in {dtype}"


_Made = tuple["Callable[[], torch.Tensor]", "torch.Tensor"]


class _Operands:
    """Integers of up to ``bits`` bits and a sign, and the power of two of each row."""

    def __init__(self, dtype: str, draws: Draws, scale: int, bits: int) -> None:
        import torch

        self.kind: torch.dtype = getattr(torch, dtype)
        self.dtype, self._draws = dtype, draws
        self.shape = (_ROWS * scale, _COLUMNS)
        # a product has twice the bits, and has to stay in the normal range
        room = min(_MAX_EXPONENT, EXPONENTS[dtype][1] - 2 * bits)
        exponents = draws.integers("exponents", (self.shape[0], 1), -max(room, 0), max(room, 0))
        self.powers = powers_of_two(exponents, dtype)

    def integers(self, name: str, bits: int) -> torch.Tensor:
        """Integers below 2**bits in magnitude, int64."""
        found = self._draws.bits(name, self.shape)
        return (found >> 63 | 1) * (found & ((1 << bits) - 1))

    def scaled(self, integers: torch.Tensor) -> torch.Tensor:
        """The integers times the rows' powers of two, rounded to the dtype at most once."""
        return self.unscaled(integers) * self.powers.to(self.kind)

    def unscaled(self, integers: torch.Tensor) -> torch.Tensor:
        """The integers in the dtype, rounded at most once."""
        import torch

        wide = torch.float64 if self.dtype == "float64" else torch.float32
        return integers.to(wide).to(self.kind)


def _add(operands: _Operands, bits: int) -> _Made:
    a, b = operands.integers("a", bits), operands.integers("b", bits)
    left, right = operands.scaled(a), operands.scaled(b)
    return (lambda: left + right), operands.scaled(a + b)


def _multiply(operands: _Operands, bits: int) -> _Made:
    narrow = min(bits, _FACTOR_BITS)
    a, b = operands.integers("a", min(bits, 52)), operands.integers("b", narrow)
    left, right = operands.scaled(a), operands.unscaled(b)
    # half of the rows have the wide factor on the right
    half = operands.shape[0] // 2
    import torch

    first = torch.cat([left[:half], right[half:]])
    second = torch.cat([right[:half], left[half:]])
    return (lambda: first * second), operands.scaled(a * b)


def _multiply_and_add(operands: _Operands, bits: int) -> _Made:
    import torch

    half = (bits - 1) // 2
    a, b = operands.integers("a", half), operands.integers("b", half)
    c = operands.integers("c", bits - 2)
    left, right, added = operands.scaled(a), operands.unscaled(b), operands.scaled(c)
    return (lambda: torch.addcmul(added, left, right)), operands.scaled(a * b + c)


def _compare(name: str, operands: _Operands, bits: int) -> _Made:
    import torch

    function = getattr(torch, name)
    a, b = operands.integers("a", bits), operands.integers("b", bits)
    # a quarter of them are equal
    b = torch.where(operands.integers("equal", 2) == 0, a, b)
    left, right = operands.scaled(a), operands.scaled(b)
    expected = function(a, b)
    return (lambda: function(left, right)), (
        expected if expected.dtype is torch.bool else operands.scaled(expected)
    )


_OPERATIONS: Final[dict[str, Callable[[_Operands, int], _Made]]] = {
    "add": _add,
    "mul": _multiply,
    "addcmul": _multiply_and_add,
    "lt": partial(_compare, "lt"),
    "minimum": partial(_compare, "minimum"),
    "maximum": partial(_compare, "maximum"),
}
"""By torch's name of the function."""


def _make(name: str, dtype: str, gpu: Backend, draws: Draws, scale: int) -> Work:
    bits = SIGNIFICANT_BITS[dtype]
    operands = _Operands(dtype, draws, scale, bits)
    compute, expected = _OPERATIONS[name](operands, bits)
    return Expected(compute, expected, 2 * expected.numel())


PROBES: Final = tuple(
    Probe(f"vectors/{dtype}[{name}]", dtype, partial(_make, name, dtype), partial(lacks, dtype))
    for dtype in _DTYPES
    for name in _OPERATIONS
)
