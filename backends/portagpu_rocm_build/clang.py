"""HIP C++ to code objects with clang and lld: ROCm's own or a distribution's, without a device.

The compiler is given neither HIP's headers nor its device libraries, so that no ROCm needs to be
here: a source uses ``portagpu.h`` or the compiler's own words. This module imports neither torch
nor a vendor's package. The metadata note of a code object says what each kernel takes; the note and
its keys: LLVM, "User Guide for AMDGPU Backend", code object V3 to V6 metadata.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.errors import MissingDependency
from portagpu.base.files import Scratch
from portagpu.base.subprocesses import run_program
from portagpu.base.subprocesses.start import find_program, program_folders
from portagpu.devices.machine_code import (
    CompiledKernel,
    CompileError,
    Compiler,
    CompilerEnded,
    Elf,
    library,
    stamp,
)
from portagpu.facts.arch import base_name
from portagpu.facts.targets import load_architecture

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


_MACHINE: Final = "EM_AMDGPU"
_OWNER: Final = "AMDGPU"
_METADATA: Final = 32  # NT_AMDGPU_METADATA


def read_code_object(code: bytes, *, compiler: str, seconds: float) -> tuple[CompiledKernel, ...]:
    """The kernels of a code object, in its order. Raises ValueError where it is none."""
    elf = Elf(code)
    if elf.machine != _MACHINE:
        raise ValueError(f"this ELF file is for machine {elf.machine}, not a code object")
    for owner, kind, content in elf.notes():
        if (owner, kind) == (_OWNER, _METADATA):
            document = _unpack(content)
            return tuple(
                _kernel(row, _arch(document), code, compiler, seconds) for row in _rows(document)
            )
    raise ValueError("this code object has no metadata note")


def _unpack(content: bytes) -> Any:
    msgpack = library("msgpack", "msgpack")
    try:
        return msgpack.unpackb(content)
    except Exception as error:
        # FormatError, StackError and OutOfData share no class of their own
        raise ValueError(f"this code object's metadata is damaged MessagePack: {error}") from error


def _rows(document: Any) -> list[dict[str, Any]]:
    rows = document.get("amdhsa.kernels") if isinstance(document, dict) else None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError("this code object's metadata lists no kernels")
    return rows


def _arch(document: dict[str, Any]) -> str:
    """ "gfx942" from "amdgcn-amd-amdhsa--gfx942:xnack-"; the triple is ignored."""
    return str(document.get("amdhsa.target", "")).split(":")[0].rpartition("-")[2]


def _kernel(
    row: dict[str, Any], arch: str, code: bytes, compiler: str, seconds: float
) -> CompiledKernel:
    def number(key: str, default: int | None = None) -> int:
        value = row.get(key, default)
        if not isinstance(value, int):
            raise ValueError(  # noqa: TRY004 - what is wrong is the file
                f"this code object's metadata has no {key}"
            )
        return value

    return CompiledKernel(
        name=str(row.get(".name", "")),
        arch=arch,
        compiler=compiler,
        seconds=seconds,
        registers=number(".vgpr_count"),
        accumulators=number(".agpr_count", 0),
        scalar_registers=number(".sgpr_count"),
        spills=number(".vgpr_spill_count", 0),
        spill_unit="registers",
        scalar_spills=number(".sgpr_spill_count", 0),
        stack=number(".private_segment_fixed_size"),
        shared_memory=number(".group_segment_fixed_size"),
        wave_size=number(".wavefront_size"),
        max_threads=number(".max_flat_workgroup_size"),
        code=code,
    )


_TOOLKITS: Final = ("ROCM_PATH", "ROCM_HOME", "HIP_PATH")
_TOOLKIT: Final = "/opt/rocm"
_IN_TOOLKIT: Final = ("llvm/bin/clang++", "lib/llvm/bin/clang++")
_VERSIONED: Final = re.compile(r"clang(?:\+\+)?-(\d+)")
_VERSION: Final = re.compile(r"clang version (\d+(?:\.\d+)*)")
_CHANGE_CODE: Final = frozenset({"CCC_OVERRIDE_OPTIONS"})
"""Variables that change clang's options."""
_REFUSED: Final = 1
"""clang's exit code for a wrong source. After a crash it has another."""
_INSTALL: Final = (
    "install ROCm, or clang, lld and llvm of one version, 19 or later "
    "(Debian: apt-get install clang-22 lld-22)"
)
_WORDS: Final = (
    "-x",
    "hip",
    "-std=c++17",
    "-O3",
    "--offload-device-only",
    "--no-gpu-bundle-output",
    "-nogpulib",
    "-nogpuinc",
    "-c",
)


def survey(archs: Sequence[str]) -> dict[str, Compiler | str]:
    """For each architecture the first clang that builds for it, or what to install."""
    found = [_Clang(path) for path in compilers()]
    return {arch: _as_compiler(_builder_for(found, arch)) for arch in archs}


