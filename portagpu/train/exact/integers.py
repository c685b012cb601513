"""Integers and indices: what is expected follows from how the operands are made.

``n -> factor n + offset`` modulo a power of two, with an odd factor, is a permutation whose inverse
is known. So a scattered, gathered or sorted result has a closed form, and no other kernel is asked.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from portagpu.train.exact.probe import Expected, Probe

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from portagpu.devices.contract import Backend
    from portagpu.train.exact.draws import Draws
    from portagpu.train.exact.probe import Work

_COUNT_BITS: Final = 16
_BIN_BITS: Final = 10
_DIVISOR_BITS: Final = 12


@dataclass(frozen=True, slots=True)
class _Operands:
    """A permutation of ``count`` numbers, a power of two, and random integers."""

    draws: Draws
    kind: torch.dtype
    count: int
    bits: int
    """Of the integers of ``kind``, without the sign."""

    def range(self) -> torch.Tensor:
        """0, 1, 2, ..., int64."""
        import torch

        return torch.arange(self.count, dtype=torch.int64, device=self.draws.device)

    def factor(self) -> int:
        """The odd factor of the permutation."""
        return int(self.draws.odd("factor", (1,))) % self.count

    def permutation(self) -> torch.Tensor:
        """Each number below ``count`` once, int64."""
        return self.forward(self.range())

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        """Where the permutation sends numbers."""
        return (numbers * self.factor() + self.offset()) & (self.count - 1)

    def inverse(self, numbers: torch.Tensor) -> torch.Tensor:
        """Where the permutation has numbers from."""
        back = pow(self.factor(), -1, self.count)
        return ((numbers - self.offset()) * back) & (self.count - 1)

    def offset(self) -> int:
        """What is added."""
        return int(self.draws.integers("offset", (1,), 0, self.count - 1))

    def values(self, name: str, bits: int) -> torch.Tensor:
        """Integers below 2**bits and not negative, of ``kind``."""
        return (self.draws.bits(name, (self.count,)) & ((1 << bits) - 1)).to(self.kind)


_Made = tuple["Callable[[], torch.Tensor]", "torch.Tensor"]


def _divided(of: _Operands) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Quotient, divisor and remainder, and what has them."""
    divisor = of.values("divisor", _DIVISOR_BITS) + 1
    quotient = of.values("quotient", of.bits - _DIVISOR_BITS - 2)
    # signs: torch's // and % round towards minus infinity
    quotient = quotient - (1 << (of.bits - _DIVISOR_BITS - 3))
    remainder = of.values("remainder", of.bits - 1) % divisor
    return quotient, divisor, remainder, quotient * divisor + remainder


def _remainder(of: _Operands) -> _Made:
    _, divisor, remainder, value = _divided(of)
    return (lambda: value % divisor), remainder


def _quotient(of: _Operands) -> _Made:
    quotient, divisor, _, value = _divided(of)
    return (lambda: value // divisor), quotient


def _shift(of: _Operands) -> _Made:
    import torch

    distance = of.values("distance", 3) + 1
    high, low = of.values("high", of.bits - 10), of.values("low", 1)
    value = high * (2**distance) + low.clamp(max=1)
    # to the left and back again drops nothing, to the right drops what is below
    return (lambda: torch.cat([value >> distance, high << distance])), torch.cat(
        [high, high * (2**distance)]
    )


def _scatter(of: _Operands) -> _Made:
    import torch

    index, source = of.permutation(), of.values("source", of.bits)
    empty = torch.zeros_like(source)
    return (lambda: empty.scatter(0, index, source)), source[of.inverse(of.range())]


def _gather(of: _Operands) -> _Made:
    import torch

    source = (of.range() * 3 + 1).to(of.kind)
    index = of.permutation()
    return (lambda: torch.gather(source, 0, index)), (index * 3 + 1).to(of.kind)


def _bins(of: _Operands) -> tuple[torch.Tensor, torch.Tensor, int]:
    """The permutation, the bin of each number, and how many numbers each bin has."""
    permuted = of.permutation()
    return permuted, permuted & ((1 << _BIN_BITS) - 1), of.count >> _BIN_BITS


def _bincount(of: _Operands) -> _Made:
    import torch

    _, bins, each = _bins(of)
    bins = bins.to(of.kind)
    expected = torch.full((1 << _BIN_BITS,), each, dtype=torch.int64, device=bins.device)
    return (lambda: torch.bincount(bins, minlength=1 << _BIN_BITS)), expected


def _index_add(of: _Operands) -> _Made:
    import torch

    permuted, bins, each = _bins(of)
    source = permuted.to(of.kind)
    empty = torch.zeros(1 << _BIN_BITS, dtype=of.kind, device=source.device)
    numbers = torch.arange(1 << _BIN_BITS, dtype=torch.int64, device=source.device)
    # the numbers of bin m are m, m + bins, m + 2 bins, ...
    expected = numbers * each + (each * (each - 1) // 2 << _BIN_BITS)
    return (lambda: empty.index_add(0, bins, source)), expected.to(of.kind)


def _sort(of: _Operands) -> _Made:
    import torch

    # each value four times
    values = (of.permutation() >> 2).to(of.kind)
    return (lambda: torch.sort(values).values), (of.range() >> 2).to(of.kind)


def _cumsum(of: _Operands) -> _Made:
    import torch

    sums = of.values("sums", of.bits - 1)
    steps = torch.cat([sums[:1], sums[1:] - sums[:-1]])
    return (lambda: torch.cumsum(steps, 0, dtype=of.kind)), sums


_OPERATIONS: Final = {
    "remainder": _remainder,
    "floor_divide": _quotient,
    "shift": _shift,
    "scatter": _scatter,
    "gather": _gather,
    "bincount": _bincount,
    "index_add": _index_add,
    "sort": _sort,
    "cumsum": _cumsum,
}
_BITS: Final = {"int64": 40, "int32": 31}
"""Of values; those of int64 leave room for sums."""


def _make(name: str, dtype: str, gpu: Backend, draws: Draws, scale: int) -> Work:
    import torch

    # a permutation by multiplication needs a power of two
    count = 1 << (_COUNT_BITS + (scale.bit_length() - 1))
    compute, expected = _OPERATIONS[name](
        _Operands(draws, getattr(torch, dtype), count, _BITS[dtype])
    )
    return Expected(compute, expected, count)


def _runs(gpu: Backend) -> str:
    return ""


PROBES: Final = tuple(
    Probe(f"integers/{dtype}[{name}]", dtype, partial(_make, name, dtype), _runs)
    for dtype in _BITS
    for name in _OPERATIONS
)
