"""CUDA C++ to cubins with NVRTC, which needs neither a driver nor a device.

The calls are those of nvrtc.h, CUDA 12 and 13. This module imports neither torch nor a vendor's
package: NVRTC's library is found where PyPI's wheels, the CUDA builds of torch or a CUDA toolkit
have it.

What a kernel takes is in the report of ptxas (``-v``, CUDA 11 to 13), which is also in NVRTC's log.
For blocks of which size it was compiled is in the cubin: ``.nv.info.<kernel>`` is a list of
attributes, a format and a number of a byte each, then 16 bits that are the value, or for format 4
the size of what follows. ``cuobjdump -elf`` prints them by name.
"""

from __future__ import annotations

import ctypes
import os
import re
import struct
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from portagpu.base.errors import MissingDependency
from portagpu.devices.machine_code import CompiledKernel, CompileError, Compiler, Elf, stamp
from portagpu.facts.arch import base_name
from portagpu.facts.targets import load_architecture

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence


_ENTRY: Final = re.compile(r"Compiling entry function '([^']+)' for '(sm_\w+)'")
_STACK: Final = re.compile(
    r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads"
)
_USED: Final = re.compile(r"Used (\d+) registers(.*)")
_SHARED: Final = re.compile(r"(\d+) bytes smem")


@dataclass(frozen=True, slots=True)
class Usage:
    """One kernel: registers and bytes of stack a thread, bytes of shared memory a block.

    ``spills`` are the bytes of all spill stores and loads in the code.
    """

    name: str
    arch: str
    registers: int
    shared_memory: int
    stack: int
    spills: int


def read_usage(log: str) -> tuple[Usage, ...]:
    """Every kernel that the log reports in full, in its order."""
    found = []
    parts = _ENTRY.split(log)[1:]
    for name, arch, text in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
        used, stack = _USED.search(text), _STACK.search(text)
        if used is None or stack is None:
            continue
        shared = _SHARED.search(used[2])
        found.append(
            Usage(
                name=name,
                arch=arch,
                registers=int(used[1]),
                shared_memory=int(shared[1]) if shared else 0,
                stack=int(stack[1]),
                spills=int(stack[2]) + int(stack[3]),
            )
        )
    return tuple(found)


_MACHINE: Final = "EM_CUDA"
_CODE: Final = ".text."
_INFO: Final = ".nv.info."
_ATTRIBUTE: Final = struct.Struct("<BBH")
_SIZED: Final = 4  # EIFMT_SVAL
_MAX_THREADS: Final = 5  # EIATTR_MAX_THREADS: of __launch_bounds__, x, y and z
_THREADS: Final = struct.Struct("<III")


def max_threads(cubin: bytes) -> dict[str, int | None]:
    """The functions with machine code in a cubin, and the largest block of each.

    None where the source does not bound a block. Raises ValueError for what is not a cubin.
    """
    elf = Elf(cubin)
    if elf.machine != _MACHINE:
        raise ValueError(f"this ELF file is for machine {elf.machine}, not a cubin")
    held = elf.contents()
    names = [name.removeprefix(_CODE) for name in held if name.startswith(_CODE)]
    return {name: _largest_block(held.get(_INFO + name, b"")) for name in names}


def _largest_block(attributes: bytes) -> int | None:
    at = 0
    try:
        while at < len(attributes):
            form, number, value = _ATTRIBUTE.unpack_from(attributes, at)
            at += _ATTRIBUTE.size
            if form != _SIZED:
                continue
            if number == _MAX_THREADS:
                x, y, z = _THREADS.unpack_from(attributes, at)
                return int(x * y * z)
            at += value
    except struct.error:
        raise ValueError("this cubin's attributes are cut off") from None
    return None


# 177: what of the header a kernel does not use
_OPTIONS: Final = ("--std=c++17", "--ptxas-options=-v", "--diag-suppress=177")
_WHEELS: Final = "nvidia/*/lib/libnvrtc.so.[0-9]*"
_TOOLKITS: Final = ("CUDA_HOME", "CUDA_PATH")
_IN_TOOLKIT: Final = "lib64/libnvrtc.so.[0-9]*"
_ON_SEARCH_PATH: Final = ("libnvrtc.so.13", "libnvrtc.so.12")
_INSTALL_NEW: Final = "pip install nvidia-cuda-nvrtc (CUDA 13)"
_INSTALL_OLD: Final = (
    "pip install nvidia-cuda-nvrtc-cu12 (CUDA 12), which may be installed next to one of CUDA 13"
)
_MAPS: Final = Path("/proc/self/maps")


def compilers(archs: Sequence[str]) -> dict[str, Compiler | str]:
    """For each architecture the first NVRTC that builds for it, or what to install."""
    found = list(_loadable())
    return {arch: _as_compiler(_builder_for(found, arch)) for arch in archs}


def compile(source: str, arch: str) -> tuple[CompiledKernel, ...]:  # noqa: A001 - what it is
    """The kernels of a source, built in this process for ``arch`` ("sm_90"), as ptxas lists them.

    Raises MissingDependency where no NVRTC that is here builds for that architecture, and
    CompileError where it refuses the source.
    """
    library = _builder_for(_loadable(), arch)
    if isinstance(library, str):
        raise MissingDependency(library)
    started = time.perf_counter()
    code, log = library.build(source, arch)
    seconds = time.perf_counter() - started
    usages = read_usage(log)
    blocks = max_threads(code)
    if not usages or {usage.name for usage in usages} != set(blocks):
        raise CompileError(f"{library.name} does not say what every kernel for {arch} takes")
    wave_size = load_architecture(arch).arch.warp_size
    return tuple(
        CompiledKernel(
            name=usage.name,
            arch=usage.arch,
            compiler=library.name,
            seconds=seconds,
            registers=usage.registers,
            spills=usage.spills,
            spill_unit="bytes",
            stack=usage.stack,
            shared_memory=usage.shared_memory,
            wave_size=wave_size,
            max_threads=blocks[usage.name],
            code=code,
        )
        for usage in usages
    )


