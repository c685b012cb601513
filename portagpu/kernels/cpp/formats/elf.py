"""What code objects are read by in an ELF file (System V ABI, 64 bit, little-endian)."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_HEADER: Final = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION: Final = struct.Struct("<IIQQQQIIQQ")
_NOTE: Final = struct.Struct("<III")
_IDENT: Final = b"\x7fELF\x02\x01"
_NOTES: Final = 7  # SHT_NOTE
_NO_BITS: Final = 8  # SHT_NOBITS


@dataclass(frozen=True, slots=True)
class Section:
    """One section: its name, type and bytes; none where the file holds none of it."""

    name: str
    kind: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Elf:
    """A file's machine (``e_machine``), flags and sections."""

    machine: int
    flags: int
    sections: tuple[Section, ...]

    def notes(self) -> Iterator[tuple[str, int, bytes]]:
        """Owner, type and content of every note."""
        for section in self.sections:
            if section.kind == _NOTES:
                yield from _notes(section.data)


def read_elf(data: bytes) -> Elf:
    """The ELF file of those bytes. Raises ValueError for anything else, or where it is cut off."""
    if data[: len(_IDENT)] != _IDENT:
        raise ValueError("these bytes are no 64-bit little-endian ELF file")
    try:
        return _read(data)
    except struct.error:
        raise ValueError("this ELF file is cut off") from None


def _read(data: bytes) -> Elf:
    header = _HEADER.unpack_from(data)
    machine, offset, flags = header[2], header[6], header[7]
    size, count, names = header[11], header[12], header[13]
    if count and size != _SECTION.size:
        raise ValueError(f"this ELF file has section headers of {size} bytes")
    if offset + count * size > len(data):
        raise ValueError("this ELF file is cut off")
    rows = [_SECTION.unpack_from(data, offset + index * size) for index in range(count)]
    if names >= len(rows):
        raise ValueError("this ELF file has no names of sections")
    table = _content(data, rows[names])
    sections = tuple(Section(_string(table, row[0]), row[1], _content(data, row)) for row in rows)
    return Elf(machine, flags, sections)


def _content(data: bytes, row: tuple[int, ...]) -> bytes:
    if row[1] == _NO_BITS:
        return b""
    start, length = row[4], row[5]
    if start + length > len(data):
        raise ValueError("this ELF file is cut off")
    return data[start : start + length]


def _string(table: bytes, start: int) -> str:
    end = table.find(b"\0", start)
    return table[start : end if end >= 0 else len(table)].decode("utf-8", "replace")


def _notes(data: bytes) -> Iterator[tuple[str, int, bytes]]:
    at = 0
    while at + _NOTE.size <= len(data):
        owner_size, size, kind = _NOTE.unpack_from(data, at)
        at += _NOTE.size
        content = at + _aligned(owner_size)
        if content + size > len(data):
            raise ValueError("a note of this ELF file is cut off")
        owner = data[at : at + owner_size].rstrip(b"\0").decode("utf-8", "replace")
        yield owner, kind, data[content : content + size]
        at = content + _aligned(size)


def _aligned(size: int) -> int:
    return (size + 3) & ~3
