"""CUDA C++ to cubins with NVRTC, which needs neither a driver nor a device.

The calls are those of nvrtc.h, CUDA 12 and 13. This module imports neither torch nor a vendor's
package: NVRTC's library is found where PyPI's wheels, the CUDA builds of torch or a CUDA toolkit
have it.
"""

from __future__ import annotations

import base64
import ctypes
import os
import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from portagpu.arch import base_name
from portagpu.asking import ask
from portagpu.errors import MissingDependency
from portagpu.kernels.cpp.compiled import CompiledKernel, CompileError
from portagpu.kernels.cpp.formats.cubin import kernels_in
from portagpu.kernels.cpp.formats.ptxas import read_usage
from portagpu.target import load_architecture

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

LIMIT_S: Final = 120.0
"""A compilation that takes longer is ended."""

# 177: what of the header a kernel does not use
_OPTIONS: Final = ("--std=c++17", "--ptxas-options=-v", "--diag-suppress=177")
_WHEELS: Final = "nvidia/*/lib/libnvrtc.so.[0-9]*"
_TOOLKITS: Final = ("CUDA_HOME", "CUDA_PATH")
_IN_TOOLKIT: Final = "lib64/libnvrtc.so.[0-9]*"
_ON_SEARCH_PATH: Final = ("libnvrtc.so.13", "libnvrtc.so.12")
_INSTALL: Final = (
    "pip install nvidia-cuda-nvrtc (CUDA 13), or nvidia-cuda-nvrtc-cu12 for older architectures"
)


def compile(source: str, arch: str) -> tuple[CompiledKernel, ...]:  # noqa: A001 - what it is
    """The kernels of a source, built for ``arch`` ("sm_90"), in the order of the assembler.

    Raises MissingDependency where no NVRTC that is here builds for that architecture, and
    CompileError where it refuses the source.
    """
    wave_size = load_architecture(arch).arch.warp_size
    found, problem = ask(__name__, "build", (source, arch), limit_s=LIMIT_S)
    if found is None:
        raise CompileError(f"NVRTC did not build for {arch}: {problem}")
    if "missing" in found:
        raise MissingDependency(found["missing"])
    if "error" in found:
        raise CompileError(f"{found['compiler']} refuses the source for {arch}: {found['error']}")
    code = base64.b64decode(found["code"])
    usages = read_usage(found["log"])
    if not usages or {usage.name for usage in usages} != kernels_in(code):
        raise CompileError(f"{found['compiler']} does not say what every kernel for {arch} takes")
    return tuple(
        CompiledKernel(
            name=usage.name,
            arch=usage.arch,
            compiler=found["compiler"],
            seconds=found["seconds"],
            registers=usage.registers,
            spills=usage.spills,
            spill_unit="bytes",
            stack=usage.stack,
            shared_memory=usage.shared_memory,
            wave_size=wave_size,
            code=code,
        )
        for usage in usages
    )


def build(source: str, arch: str) -> dict[str, Any]:
    """Compile here, in the child process: the cubin in base 64 and the log, or what is wrong."""
    seen = []
    for path in libraries(sys.path):
        try:
            library = _Nvrtc(ctypes.CDLL(str(path)))
        except OSError:
            continue
        if _number(arch) in library.architectures():
            return library.build(source, arch)
        seen.append(library.name())
    if not seen:
        return {"missing": f"NVRTC is not installed: {_INSTALL}"}
    return {"missing": f"{' and '.join(dict.fromkeys(seen))} cannot build for {arch}: {_INSTALL}"}


def libraries(folders: Sequence[str]) -> Iterator[str]:
    """Files and names that may be NVRTC, the newest of each place first; nothing is loaded.

    Wheels in ``folders`` come first, then toolkits that the environment names, then the loader's
    own search path.
    """
    for folder in dict.fromkeys(folders):
        yield from _newest_first(Path(folder), _WHEELS)
    for variable in _TOOLKITS:
        if root := os.environ.get(variable):
            yield from _newest_first(Path(root), _IN_TOOLKIT)
    yield from _ON_SEARCH_PATH


def _newest_first(root: Path, pattern: str) -> list[str]:
    def version(path: Path) -> list[int]:
        return [int(part) for part in re.findall(r"\d+", path.name)]

    return [str(path) for path in sorted(root.glob(pattern), key=version, reverse=True)]


def _number(arch: str) -> int:
    digits = base_name(arch).removeprefix("sm_")
    return int(digits) if digits.isdecimal() else 0


class _Nvrtc:
    """The calls of one library that are needed."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        library.nvrtcGetErrorString.restype = ctypes.c_char_p

    def name(self) -> str:
        """ "NVRTC 13.5"."""
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
        return f"NVRTC {major.value}.{minor.value}"

    def architectures(self) -> tuple[int, ...]:
        """The numbers of the architectures that it builds for."""
        count = ctypes.c_int()
        self._library.nvrtcGetNumSupportedArchs(ctypes.byref(count))
        numbers = (ctypes.c_int * count.value)()
        self._library.nvrtcGetSupportedArchs(numbers)
        return tuple(numbers)

    def build(self, source: str, arch: str) -> dict[str, Any]:
        """What :func:`build` returns."""
        started = time.perf_counter()
        program, compiler = ctypes.c_void_p(), self.name()
        created = self._library.nvrtcCreateProgram(
            ctypes.byref(program), source.encode(), b"kernel.cpp", 0, None, None
        )
        if created:
            return {"compiler": compiler, "error": self._words(created)}
        options = [word.encode() for word in (f"--gpu-architecture={arch}", *_OPTIONS)]
        failed = self._library.nvrtcCompileProgram(
            program, len(options), (ctypes.c_char_p * len(options))(*options)
        )
        log = self._text(program, "ProgramLog").rstrip(b"\0").decode("utf-8", "replace")
        if failed:
            return {"compiler": compiler, "error": log.strip() or self._words(failed)}
        return {
            "compiler": compiler,
            "code": base64.b64encode(self._text(program, "CUBIN")).decode(),
            "log": log,
            "seconds": time.perf_counter() - started,
        }

    def _text(self, program: ctypes.c_void_p, what: str) -> bytes:
        size = ctypes.c_size_t()
        ask_size: Callable[..., int] = getattr(self._library, f"nvrtcGet{what}Size")
        ask_size(program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        getattr(self._library, f"nvrtcGet{what}")(program, buffer)
        return buffer.raw

    def _words(self, code: int) -> str:
        text: bytes = self._library.nvrtcGetErrorString(code)
        return text.decode("utf-8", "replace")