def compile(source: str, arch: str) -> tuple[CompiledKernel, ...]:  # noqa: A001 - what it is
    """The kernels of a source, built for ``arch`` ("gfx942"), in the order of the source.

    Raises MissingDependency where no clang that is here builds for that architecture, CompileError
    where it refuses the source, or builds another wave size than the architecture's, and
    CompilerEnded where it breaks off.
    """
    clang = _builder_for(map(_Clang, compilers()), arch)
    if isinstance(clang, str):
        raise MissingDependency(clang)
    code, seconds = _build(clang, source, arch)
    kernels = read_code_object(code, compiler=clang.name, seconds=seconds)
    wave_size = load_architecture(arch).arch.warp_size
    for kernel in kernels:
        if (kernel.arch, kernel.wave_size) != (base_name(arch), wave_size):
            raise CompileError(
                f"{kernel.name} was built for {kernel.arch} with waves of {kernel.wave_size} "
                f"threads; {arch} has waves of {wave_size}"
            )
    return kernels


def compilers() -> Iterator[str]:
    """Programs that may be clang: ROCm's, then those on the path, the newest version first."""
    roots = [Path(os.environ.get(name, "")) for name in _TOOLKITS]
    for root in dict.fromkeys([*roots, Path(_TOOLKIT)]):
        for inside in _IN_TOOLKIT if root.is_absolute() else ():
            if os.access(root / inside, os.X_OK):
                yield str(root / inside)
                break
    if amd := find_program("amdclang++"):
        yield amd
    versions: dict[int, str] = {}
    for folder in program_folders():
        for path in sorted(Path(folder).glob("clang*")):
            if (match := _VERSIONED.fullmatch(path.name)) and shutil.which(path):
                versions.setdefault(int(match[1]), str(path))
    yield from (versions[number] for number in sorted(versions, reverse=True))
    if plain := find_program("clang"):
        yield plain


class _Clang:
    """One program. Its properties are read when first used, and once."""

    def __init__(self, path: str) -> None:
        self.path = path

    @cached_property
    def version_line(self) -> str:
        """Its version line, with a distribution's own version."""
        return self.output("--version").partition("\n")[0]

    @property
    def version(self) -> str:
        """ "22.1.8"."""
        found = _VERSION.search(self.version_line)
        return found[1] if found else "of unknown version"

    @property
    def name(self) -> str:
        """ "clang 22.1.8"."""
        return f"clang {self.version}"

    @cached_property
    def processors(self) -> frozenset[str]:
        """The AMD processors that it builds for; none where it was built without them."""
        said = self.output("--target=amdgcn-amd-amdhsa", "--print-supported-cpus")
        return frozenset(said.split())

    @cached_property
    def linker(self) -> Path | None:
        """Its ld.lld; None where it has none."""
        path = Path(self.output("-print-prog-name=ld.lld").partition("\n")[0])
        return path if path.is_absolute() and path.exists() else None

    def output(self, *words: str) -> str:
        """What it prints with these arguments; nothing where the file is not a program."""
        try:
            done = run_program(self.path, *words, leave_out=_CHANGE_CODE)
        except OSError:
            return ""
        return b"\n".join((done.stdout, done.stderr)).decode(errors="replace")


def _builder_for(installed: Iterable[_Clang], arch: str) -> _Clang | str:
    """The first clang that builds for an architecture, or what is missing."""
    seen = []
    for clang in installed:
        if base_name(arch) not in clang.processors:
            seen.append(clang.path)
            continue
        if clang.linker is None:
            return f"{clang.path} has no linker ld.lld: {_INSTALL}"
        return clang
    if not seen:
        return f"no clang is installed: {_INSTALL}"
    return f"{' and '.join(seen)} cannot build for {arch}: {_INSTALL}"


def _as_compiler(clang: _Clang | str) -> Compiler | str:
    if isinstance(clang, str):
        return clang
    files = [Path(clang.path).resolve(), *([clang.linker.resolve()] if clang.linker else [])]
    return Compiler("clang", clang.version, f"{clang.version_line} {stamp(files)}")


def _build(clang: _Clang, source: str, arch: str) -> tuple[bytes, float]:
    """The code object, and how long it took."""
    with Scratch("build") as folder:
        path, code = folder / "kernel.cpp", folder / "kernel.co"
        path.write_text(source, "utf-8")
        started = time.perf_counter()
        words = (*_WORDS, f"--offload-arch={arch}", str(path), "-o", str(code))
        done = run_program(clang.path, *words, leave_out=_CHANGE_CODE)
        seconds = time.perf_counter() - started
        said = done.stderr.decode(errors="replace").replace(f"{folder}{os.sep}", "").strip()
        if done.returncode == _REFUSED:
            raise CompileError(f"{clang.name} refuses the source for {arch}: {said}")
        if done.returncode:
            last = said.splitlines()[-1] if said else "it said nothing"
            raise CompilerEnded(f"{clang.name} ended with exit code {done.returncode}: {last}")
        if not code.exists():
            raise CompilerEnded(f"{clang.name} wrote no code: {clang.path}")
        return code.read_bytes(), seconds
