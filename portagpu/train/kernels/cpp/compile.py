"""Kernels to machine code, for any architecture with facts; no device is needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from portagpu.base.documents import decode, encode
from portagpu.base.errors import MissingDependency, Unsupported
from portagpu.base.patience import LIMITS
from portagpu.base.subprocesses import call
from portagpu.devices.machine_code import CompiledKernel, CompileError, CompilerEnded
from portagpu.facts.targets import load_architecture
from portagpu.train.kernels.cpp.sources import inline_header, read_source

if TYPE_CHECKING:
    from collections.abc import Mapping

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
