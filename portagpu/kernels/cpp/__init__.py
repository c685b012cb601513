"""Portable kernels in CUDA and HIP C++: one file each, over the words of ``portagpu.h``.

Importing this package imports neither torch nor cupy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from portagpu.lazy import lazy_names

if TYPE_CHECKING:
    from portagpu.kernels.cpp.compile import compile_kernel as compile_kernel
    from portagpu.kernels.cpp.compile import compile_source as compile_source
    from portagpu.kernels.cpp.run import FunctionResources as FunctionResources
    from portagpu.kernels.cpp.run import function_resources as function_resources
    from portagpu.kernels.cpp.run import histogram as histogram
    from portagpu.kernels.cpp.run import rank_rows as rank_rows
    from portagpu.kernels.cpp.run import scan_rows as scan_rows
    from portagpu.kernels.cpp.run import sum_all as sum_all
    from portagpu.kernels.cpp.run import sum_rows as sum_rows
    from portagpu.kernels.cpp.sources import KERNELS as KERNELS
    from portagpu.kernels.cpp.sources import read_source as read_source
    from portagpu.machine_code.compiled import CompiledKernel as CompiledKernel
    from portagpu.machine_code.compiled import CompileError as CompileError
else:
    __all__, __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "portagpu.kernels.cpp.compile": "compile_kernel compile_source",
            "portagpu.kernels.cpp.run": (
                "FunctionResources function_resources histogram rank_rows scan_rows sum_all "
                "sum_rows"
            ),
            "portagpu.kernels.cpp.sources": "KERNELS read_source",
            "portagpu.machine_code.compiled": "CompiledKernel CompileError",
        },
    )
