"""Reads ELF files with pyelftools. Every damage is a ValueError."""

from __future__ import annotations

import contextlib
import io
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.errors import MissingDependency
from portagpu.base.plugins import install

if TYPE_CHECKING:
    from collections.abc import Iterator

_IDENT: Final = b"\x7fELF\x02\x01"


def library(name: str, distribution: str) -> Any:
    """Import a module that reads machine code; raises MissingDependency with what to install."""
    try:
        return import_module(name)
    except ImportError as error:
        raise MissingDependency(
            f"machine code is read by {distribution}: {install('compile')}"
        ) from error


def check_readers() -> None:
    """Raise MissingDependency where a library for reading machine code is not installed."""
    library("elftools.elf.elffile", "pyelftools")
    library("msgpack", "msgpack")


class Elf:
    """A 64-bit little-endian file (System V ABI). Raises ValueError for any other bytes."""

    def __init__(self, data: bytes) -> None:
        if data[: len(_IDENT)] != _IDENT:
            raise ValueError("these bytes are no 64-bit little-endian ELF file")
        elffile = library("elftools.elf.elffile", "pyelftools")
        with _damage_as_error():
            self._file = elffile.ELFFile(io.BytesIO(data))
            self._sections = list(self._file.iter_sections())
            self.machine: int | str = self._file["e_machine"]
            """ "EM_CUDA", "EM_AMDGPU", or the number of what pyelftools does not know."""

    def contents(self) -> dict[str, bytes]:
        """The bytes of the sections that are not empty, by name."""
        with _damage_as_error():
            held = {each.name: bytes(each.data()) for each in self._sections}
        return {name: data for name, data in held.items() if data}

    def notes(self) -> Iterator[tuple[str, int, bytes]]:
        """Owner, type and content of every note."""
        with _damage_as_error():
            for section in self._sections:
                if section["sh_type"] == "SHT_NOTE":
                    for note in section.iter_notes():
                        yield note["n_name"], note["n_type"], note["n_descdata"]


@contextlib.contextmanager
def _damage_as_error() -> Iterator[None]:
    """Turn what pyelftools raises for a damaged file into a ValueError."""
    try:
        yield
    except (ValueError, MemoryError):
        raise
    except Exception as error:
        raise ValueError(f"this ELF file is damaged: {error}") from error
