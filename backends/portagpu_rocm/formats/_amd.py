"""Shared by the readers of AMD's tools: values with units, names and addresses."""

from __future__ import annotations

import re
from typing import Final, TypeVar

from portagpu.facts.arch import base_name
from portagpu.facts.formats import integer, number, stated
from portagpu.facts.host.gpus import gfx_name
from portagpu.facts.pcie import GENERATION

VENDOR: Final = "amd"
T = TypeVar("T")

# ANSI colours; rocminfo and rocm-smi write them, copies often lose the escape character
_COLOUR: Final = re.compile(r"\x1b?\[\d{1,2}m")

# amdsmi.h and gpu_metrics: the largest number of its type stands for "not supported"
_NO_COUNT: Final = frozenset({0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF})
_NO_MEASURE: Final = _NO_COUNT | {0xFFFF}

# AMD SMI divides bytes by powers of 1024 and writes "MB" (amdsmi_commands.py, mem_usage)
_SIZES: Final = {"b": 0, "kb": 10, "mb": 20, "gb": 30, "tb": 40}


def without_colours(text: str) -> str:
    """``text`` without colours."""
    return _COLOUR.sub("", text)


def scalar_text(value: object) -> str | None:
    """A scalar, or a {"value", "unit"} object, as the tool prints it; None for "N/A" and others."""
    if isinstance(value, str):
        return stated(value)
    if isinstance(value, dict):
        inner, unit = value.get("value"), value.get("unit")
        bare = None if isinstance(inner, dict) else scalar_text(inner)
        return f"{bare} {unit}" if bare is not None and isinstance(unit, str) else bare
    return str(value) if isinstance(value, int | float) else None


def measure(value: object) -> float | None:
    """The number of a measured quantity, whatever its unit; None for the tools' unknowns."""
    if isinstance(value, dict):
        value = value.get("value")
    if isinstance(value, str):
        value = number(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return None if value in _NO_MEASURE else float(value)


def count(value: object) -> int | None:
    """A number of things or an identifier, decimal or 0x; None for the tools' unknowns."""
    if isinstance(value, dict):
        value = value.get("value")
    if isinstance(value, str):
        value = integer(value)
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return None if value < 0 or value in _NO_COUNT else value


def size(value: object) -> int | None:
    """Bytes of "16368 MB" or {"value": 16368, "unit": "MB"}; a bare number is in MB."""
    amount = measure(value)
    if amount is None or amount < 0:
        return None
    words = (scalar_text(value) or "").lower().split()
    shift = _SIZES.get(words[1] if len(words) == 2 else "mb")
    return int(amount * (1 << shift)) if shift is not None else None


def generation(speed: object) -> int | None:
    """The PCI Express generation of a lane's "16.0 GT/s"."""
    return GENERATION.get(measure(speed) or 0.0)


def gfx_arch(text: str | None) -> str | None:
    """The compiler's name of the architecture in ``text``; None for anything else.

    ROCm SMI and AMD SMI up to ROCm 6.3 print the version's parts as decimals ("gfx9010" for
    gfx90a, "gfx11000" for gfx1100; rsmi_get_gfx_target_version in rocm_smi_utils.cc multiplies a
    minor version of 0 by a further ten), which no name of the compiler's looks like.
    """
    name = base_name(text or "")
    if re.fullmatch(r"gfx[0-9a-f]{3,5}", name) is None:
        return None
    digits = name.removeprefix("gfx")
    if digits.isdigit() and len(digits) == (4 if digits[0] == "9" else 5):
        stepping = int(digits[-3:])
        return gfx_name(int(digits[:-3]) * 10000 + stepping) if stepping < 100 else None
    return name if len(digits) <= 4 else None


def unique_id_from_uuid(text: str | None) -> int | None:
    """The hardware's number in the runtime's UUID "GPU-b1fb27fd8857c0d3"; None for "GPU-XX"."""
    match = re.fullmatch(r"gpu-([0-9a-f]{16})", (text or "").strip().lower())
    return (int(match.group(1), 16) or None) if match is not None else None


def runtime_uuid(unique_id: int | None) -> str | None:
    """``unique_id`` as ROCr's HSA_AMD_AGENT_INFO_UUID spells it."""
    if unique_id is None or unique_id >= 1 << 64:
        return None
    return f"GPU-{unique_id:016x}"


def product_name(text: str | None) -> str | None:
    """A product's name; None for the PCI ids that ROCm SMI prints where it has none."""
    name = stated(text)
    return None if name is None or re.fullmatch(r"0x[0-9a-fA-F]+", name) else name


def first_stated(*values: T | None) -> T | None:
    """The first that is stated."""
    return next((value for value in values if value is not None), None)
