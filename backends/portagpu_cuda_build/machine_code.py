"""NVIDIA's side of a compilation: Triton's cubins read with the tools in its wheel, and NVRTC.

``cuobjdump -res-usage`` prints ``REG:170 STACK:0 SHARED:0 LOCAL:0 ...``; ``nvdisasm -c`` prints
SASS, whose matrix instructions are HMMA, IMMA and QMMA (a warp's), HGMMA, IGMMA and QGMMA (a warp
group's) and UTCHMMA, UTCIMMA and UTCQMMA (the fifth generation's).

``%smid`` is the number of the SM that executes a thread (PTX ISA, "Special Registers: %smid"). It
is written S2R from SR_VIRTUALSMID in SASS, as Triton 3.9's ptxas compiles it for sm_80 to sm_120.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final

from portagpu.base.files import Scratch
from portagpu.base.patience import LIMITS
from portagpu.base.subprocesses import run_program
from portagpu.devices.machine_code import (
    CodeError,
    Cupy,
    MachineCode,
    Toolchain,
    UnitPart,
    UnitReading,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from portagpu.devices.machine_code import CompiledKernel, Compiler

_MATRIX: Final = re.compile(r"\b((?:UTC)?[A-Z]G?MMA(?:\.[A-Z0-9x]+)*)(?=\s)")
_UNIT_READ: Final = re.compile(r"\bS2U?R\s+\w+, (SR_VIRT\w+|SR_SMID)")
_UNIT: Final = UnitReading(
    assembly=("mov.u32 $0, %smid;",),
    constraint="=r",
    registers=("SR_VIRTUALSMID",),
    parts=(UnitPart("SM", 0, 32),),
    source="PTX ISA, Special Registers: %smid",
)
_USAGE: Final = re.compile(r"\b(REG|STACK|LOCAL):(\d+)")
_THREADS: Final = re.compile(r"\.reqntid\s+(\d+)")


class CudaToolchain(Toolchain):
    """Triton's backend ``cuda``, which names a GPU by its compute capability, and NVRTC."""

    vendor = "nvidia"
    # streams of others have their present form from CuPy 14 on
    cupy = Cupy("'cupy-cuda13x>=14' (cupy-cuda12x where torch.version.cuda is 12)", is_hip=False)

    def triton_target(self, arch: str) -> tuple[str, int | str]:
        """``("cuda", 90)`` for "sm_90"; raises ValueError for what is not of that form."""
        return "cuda", int(arch.removeprefix("sm_"))

    def inspect(
        self, code: Mapping[str, str | bytes], threads: int, warps: int, *, matrix: bool
    ) -> MachineCode:
        """Registers and stack of the cubin, and its matrix instructions from SASS.

        No kernel here has arrays of its own, so that any stack is what registers did not hold.
        """
        cubin, ptx = code.get("cubin"), code.get("ptx")
        if not isinstance(cubin, bytes) or not isinstance(ptx, str):
            raise CodeError("Triton made no cubin")
        tools = _tools()
        with Scratch("build") as folder:
            file = folder / "kernel.cubin"
            file.write_bytes(cubin)
            usage = read_usage(_run(tools / "cuobjdump", "-res-usage", str(file)))
            sass = _run(tools / "nvdisasm", "-c", str(file)) if matrix else ""
        block = _THREADS.search(ptx)
        if block is None or int(block.group(1)) != threads or threads % warps:
            raise CodeError(f"the code was not made for blocks of {threads} threads")
        return MachineCode(
            wave_size=threads // warps,
            threads=threads,
            registers=usage["REG"],
            spills=usage["STACK"] + usage["LOCAL"],
            spill_unit="B",
            matrix=read_matrix(sass),
            unit_reads=read_units(sass),
        )

    def unit_reading(self, arch: str) -> UnitReading | None:
        """``%smid``, which every architecture has; the driver may number the SMs of a MIG slice."""
        del arch
        return _UNIT

    def cpp_compilers(self, archs: Sequence[str]) -> Mapping[str, Compiler | str]:
        """NVRTC, of the version that builds for each architecture."""
        from portagpu_cuda_build import nvrtc

        return nvrtc.compilers(archs)

    def compile_cpp(self, source: str, arch: str) -> tuple[CompiledKernel, ...]:
        """The source's kernels by NVRTC."""
        from portagpu_cuda_build import nvrtc

        return nvrtc.compile(source, arch)


def read_usage(text: str) -> dict[str, int]:
    """REG, STACK and LOCAL of the one function that ``cuobjdump -res-usage`` lists."""
    functions = [line for line in text.splitlines() if "REG:" in line]
    if len(functions) != 1:
        raise CodeError(f"cuobjdump lists {len(functions)} functions instead of one")
    found = {key: int(value) for key, value in _USAGE.findall(functions[0])}
    missing = {"REG", "STACK", "LOCAL"} - found.keys()
    if missing:
        raise CodeError(f"cuobjdump states no {', '.join(sorted(missing))}")
    return found


def read_matrix(sass: str) -> dict[str, int]:
    """How often each matrix instruction occurs in SASS."""
    return dict(Counter(_MATRIX.findall(sass)))


def read_units(sass: str) -> dict[str, int]:
    """How often each register that names an SM is read in SASS."""
    return dict(Counter(_UNIT_READ.findall(sass)))


def _tools() -> Path:
    from importlib.util import find_spec

    spec = find_spec("triton")
    if spec is None or spec.origin is None:
        raise CodeError("triton is not installed")
    return Path(spec.origin).parent / "backends" / "nvidia" / "bin"


def _run(tool: Path, *words: str) -> str:
    try:
        ended = run_program(str(tool), *words, limit_s=LIMITS.tool_s)
    except OSError as error:
        raise CodeError(f"{tool.name} of Triton's wheel did not run: {error}") from error
    if ended.returncode:
        said = (ended.stderr.decode(errors="replace").strip().splitlines() or ["it said nothing"])[
            -1
        ]
        raise CodeError(f"{tool.name} ended with {ended.returncode}: {said.splitlines()[-1]}")
    return ended.stdout.decode(errors="replace")


TOOLCHAIN: Final = CudaToolchain()
