"""What vector units do: arithmetic element by element on integers times powers of two, and sums,
means, norms and extremes of rows, exact in any order.

One addition, product or comparison of two numbers is rounded once, in the same way on every device
(IEEE 754), so full mantissas are judged too; ``x y + z`` is exact, because it may be fused or not.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from portagpu.devices.precision import Support
from portagpu.train.exact.judge import (
    EXPONENTS,
    SIGNIFICANT_BITS,
    check_subset,
    powers_of_two,
    with_negative_zeros,
)
from portagpu.train.exact.probe import Expected, Probe

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
        """The integers in the dtype, rounded at most once; zeros of odd rows are negative."""
        import torch

        wide = torch.float64 if self.dtype == "float64" else torch.float32
        return with_negative_zeros(integers.to(wide)).to(self.kind)


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


VECTOR_PROBES: Final = tuple(
    Probe(f"vectors/{dtype}[{name}]", dtype, partial(_make, name, dtype), partial(lacks, dtype))
    for dtype in _DTYPES
    for name in _OPERATIONS
)


_SUM_ROWS: Final = 128
_SUM_COLUMNS: Final = 1024
_ROOT: Final = 32
"""A row of ``_ROOT**2`` numbers v and -v has the norm ``_ROOT * v``."""
_SPARSE: Final = 8
"""Of as many terms one is kept where a sum of ones would have too many bits."""


def _terms(dtype: str, draws: Draws, rows: int) -> torch.Tensor:
    """Integers of which no partial sum of a row leaves the dtype, int64."""
    # results of 16 bits are rounded, and some kernels round partial sums too
    bits = SIGNIFICANT_BITS[dtype]
    largest = max((1 << min(bits, 40)) // _SUM_COLUMNS, 1)
    terms = draws.integers("terms", (rows, _SUM_COLUMNS), -largest, largest)
    if largest * _SUM_COLUMNS > 1 << bits:
        terms = terms * (draws.integers("kept", (rows, _SUM_COLUMNS), 1, _SPARSE) == 1)
    check_subset(float(terms.abs().sum(1).max()), bits, f"a sum in {dtype}")
    return terms


def _sum(dtype: str, kind: torch.dtype, draws: Draws, rows: int) -> _Made:
    terms = _terms(dtype, draws, rows)
    values = terms.to(kind)
    return (lambda: values.sum(1)), terms.sum(1).to(kind)


def _mean(dtype: str, kind: torch.dtype, draws: Draws, rows: int) -> _Made:
    import torch

    terms = _terms(dtype, draws, rows)
    values = terms.to(kind)
    wide = torch.float64 if dtype == "float64" else torch.float32
    # a power of two divides exactly
    expected = (terms.sum(1).to(wide) / _SUM_COLUMNS).to(kind)
    return (lambda: values.mean(1)), expected


def _norm(dtype: str, kind: torch.dtype, draws: Draws, rows: int) -> _Made:
    import torch

    # squares are summed: of 1,024 of them each has to have few bits
    bits = min((SIGNIFICANT_BITS[dtype] if dtype in ("float64", "float32") else 24) - 10, 26) // 2
    bits = min(bits, SIGNIFICANT_BITS[dtype] - 5)
    sizes = draws.integers("sizes", (rows, 1), 1, (1 << bits) - 1)
    signs = (draws.bits("signs", (rows, _ROOT * _ROOT)) >> 63) | 1
    values = (sizes * signs).to(kind)
    expected = (sizes[:, 0] * _ROOT).to(kind)
    return (lambda: torch.linalg.vector_norm(values, dim=1)), expected


def _largest(dtype: str, kind: torch.dtype, draws: Draws, rows: int) -> _Made:
    top = (1 << min(SIGNIFICANT_BITS[dtype], 40)) - 1
    terms = draws.integers("terms", (rows, _SUM_COLUMNS), -min(top, 1 << 20), min(top, 1 << 20))
    values = terms.to(kind)
    return (lambda: values.amax(1)), terms.amax(1).to(kind)


_REDUCTIONS: Final = {"sum": _sum, "mean": _mean, "vector_norm": _norm, "amax": _largest}


def _make_reduction(name: str, dtype: str, gpu: Backend, draws: Draws, scale: int) -> Work:
    import torch

    rows = _SUM_ROWS * scale
    compute, expected = _REDUCTIONS[name](dtype, getattr(torch, dtype), draws, rows)
    return Expected(compute, expected, rows * _SUM_COLUMNS)


REDUCTION_PROBES: Final = tuple(
    Probe(
        f"reductions/{dtype}[{name}]",
        dtype,
        partial(_make_reduction, name, dtype),
        partial(lacks, dtype),
    )
    for dtype in _DTYPES
    for name in _REDUCTIONS
)
