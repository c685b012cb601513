"""The reader of a file, among those of torch and of all vendors."""

from __future__ import annotations

import codecs
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, cast, runtime_checkable

from portagpu.base.patience import LIMITS
from portagpu.base.plugins import OWN_DISTRIBUTION, call_quietly, distribution_of, entry_points
from portagpu.facts.captures.json_stream import unpacked
from portagpu.facts.formats.foreign_readers import reader_names
from portagpu.facts.readings.model import FormatError
from portagpu.traces.analysis import kineto
from portagpu.traces.analysis.document import is_document

if TYPE_CHECKING:
    import os
    from collections.abc import Collection
    from importlib.metadata import EntryPoint
    from types import ModuleType

    from portagpu.facts.captures.model import Capture

GROUP: Final = "portagpu.captures"
"""The entry-point group of packages whose public modules are readers."""
HEAD_BYTES: Final = 65_536


@runtime_checkable
class Reader(Protocol):
    """A module that reads one format."""

    KIND: str

    def matches(self, head: bytes, path: Path) -> bool:
        """Whether the file is of this format, from its first HEAD_BYTES, unpacked."""

    def read(self, path: Path) -> Capture:
        """What the file holds. Raises FormatError, with one line that says what is wrong."""


class Readers(NamedTuple):
    readers: tuple[Reader, ...]
    problems: tuple[str, ...]
    """Why a module of another distribution is none of them, one sentence each."""


def readers() -> tuple[Reader, ...]:
    """All readers: torch's, those of our vendors' packages, and those of other distributions."""
    return all_readers().readers


@cache
def all_readers() -> Readers:
    """All readers, and why some are left out; each module is loaded once."""
    found: list[Reader] = [kineto]
    problems: list[str] = []

    def order(point: EntryPoint) -> tuple[bool, str, str]:
        return distribution_of(point) != OWN_DISTRIBUTION, point.name, point.value

    def modules(point: EntryPoint) -> list[ModuleType]:
        return [import_module(name) for name in reader_names(point.load())]

    for point in sorted(set(entry_points(GROUP)), key=order):
        owner = distribution_of(point)
        if owner == OWN_DISTRIBUTION:
            found += cast("list[Reader]", modules(point))
            continue
        what = f"the readers {point.value} of {owner}"
        loaded, failure = call_quietly(partial(modules, point), LIMITS.load_s, f"{what} to load")
        if failure:
            problems.append(f"{what} are left out: it {failure}")
        for module in loaded or ():
            if isinstance(module, Reader):
                found.append(module)
            else:
                problems.append(f"{module.__name__} of {owner} needs KIND, matches and read")
    return Readers(tuple(found), tuple(problems))


def read(path: str | os.PathLike[str], columns: Collection[str] = ()) -> Capture:
    """What a profiler wrote to ``path``. Raises FormatError where no reader knows it.

    ``columns`` of the events are enough: a reader that has ``read_columns(path, columns)`` leaves
    out other ones, which saves time and memory with millions of events, and the correlation where
    the file has no calls. Without "short_name" a kernel's name is its short one where it has no
    other.
    """
    file = Path(path)
    head = _head(file)
    if not head:
        raise FormatError(f"{file}: is empty: capture again, or copy it again")
    for reader in readers():
        if reader.matches(head, file):
            some = getattr(reader, "read_columns", None) if columns else None
            found: Capture = some(file, columns) if some else reader.read(file)
            return found
    if is_document(head):
        raise FormatError(
            f"{file}: is a summary already, which diff and diagnose read: give captures"
        )
    raise FormatError(f"{file}: no reader knows this file; known are {known_formats()}")


def known_formats() -> str:
    """The formats in words, and which readers are left out."""
    found = all_readers()
    return "; ".join([", ".join(each.KIND for each in found.readers), *found.problems])


def check_regular(path: Path) -> None:
    """Raise FormatError for a pipe or a device: a reader opens its file more than once."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise FormatError(f"{path}: is no regular file: write what it gives to one")


def _head(path: Path) -> bytes:
    check_regular(path)
    head = b""
    for part in unpacked(path, HEAD_BYTES, []):
        head += part
        if len(head) >= HEAD_BYTES:
            break
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return head[:HEAD_BYTES].decode("utf-16", "replace").encode()
    return head[:HEAD_BYTES].removeprefix(codecs.BOM_UTF8)


def is_known(path: str | os.PathLike[str]) -> bool:
    """Whether a reader knows the file. Raises FormatError where it cannot be opened."""
    file = Path(path)
    head = _head(file)
    return any(reader.matches(head, file) for reader in readers())
