"""AMD's code objects: what the metadata note says of each kernel.

The note and its keys: LLVM, "User Guide for AMDGPU Backend", code object V3 to V6 metadata.
"""

from __future__ import annotations

from typing import Any, Final

from portagpu.devices.machine_code import CompiledKernel, Elf, library

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
