"""Portable kernels in CUDA and HIP C++: one file each, over the words of ``portagpu.h``.

Importing this package imports neither torch nor cupy.
"""

from __future__ import annotations

from portagpu.kernels.cpp.compile import compile_kernel, compile_source
from portagpu.kernels.cpp.run import (
    FunctionResources,
    function_resources,
    histogram,
    rank_rows,
    scan_rows,
    sum_all,
    sum_rows,
)
from portagpu.kernels.cpp.sources import KERNELS, read_source
from portagpu.machine_code.compiled import CompiledKernel, CompileError

__all__ = [
    "KERNELS",
    "CompileError",
    "CompiledKernel",
    "FunctionResources",
    "compile_kernel",
    "compile_source",
    "function_resources",
    "histogram",
    "rank_rows",
    "read_source",
    "scan_rows",
    "sum_all",
    "sum_rows",
]
