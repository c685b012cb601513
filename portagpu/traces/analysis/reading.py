"""The reader of a file, among those of torch and of all vendors."""

from __future__ import annotations

import codecs
import dataclasses
import json
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, cast, runtime_checkable

from portagpu.base.documents import (
    Rule,
    anything,
    each,
    encode,
    object_of,
    optional_fields,
    or_null,
    rule_of,
    text,
    values_of,
    version,
    whole,
    wrong,
)
from portagpu.base.patience import LIMITS
from portagpu.base.plugins import OWN_DISTRIBUTION, call_quietly, distribution_of, entry_points
from portagpu.base.text import one_line
from portagpu.facts.captures.json_stream import unpacked
from portagpu.facts.captures.model import CapturedDevice, Source, ToolMessage, table
from portagpu.facts.formats.foreign_readers import reader_names
from portagpu.facts.readings.model import FormatError
from portagpu.traces.analysis import kineto
from portagpu.traces.analysis.model import (
    CATEGORY_COLUMNS,
    COLLECTIVE_COLUMNS,
    OPERATOR_COLUMNS,
    RANGE_COLUMNS,
    SCHEMA,
    SUMMARY_COLUMNS,
    DeviceTime,
    Steps,
    Summary,
)

if TYPE_CHECKING:
    import os
    from collections.abc import Collection, Mapping
    from importlib.metadata import EntryPoint
    from types import ModuleType

    from portagpu.facts.captures.model import Capture

_TABLES: Final[Mapping[str, Mapping[str, str]]] = {
    "rows": SUMMARY_COLUMNS,
    "categories": CATEGORY_COLUMNS,
    "ranges": RANGE_COLUMNS,
    "collectives": COLLECTIVE_COLUMNS,
    "operators": OPERATOR_COLUMNS,
}


def _table(columns: Mapping[str, str]) -> Rule:
    rows_of = each(object_of(dict.fromkeys(columns, anything), frozenset(columns)))

    def read(value: Any, path: str) -> Any:
        rows = rows_of.read(value, path)
        try:
            return table({name: [row.get(name) for row in rows] for name in columns}, columns)
        except (TypeError, ValueError, OverflowError) as error:
            # pyarrow's errors are of these types
            raise wrong(path, str(error)) from error

    return Rule(read)


_OPTIONAL: Final = optional_fields(Summary)
_SUMMARY: Final = object_of(
    {
        "schema": version(SCHEMA),
        **{
            key: or_null(_table(columns)) if key in _OPTIONAL else _table(columns)
            for key, columns in _TABLES.items()
        },
        "sources": rule_of(tuple[Source, ...]),
        "devices": rule_of(tuple[DeviceTime, ...]),
        "steps": rule_of(tuple[Steps, ...]),
        "hardware": rule_of(tuple[CapturedDevice, ...]),
        "messages": rule_of(tuple[ToolMessage, ...]),
        "api_ns": values_of(whole),
        "events": values_of(whole),
        "problems": rule_of(tuple[str, ...]),
        "dropped": whole,
        "details": values_of(text),
    },
    _OPTIONAL,
)


def to_document(summary: Summary) -> dict[str, Any]:
    """The summary as an object of JSON; a table is a list of its rows."""
    document: dict[str, Any] = {"schema": SCHEMA}
    for key in (field.name for field in dataclasses.fields(Summary)):
        value = getattr(summary, key)
        is_table = key in _TABLES and value is not None
        document[key] = value.to_pylist() if is_table else encode(value)
    return document


def is_document(head: bytes) -> bool:
    """Whether a file that begins so is such a document."""
    return head.lstrip()[:1] == b"{" and f'"{SCHEMA}"'.encode() in head[:200]


def read_document(path: str | os.PathLike[str]) -> Summary:
    """The summary in a file. Raises FormatError, with one line that says what is wrong."""
    try:
        document = json.loads(Path(path).read_bytes())
        return from_document(document)
    except (OSError, ValueError, RecursionError) as error:
        # DocumentError is a ValueError
        raise FormatError(one_line(f"{path}: not a summary of a trace: {error}")) from error


def from_document(document: object) -> Summary:
    """The summary that :func:`to_document` wrote. Raises DocumentError."""
    found = _SUMMARY.read(document, "")
    return Summary(**{key: value for key, value in found.items() if key != "schema"})


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
    """What a profiler wrote to a file, as events.

    :param path: the file.
    :param columns: the columns of the events that are enough; empty is all. A reader that has
        ``read_columns(path, columns)`` leaves out other ones, which saves time and memory with
        millions of events, and the correlation where the file has no calls. Without "short_name" a
        kernel's name is its short one where it has no other.
    :raises FormatError: where no reader knows it.
    """
    file = Path(path)
    head = _head(file)
    if not head:
        raise FormatError(f"{file}: the file is empty: capture again, or copy it again")
    for reader in readers():
        if reader.matches(head, file):
            some = getattr(reader, "read_columns", None) if columns else None
            found: Capture = some(file, columns) if some else reader.read(file)
            return found
    if is_document(head):
        raise FormatError(f"{file}: already a summary, which diff and diagnose read: give captures")
    raise FormatError(f"{file}: no reader knows this file; the known formats are {known_formats()}")


def known_formats() -> str:
    """The formats in words, and which readers are left out."""
    found = all_readers()
    return "; ".join([", ".join(each.KIND for each in found.readers), *found.problems])


def check_regular(path: Path) -> None:
    """Raise FormatError for a pipe or a device: a reader opens its file more than once."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise FormatError(f"{path}: not a regular file: write its content to one")


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
