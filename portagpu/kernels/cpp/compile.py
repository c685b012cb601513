"""Kernels to machine code, for any architecture with facts; no device is needed."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

from portagpu.errors import Unsupported
from portagpu.kernels.cpp.sources import read_source, with_header
from portagpu.target import load_architecture

if TYPE_CHECKING:
    from portagpu.kernels.cpp.compiled import CompiledKernel

COMPILERS: Final = {"nvidia": "portagpu_cuda_build.nvrtc", "amd": "portagpu_rocm_build.clang"}
"""The module of each vendor's compiler: ``compile(source, arch)``."""


def compile_kernel(name: str, arch: str) -> tuple[CompiledKernel, ...]:
    """The functions of one of the package's kernels (``KERNELS``), built for ``arch``.

    Raises what :func:`compile_source` does, and LookupError for an unknown kernel.
    """
    return compile_source(read_source(name), arch)


def compile_source(source: str, arch: str) -> tuple[CompiledKernel, ...]:
    """Every ``extern "C" __global__`` function of a CUDA or HIP C++ source, by name, for ``arch``.

    ``#include "portagpu.h"`` finds the package's header. The vendor's compiler runs in a child
    process with a time limit. Raises MissingDependency, which says what to install, where there is
    no compiler for that architecture; CompileError with the compiler's words where it refuses the
    source, dies or takes too long; Unsupported where the architecture has no kernels (a CPU).
    """
    vendor = load_architecture(arch).arch.vendor
    if vendor not in COMPILERS:
        raise Unsupported(f"{arch} runs no CUDA or HIP C++: there is no compiler to ask")
    found: tuple[CompiledKernel, ...] = import_module(COMPILERS[vendor]).compile(
        with_header(source), arch
    )
    return tuple(sorted(found, key=lambda kernel: kernel.name))
