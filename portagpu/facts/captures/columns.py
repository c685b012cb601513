"""Columns that grow batch by batch: Arrow arrays, so that no event stays a Python object."""

from __future__ import annotations

import json
from itertools import starmap
from typing import TYPE_CHECKING, Any, Final

from portagpu.facts.captures.arrow import arrow
from portagpu.facts.captures.model import EVENT_COLUMNS, field_type

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa

_BITS: Final = {"int32": 31, "int64": 63}
FARTHEST_NS: Final = 1 << 61
"""Times are within 73 years of 0, so that no difference of two overflows."""


def whole(value: object, bits: int = 63) -> int | None:
    """The whole number that a value is or says ("0x10", "16", 16.0); None for any other."""
    if isinstance(value, str):
        text = value.strip()
        try:
            value = int(text, 16 if text[:2].lower() == "0x" else 10)
        except ValueError:
            return None
    elif isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if -(1 << bits) <= value < 1 << bits else None


def text_of(value: object) -> str | None:
    """A text that UTF-8 can express; None for nothing."""
    if not isinstance(value, str):
        return None if value is None else str(value)
    try:
        value.encode()
    except UnicodeEncodeError:
        return value.encode("utf-8", "replace").decode()
    return value


def json_object(text: object) -> dict[str, Any]:
    """The object that a text of JSON is; an empty one for anything else."""
    if not isinstance(text, str):
        return {}
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


class Rows:
    """The rows of one kind of events. A column that no batch has is absent in the table."""

    def __init__(self, schema: Mapping[str, str] = EVENT_COLUMNS) -> None:
        self._schema = schema
        self._chunks: dict[str, list[Any]] = {}
        self._codes: dict[str, dict[str, int]] = {}
        self._batches: list[int] = []

    def __len__(self) -> int:
        return sum(self._batches)

    def add(self, columns: Mapping[str, Sequence[Any] | pa.Array]) -> None:
        """Add a batch: column -> values, all of one length, or arrays of the column's type.

        A value that a column of numbers cannot hold is null.
        """
        pa: Any = arrow()
        size = len(next(iter(columns.values())))
        if not size:
            return
        for name, values in columns.items():
            chunks = self._chunks.setdefault(name, [])
            kind = self._schema[name]
            chunks += [pa.nulls(each, _stored(kind)) for each in self._batches[len(chunks) :]]
            chunks.append(
                values if isinstance(values, pa.Array) else self._array(name, kind, values)
            )
        self._batches.append(size)

    def different(self, name: str) -> list[int]:
        """The different values of a column of numbers, in order; null is none of them."""
        pa: Any = arrow()
        chunks = self._chunks.get(name, ())
        if not chunks:
            return []
        found = pa.chunked_array(chunks).unique().to_pylist()
        return sorted(each for each in found if each is not None)

    def table(self) -> pa.Table:
        """All rows, in the order in which they were added."""
        pa: Any = arrow()
        columns = {}
        for name in [each for each in self._schema if each in self._chunks]:
            kind = self._schema[name]
            chunks = self._chunks.pop(name)
            chunks += [pa.nulls(each, _stored(kind)) for each in self._batches[len(chunks) :]]
            if kind == "word":
                words = pa.array([text_of(each) for each in self._codes[name]], pa.string())
                chunks = list(
                    starmap(pa.DictionaryArray.from_arrays, [(each, words) for each in chunks])
                )
            columns[name] = pa.chunked_array(chunks, field_type(name, self._schema))
            columns[name] = pa.chunked_array([columns[name].combine_chunks()])
        return pa.table(columns)

    def _array(self, name: str, kind: str, values: Sequence[Any]) -> pa.Array:
        pa: Any = arrow()
        if kind == "word":
            codes = self._codes.setdefault(name, {})
            try:
                found = list(map(codes.get, values))
            except TypeError:  # a value that cannot be a key
                values = [None if each is None else str(each) for each in values]
                found = list(map(codes.get, values))
            if None in found:
                for each in values:
                    if each is not None:
                        codes.setdefault(each, len(codes))
                found = list(map(codes.get, values))
            return pa.array(found, pa.int32())
        try:
            return pa.array(values, _stored(kind))
        except (pa.ArrowException, OverflowError, TypeError, ValueError):
            pass
        if kind == "float64":
            return pa.array([each if isinstance(each, int | float) else None for each in values])
        return pa.array([whole(each, _BITS[kind]) for each in values], _stored(kind))


def _stored(kind: str) -> pa.DataType:
    """The type of a chunk: words are kept as their numbers."""
    pa: Any = arrow()
    return pa.int32() if kind == "word" else pa.type_for_alias(kind)
