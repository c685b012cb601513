"""MessagePack, as far as LLVM writes it: maps, arrays, strings, integers, booleans and nil.

The format: https://github.com/msgpack/msgpack/blob/master/spec.md.
"""

from __future__ import annotations

import struct
from typing import Any, Final

_NUMBERS: Final = {
    0xCA: ">f",
    0xCB: ">d",
    0xCC: ">B",
    0xCD: ">H",
    0xCE: ">I",
    0xCF: ">Q",
    0xD0: ">b",
    0xD1: ">h",
    0xD2: ">i",
    0xD3: ">q",
}
_CONSTANTS: Final = {0xC0: None, 0xC2: False, 0xC3: True}
_STRINGS: Final = {0xD9: ">B", 0xDA: ">H", 0xDB: ">I"}
_ARRAYS: Final = {0xDC: ">H", 0xDD: ">I"}
_MAPS: Final = {0xDE: ">H", 0xDF: ">I"}
_DEEPEST: Final = 32


def read_msgpack(data: bytes) -> Any:
    """The first value in those bytes. Raises ValueError where it is damaged."""
    try:
        return _Reader(data).value(0)
    except (struct.error, UnicodeDecodeError, TypeError) as error:
        raise ValueError(f"these bytes are damaged MessagePack: {error}") from None


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def value(self, depth: int) -> Any:
        if depth > _DEEPEST:
            raise ValueError("these bytes are MessagePack of too many levels")
        tag = self._number(">B")
        if tag < 0x80:
            return tag
        if tag >= 0xE0:
            return tag - 0x100
        if tag < 0x90:
            return self._map(tag & 0x0F, depth)
        if tag < 0xA0:
            return self._array(tag & 0x0F, depth)
        if tag < 0xC0:
            return self._text(tag & 0x1F)
        if tag in _CONSTANTS:
            return _CONSTANTS[tag]
        if tag in _NUMBERS:
            return self._number(_NUMBERS[tag])
        if tag in _STRINGS:
            return self._text(self._number(_STRINGS[tag]))
        if tag in _ARRAYS:
            return self._array(self._number(_ARRAYS[tag]), depth)
        if tag in _MAPS:
            return self._map(self._number(_MAPS[tag]), depth)
        raise ValueError(f"these bytes are MessagePack with an unknown type 0x{tag:02x}")

    def _number(self, form: str) -> Any:
        (value,) = struct.unpack_from(form, self._data, self._at)
        self._at += struct.calcsize(form)
        return value

    def _text(self, size: int) -> str:
        found = self._data[self._at : self._at + size]
        if len(found) != size:
            raise ValueError("these bytes are MessagePack that is cut off")
        self._at += size
        return found.decode()

    def _array(self, count: int, depth: int) -> list[Any]:
        return [self.value(depth + 1) for _ in range(count)]

    def _map(self, count: int, depth: int) -> dict[Any, Any]:
        return {self.value(depth + 1): self.value(depth + 1) for _ in range(count)}
