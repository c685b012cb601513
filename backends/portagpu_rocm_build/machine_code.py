"""AMD's side of a compilation: the assembly that Triton makes its code objects from, and clang.

The assembly ends with ``.amdgpu_metadata``, YAML in which each kernel has ``.vgpr_count``,
``.agpr_count`` and so on (LLVM, User Guide for AMDGPU Backend, code object V5 metadata). Matrix
instructions are ``v_mfma_*``, ``v_smfmac_*``, ``v_wmma_*`` and ``v_swmmac_*``.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Final

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

_MATRIX: Final = re.compile(r"^\s+(v_(?:s?mfmac?|s?wmmac?)_\w+)", re.MULTILINE)
_METADATA: Final = re.compile(
    r"^\s*\.amdgpu_metadata$(.*?)^\s*\.end_amdgpu_metadata$", re.MULTILINE | re.DOTALL
)
_COUNT: Final = re.compile(r"^\s+(?:- )?\.(\w+):\s+(\d+)$", re.MULTILINE)
_NEEDED: Final = (
    "max_flat_workgroup_size",
    "sgpr_count",
    "vgpr_count",
    "vgpr_spill_count",
    "sgpr_spill_count",
    "private_segment_fixed_size",
    "wavefront_size",
)
_UNIT_READ: Final = re.compile(
    r"^\s+s_getreg_b32 \w+, (hwreg\(HW_REG_(?:WAVE_)?(?:HW_ID[12]?|XCC_ID)[^)]*\))", re.MULTILINE
)
_HIP: Final = (
    "HIP, amd_detail/amd_device_functions.h: HW_ID and XCC_ID register bit structures of __smid()"
)


def _in_one_die(engine_bits: int, *, dies: bool = False) -> UnitReading:
    """Of GCN and CDNA: HW_ID has CU_ID in bits 11:8, SH_ID in 12 and SE_ID from 13 on.

    :param engine_bits: how many bits SE_ID has.
    :param dies: whether the product has several dies (XCC), whose number another register has.
    """
    registers = [f"hwreg(HW_REG_HW_ID, 8, {5 + engine_bits})"]
    parts = [UnitPart("SE", 5, engine_bits), UnitPart("SH", 4, 1), UnitPart("CU", 0, 4)]
    if dies:
        registers.append("hwreg(HW_REG_XCC_ID, 0, 4)")
        parts.insert(0, UnitPart("XCC", 0, 4, word=1))
    return _reading(registers, parts, _HIP)


def _in_workgroup_processors(engine_bits: int, source: str) -> UnitReading:
    """Of RDNA: HW_ID1 has WGP_ID in bits 13:10, SA_ID in 16 and SE_ID from 18 on.

    A block may use both compute units of a WGP, so that the WGP is the unit.
    """
    registers = [f"hwreg(HW_REG_HW_ID1, 10, {8 + engine_bits})"]
    parts = [UnitPart("SE", 8, engine_bits), UnitPart("SA", 6, 1), UnitPart("WGP", 0, 4)]
    return _reading(registers, parts, source)


def _reading(registers: Sequence[str], parts: Sequence[UnitPart], source: str) -> UnitReading:
    return UnitReading(
        assembly=tuple(f"s_getreg_b32 $0, {each}" for each in registers),
        constraint="=s",
        registers=tuple(registers),
        parts=tuple(parts),
        source=source,
    )


_UNITS: Final = {
    "gfx906": _in_one_die(2),
    "gfx908": _in_one_die(3),
    "gfx90a": _in_one_die(3),
    # CDNA 3's document gives SE_ID a third bit, which its 4 engines a die never set
    "gfx942": _in_one_die(2, dies=True),
    "gfx950": _in_one_die(2, dies=True),
    "gfx1030": _in_workgroup_processors(2, _HIP),
    "gfx1100": _in_workgroup_processors(3, _HIP),
    "gfx1201": _in_workgroup_processors(3, "Linux, gc_12_0_0_sh_mask.h: SQ_WAVE_HW_ID1"),
}


class RocmToolchain(Toolchain):
    """Triton's backend ``hip``, which names a GPU by its architecture, and clang."""

    vendor = "amd"
    # streams of others have their present form from CuPy 14 on
    cupy = Cupy("'cupy-rocm-7-0>=14'", is_hip=True)

    def triton_target(self, arch: str) -> tuple[str, int | str]:
        """``("hip", "gfx942")``."""
        return "hip", arch

    def inspect(
        self, code: Mapping[str, str | bytes], threads: int, warps: int, *, matrix: bool
    ) -> MachineCode:
        """Counts of the metadata, and matrix instructions of the text.

        ``private_segment_fixed_size`` is scratch memory a lane, which is where registers spill.
        """
        del warps, matrix
        text = code.get("amdgcn")
        if not isinstance(text, str) or not isinstance(code.get("hsaco"), bytes):
            raise CodeError("Triton made no code object")
        counts = read_metadata(text)
        if counts["max_flat_workgroup_size"] != threads:
            raise CodeError(f"the code was not made for blocks of {threads} threads")
        return MachineCode(
            wave_size=counts["wavefront_size"],
            threads=threads,
            registers=counts["vgpr_count"],
            accumulators=counts.get("agpr_count", 0),
            scalar_registers=counts["sgpr_count"],
            # a spilled register takes 4 B of a lane's scratch; the scratch says so too
            spills=max(counts["private_segment_fixed_size"], 4 * counts["vgpr_spill_count"]),
            spill_unit="B",
            scalar_spills=counts["sgpr_spill_count"],
            matrix=read_matrix(text),
            unit_reads=read_units(text),
        )

    def unit_reading(self, arch: str) -> UnitReading | None:
        """The compute unit, or the workgroup processor, of an architecture whose bits are known."""
        return _UNITS.get(arch)

    def cpp_compilers(self, archs: Sequence[str]) -> Mapping[str, Compiler | str]:
        """The clang that builds for each architecture."""
        from portagpu_rocm_build import clang

        return clang.survey(archs)

    def compile_cpp(self, source: str, arch: str) -> tuple[CompiledKernel, ...]:
        """The source's kernels by clang."""
        from portagpu_rocm_build import clang

        return clang.compile(source, arch)


def read_metadata(text: str) -> dict[str, int]:
    """The numbers of the one kernel in ``.amdgpu_metadata``."""
    found = _METADATA.search(text)
    if found is None:
        raise CodeError("the assembly has no .amdgpu_metadata")
    counts = {key: int(value) for key, value in _COUNT.findall(found.group(1))}
    if found.group(1).count(".wavefront_size:") != 1:
        raise CodeError("the assembly does not hold one kernel")
    missing = [key for key in _NEEDED if key not in counts]
    if missing:
        raise CodeError(f".amdgpu_metadata states no {', '.join(missing)}")
    return counts


def read_matrix(text: str) -> dict[str, int]:
    """How often each matrix instruction occurs in assembly."""
    return dict(Counter(_MATRIX.findall(text)))


def read_units(text: str) -> dict[str, int]:
    """How often each register that names a unit is read in assembly."""
    return dict(Counter(_UNIT_READ.findall(text)))


TOOLCHAIN: Final = RocmToolchain()