def _loadable() -> Iterator[_Nvrtc]:
    """Every NVRTC that can be loaded, loaded one by one."""
    for path in libraries(sys.path):
        try:
            library = ctypes.CDLL(path)
        except OSError:
            continue
        yield _Nvrtc(library, path)


def _builder_for(installed: Iterable[_Nvrtc], arch: str) -> _Nvrtc | str:
    """The first NVRTC that builds for an architecture, or what is missing."""
    number = int(digits) if (digits := base_name(arch).removeprefix("sm_")).isdecimal() else 0
    seen: list[_Nvrtc] = []
    for library in installed:
        if number in library.architectures:
            return library
        seen.append(library)
    if not seen:
        return (
            f"NVRTC is not installed: {_INSTALL_NEW}, or for what that has dropped {_INSTALL_OLD}"
        )
    dropped = all(number < min(each.architectures) for each in seen)
    names = " and ".join(dict.fromkeys(each.name for each in seen))
    return f"{names} cannot build for {arch}: {_INSTALL_OLD if dropped else _INSTALL_NEW}"


def _as_compiler(library: _Nvrtc | str) -> Compiler | str:
    if isinstance(library, str):
        return library
    name, version = library.name.split()
    return Compiler(name, version, stamp(_files(library.path)))


def _files(path: str) -> list[Path]:
    """The library's file and those next to it; a bare name is looked up among the mapped files."""
    file = Path(path)
    if not file.is_absolute():
        # address, permissions, offset, device, inode and the file
        mapped = [line.split(maxsplit=5) for line in _MAPS.read_text("utf-8").splitlines()]
        paths = {Path(row[5]) for row in mapped if len(row) > 5}
        file = next((each for each in sorted(paths) if each.name.startswith(path)), file)
    return sorted(file.parent.glob("libnvrtc*.so.[0-9]*")) if file.is_absolute() else []


def libraries(folders: Sequence[str]) -> Iterator[str]:
    """Files and names that may be NVRTC, the newest of each place first; nothing is loaded.

    Wheels in ``folders`` come first, then toolkits that the environment names, then the loader's
    own search path. A relative folder is left out: the working folder may be anybody's.
    """
    for folder in dict.fromkeys(folders):
        yield from _newest_first(Path(folder), _WHEELS)
    for variable in _TOOLKITS:
        yield from _newest_first(Path(os.environ.get(variable, "")), _IN_TOOLKIT)
    yield from _ON_SEARCH_PATH


def _newest_first(root: Path, pattern: str) -> list[str]:
    def version(path: Path) -> list[int]:
        return [int(part) for part in re.findall(r"\d+", path.name)]

    found = root.glob(pattern) if root.is_absolute() else ()
    return [str(path) for path in sorted(found, key=version, reverse=True)]


class _Nvrtc:
    """The calls of one library that are needed; ``architectures`` are the numbers it builds for."""

    def __init__(self, library: ctypes.CDLL, path: str) -> None:
        self._library = library
        self.path = path
        library.nvrtcGetErrorString.restype = ctypes.c_char_p
        major, minor, count = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
        library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
        self.name = f"NVRTC {major.value}.{minor.value}"
        library.nvrtcGetNumSupportedArchs(ctypes.byref(count))
        numbers = (ctypes.c_int * count.value)()
        library.nvrtcGetSupportedArchs(numbers)
        self.architectures = tuple(numbers)

    def build(self, source: str, arch: str) -> tuple[bytes, str]:
        """The cubin and the log; raises CompileError with the compiler's words."""
        program = ctypes.c_void_p()
        created = self._library.nvrtcCreateProgram(
            ctypes.byref(program), source.encode(), b"kernel.cpp", 0, None, None
        )
        if created:
            raise self._refusal(arch, self._error_text(created))
        options = [word.encode() for word in (f"--gpu-architecture={arch}", *_OPTIONS)]
        failed = self._library.nvrtcCompileProgram(
            program, len(options), (ctypes.c_char_p * len(options))(*options)
        )
        log = self._program_text(program, "ProgramLog").rstrip(b"\0").decode("utf-8", "replace")
        if failed:
            raise self._refusal(arch, log.strip() or self._error_text(failed))
        code = self._program_text(program, "CUBIN")
        self._library.nvrtcDestroyProgram(ctypes.byref(program))
        return code, log

    def _refusal(self, arch: str, said: str) -> CompileError:
        return CompileError(f"{self.name} refuses the source for {arch}: {said}")

    def _program_text(self, program: ctypes.c_void_p, what: str) -> bytes:
        size = ctypes.c_size_t()
        ask_size: Callable[..., int] = getattr(self._library, f"nvrtcGet{what}Size")
        ask_size(program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        getattr(self._library, f"nvrtcGet{what}")(program, buffer)
        return buffer.raw

    def _error_text(self, code: int) -> str:
        text: bytes = self._library.nvrtcGetErrorString(code)
        return text.decode("utf-8", "replace")
