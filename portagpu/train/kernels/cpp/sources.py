"""The kernels' sources, each one file of this folder and the header ``portagpu.h``, and their
machine code for any architecture with facts; no device is needed.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.documents import decode, encode
from portagpu.base.errors import MissingDependency, Unsupported
from portagpu.base.patience import LIMITS
from portagpu.base.subprocesses import call
from portagpu.devices.machine_code import CompiledKernel, CompileError, CompilerEnded
from portagpu.facts.targets import load_architecture

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


_ERRORS: Final[Mapping[str, type[Exception]]] = {
    error.__name__: error for error in (MissingDependency, Unsupported, CompilerEnded, CompileError)
}


def compile_kernel(name: str, arch: str) -> tuple[CompiledKernel, ...]:
    """The functions of one of the package's kernels (``KERNELS``), built for ``arch``.

    Raises what :func:`compile_source` does, and LookupError for an unknown kernel.
    """
    return compile_source(read_source(name), arch)


def compile_source(source: str, arch: str) -> tuple[CompiledKernel, ...]:
    """Every ``extern "C" __global__`` function of a CUDA or HIP C++ source, by name, for ``arch``.

    ``#include "portagpu.h"`` finds the package's header. The compiler of the vendor's backend runs
    in a child process with a time limit. Raises MissingDependency, which says what to install,
    where there is no compiler for that architecture; CompileError with the compiler's message where
    it refuses the source, and CompilerEnded, which is one, where it dies or takes too long;
    Unsupported where the architecture has no kernels (a CPU).
    """
    from portagpu.devices.discovery import toolchain_for

    found = toolchain_for(load_architecture(arch).arch.vendor)
    if found is None:
        raise Unsupported(f"{arch} does not run CUDA or HIP C++: no compiler builds for it")
    backend, _ = found
    given, problem = call(
        __name__,
        "answer",
        (backend, inline_header(source), arch),
        limit_s=LIMITS.compile_s,
    )
    if given is None:
        raise CompilerEnded(f"no code was built for {arch}: {problem}")
    if "error" in given:
        raise _ERRORS[given["error"]](given["message"])
    kernels = [decode(CompiledKernel, each, "kernel") for each in given["kernels"]]
    return tuple(sorted(kernels, key=lambda kernel: kernel.name))


def answer(backend: str, source: str, arch: str) -> dict[str, Any]:
    """What a child process says of a source: its kernels, or which error it came to."""
    from portagpu.devices.discovery import plugin

    toolchain = plugin(backend).toolchain()
    assert toolchain is not None  # noqa: S101 - the parent chose it for having one
    try:
        kernels = toolchain.compile_cpp(source, arch)
    except tuple(_ERRORS.values()) as error:
        return {"error": type(error).__name__, "message": str(error)}
    return {"kernels": encode(kernels)}
