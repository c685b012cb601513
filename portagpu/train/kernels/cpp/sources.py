"""The kernels' sources: each is one file of this folder and the header ``portagpu.h``."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

KERNELS: Final[Mapping[str, tuple[str, ...]]] = {
    "warp_reduce": ("row_sum_f32", "row_sum_f64", "row_sum_i32", "row_sum_i64"),
    "warp_scan": ("row_scan_f32", "row_scan_f64", "row_scan_i32", "row_scan_i64"),
    "ballot_rank": ("row_rank",),
    "block_reduce": ("partial_sum_f32", "partial_sum_f64", "partial_sum_i32", "partial_sum_i64"),
    "histogram": ("histogram_i32", "histogram_i64"),
}
"""The functions of each source. All their parameters are pointers or 64-bit integers."""

HEADER: Final = "portagpu.h"
_INCLUDE: Final = f'#include "{HEADER}"'


@cache
def read_source(name: str) -> str:
    """One of :data:`KERNELS` as a whole. Raises LookupError for another name."""
    if name not in KERNELS:
        raise LookupError(f"unknown kernel {name!r}: known are {', '.join(KERNELS)}")
    return inline_header((files(__package__) / f"{name}.cpp").read_text("utf-8"))


def inline_header(source: str) -> str:
    """``source`` with the header in place of its include line: one text needs no search path.

    A source that does not include the header is returned as it is.
    """
    head, found, tail = source.partition(_INCLUDE)
    if not found:
        return source
    header = (files(__package__) / HEADER).read_text("utf-8")
    line = head.count("\n") + 2
    return f'{head}#line 1 "{HEADER}"\n{header}\n#line {line} "kernel.cpp"{tail}'
