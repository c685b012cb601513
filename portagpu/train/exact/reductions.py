"""Sums, means, norms and extremes of rows, exact in any order."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from portagpu.train.exact.probe import Expected, Probe
from portagpu.train.exact.rule import SIGNIFICANT_BITS, check_subset
from portagpu.train.exact.vectors import lacks

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from portagpu.devices.contract import Backend
    from portagpu.train.exact.draws import Draws
    from portagpu.train.exact.probe import Work

_ROWS: Final = 128
_COLUMNS: Final = 1024
_ROOT: Final = 32
"""A row of ``_ROOT**2`` numbers v and -v has the norm ``_ROOT * v``."""
_SPARSE: Final = 8
"""Of as many terms one is kept where a sum of ones would have too many bits."""
_DTYPES: Final = ("float64", "float32", "bfloat16", "float16")

_Made = tuple["Callable[[], torch.Tensor]", "torch.Tensor"]


def _terms(dtype: str, draws: Draws, rows: int) -> torch.Tensor:
    """Integers of which no partial sum of a row leaves the dtype, int64."""
    # results of 16 bits are rounded, and some kernels round partial sums too
    bits = SIGNIFICANT_BITS[dtype]
    largest = max((1 << min(bits, 40)) // _COLUMNS, 1)
    terms = draws.integers("terms", (rows, _COLUMNS), -largest, largest)
    if largest * _COLUMNS > 1 << bits:
        terms = terms * (draws.integers("kept", (rows, _COLUMNS), 1, _SPARSE) == 1)
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
    expected = (terms.sum(1).to(wide) / _COLUMNS).to(kind)
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
    terms = draws.integers("terms", (rows, _COLUMNS), -min(top, 1 << 20), min(top, 1 << 20))
    values = terms.to(kind)
    return (lambda: values.amax(1)), terms.amax(1).to(kind)


_OPERATIONS: Final = {"sum": _sum, "mean": _mean, "vector_norm": _norm, "amax": _largest}


def _make(name: str, dtype: str, gpu: Backend, draws: Draws, scale: int) -> Work:
    import torch

    rows = _ROWS * scale
    compute, expected = _OPERATIONS[name](dtype, getattr(torch, dtype), draws, rows)
    return Expected(compute, expected, rows * _COLUMNS)


PROBES: Final = tuple(
    Probe(f"reductions/{dtype}[{name}]", dtype, partial(_make, name, dtype), partial(lacks, dtype))
    for dtype in _DTYPES
    for name in _OPERATIONS
)
