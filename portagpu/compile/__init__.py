"""Machine code of every portable kernel for every architecture, built and inspected: no GPU needed.

What it shows is the badge ``compiled``: the compiler accepts the source, uses the matrix unit that
the architecture has, keeps its values in registers and fits shared memory. It shows nothing of
results or of speed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from portagpu.lazy import lazy_names

if TYPE_CHECKING:
    from portagpu.compile.run import CompileOptions as CompileOptions
    from portagpu.compile.run import compile_kernels as compile_kernels
else:
    __all__, __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "portagpu.compile.run": "CompileOptions compile_kernels",
        },
    )
