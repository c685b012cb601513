"""How much a gzip may hold: a small file of a stranger can hold terabytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from portagpu.facts.readings.model import FormatError

if TYPE_CHECKING:
    from pathlib import Path

_TIMES: Final = 100
"""Traces shrink to a tenth or a thirtieth."""
_BYTES: Final = 256 << 20
"""What any gzip may hold."""


def most_unpacked(path: Path) -> int:
    """The bytes that the gzip ``path`` may hold."""
    return max(_BYTES, _TIMES * path.stat().st_size)


def check_unpacked(path: Path, size: int, most: int) -> None:
    """Raise FormatError where ``size`` bytes were unpacked, and that is more than ``most``."""
    if size > most:
        raise FormatError(f"{path}: holds more than {most >> 20:,} MiB: unpack it with gunzip")
