"""A summary as a document of JSON, and back."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

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
from portagpu.base.text import one_line
from portagpu.facts.captures.model import CapturedDevice, Source, ToolMessage, table
from portagpu.facts.readings.model import FormatError
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
    from collections.abc import Mapping

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
        raise FormatError(one_line(f"{path}: is no summary of a trace: {error}")) from error


def from_document(document: object) -> Summary:
    """The summary that :func:`to_document` wrote. Raises DocumentError."""
    found = _SUMMARY.read(document, "")
    return Summary(**{key: value for key, value in found.items() if key != "schema"})
