"""Vector and matrix units of CPUs, from the kernel's feature flags.

Flag names: Linux ``arch/x86/include/asm/cpufeatures.h`` and
``Documentation/arch/arm64/elf_hwcaps.rst``. x86-64 levels: x86-64 psABI, section 3.1.1, in the
spelling of ``/proc/cpuinfo`` (``pni`` is SSE3, ``abm`` is LZCNT, ``xsave`` stands for OSXSAVE).
Register widths belong to the instruction sets themselves; SVE's is the kernel's to tell.
"""

from __future__ import annotations

from typing import Final

# flag -> name, register width in bits (None where the hardware chooses it)
_VECTOR: Final[dict[str, tuple[str, int | None]]] = {
    "sse4_2": ("SSE4.2", 128),
    "avx": ("AVX", 256),
    "f16c": ("F16C", 256),
    "fma": ("FMA", 256),
    "avx2": ("AVX2", 256),
    "avx_vnni": ("AVX-VNNI", 256),
    "avx_vnni_int8": ("AVX-VNNI-INT8", 256),
    "avx_ne_convert": ("AVX-NE-CONVERT", 256),
    "avx512f": ("AVX-512F", 512),
    "avx512bw": ("AVX-512BW", 512),
    "avx512cd": ("AVX-512CD", 512),
    "avx512dq": ("AVX-512DQ", 512),
    "avx512vl": ("AVX-512VL", 512),
    "avx512ifma": ("AVX-512IFMA", 512),
    "avx512vbmi": ("AVX-512VBMI", 512),
    "avx512_vbmi2": ("AVX-512VBMI2", 512),
    "avx512_vnni": ("AVX-512VNNI", 512),
    "avx512_bf16": ("AVX-512BF16", 512),
    "avx512_fp16": ("AVX-512FP16", 512),
    "asimd": ("NEON", 128),
    "asimdhp": ("NEON-FP16", 128),
    "asimddp": ("NEON-DOTPROD", 128),
    "bf16": ("BF16", 128),
    "i8mm": ("I8MM", 128),
    "sve": ("SVE", None),
    "sve2": ("SVE2", None),
    "svebf16": ("SVE-BF16", None),
    "svei8mm": ("SVE-I8MM", None),
}
_MATRIX: Final[dict[str, str]] = {
    "amx_tile": "AMX-TILE",
    "amx_int8": "AMX-INT8",
    "amx_bf16": "AMX-BF16",
    "amx_fp16": "AMX-FP16",
    "amx_complex": "AMX-COMPLEX",
    "sme": "SME",
    "sme2": "SME2",
    "smei8i32": "SME-I8I32",
    "smeb16f32": "SME-B16F32",
    "smef16f32": "SME-F16F32",
    "smef32f32": "SME-F32F32",
    "smef64f64": "SME-F64F64",
}
_X86_64_LEVELS: Final[tuple[tuple[int, str], ...]] = (
    (1, "cmov cx8 fpu fxsr lm mmx sse sse2 syscall"),
    (2, "cx16 lahf_lm pni popcnt sse4_1 sse4_2 ssse3"),
    (3, "abm avx avx2 bmi1 bmi2 f16c fma movbe xsave"),
    (4, "avx512bw avx512cd avx512dq avx512f avx512vl"),
)


def vector_units(flags: frozenset[str]) -> tuple[str, ...]:
    """Names of the vector instruction sets among ``flags``."""
    return tuple(name for flag, (name, _) in _VECTOR.items() if flag in flags)


def matrix_units(flags: frozenset[str]) -> tuple[str, ...]:
    """Names of the matrix instruction sets among ``flags``."""
    return tuple(name for flag, name in _MATRIX.items() if flag in flags)


def vector_bits(flags: frozenset[str], scalable_bits: int | None) -> int | None:
    """The widest vector register in bits; ``scalable_bits`` is the kernel's figure for SVE."""
    if "sve" in flags:
        return scalable_bits
    return max(
        (bits for flag, (_, bits) in _VECTOR.items() if flag in flags and bits), default=None
    )


def x86_64_level(flags: frozenset[str]) -> int | None:
    """The x86-64 microarchitecture level (1 to 4); None where even the baseline is not shown."""
    level = None
    for number, needed in _X86_64_LEVELS:
        if not flags.issuperset(needed.split()):
            break
        level = number
    return level
