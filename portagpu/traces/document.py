"""A summary as a document of JSON, and back."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from portagpu.captures.model import CapturedDevice, Source, ToolMessage, table
from portagpu.codec import DocumentError, decode, encode
from portagpu.readings.model import FormatError
from portagpu.text import one_line
from portagpu.traces.model import (
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
    from collections.abc import Callable, Mapping

_TABLES: Final[Mapping[str, Mapping[str, str]]] = {
    "rows": SUMMARY_COLUMNS,
    "categories": CATEGORY_COLUMNS,
    "ranges": RANGE_COLUMNS,
    "collectives": COLLECTIVE_COLUMNS,
    "operators": OPERATOR_COLUMNS,
}
_LISTS: Final[Mapping[str, Callable[..., Any]]] = {
    "sources": Source,
    "devices": DeviceTime,
    "steps": Steps,
    "hardware": CapturedDevice,
    "messages": ToolMessage,
}
_REQUIRED: Final = ("sources", "rows", "devices", "ranges", "collectives")
_KEYS: Final = tuple(each.name for each in dataclasses.fields(Summary))


def to_document(summary: Summary) -> dict[str, Any]:
    """The summary as an object of JSON; a table is a list of its rows."""
    document: dict[str, Any] = {"schema": SCHEMA}
    for key in _KEYS:
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
        raise FormatError(one_line(f"{path}: is no summary of a trace: {error}")) from error


def from_document(document: object) -> Summary:
    """The summary that :func:`to_document` wrote. Raises DocumentError."""
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise DocumentError(f"the schema is not {SCHEMA}")
    if missing := [key for key in _REQUIRED if key not in document]:
        raise DocumentError(f"{missing[0]!r} is missing")
    values: dict[str, Any] = {}
    for key in document.keys() - {"schema"}:
        value = document[key]
        if key not in _KEYS:
            raise DocumentError(f"{key!r} is not known")
        if key in _TABLES:
            values[key] = None if value is None and key not in _REQUIRED else _table(key, value)
        elif key in _LISTS:
            values[key] = tuple(
                decode(_LISTS[key], each, f"{key}[{at}]")
                for at, each in enumerate(_list(key, value))
            )
        else:
            values[key] = _plain(key, value)
    return Summary(**values)


def _list(key: str, value: object) -> list[Any]:
    if not isinstance(value, list):
        raise DocumentError(f"{key}: must be a list")
    return value


def _table(key: str, value: object) -> Any:
    rows = _list(key, value)
    if not all(isinstance(each, dict) for each in rows):
        raise DocumentError(f"{key}: must be a list of objects")
    columns = _TABLES[key]
    if unknown := {name for each in rows for name in each} - columns.keys():
        raise DocumentError(f"{key}: {min(unknown)!r} is not known")
    try:
        return table({name: [each.get(name) for each in rows] for name in columns}, columns)
    except (TypeError, ValueError, OverflowError) as error:
        # pyarrow's errors are of these types
        raise DocumentError(f"{key}: {error}") from error


def _plain(key: str, value: object) -> Any:
    """A number, or a table of numbers or texts, or a list of texts."""
    if key == "dropped":
        fits = isinstance(value, int) and not isinstance(value, bool)
    elif key == "problems":
        fits = isinstance(value, list) and all(isinstance(each, str) for each in value)
        value = tuple(value) if isinstance(value, list) else value
    else:
        kind = str if key == "details" else int
        fits = isinstance(value, dict) and all(isinstance(each, kind) for each in value.values())
    if not fits:
        raise DocumentError(f"{key}: has another type")
    return value
