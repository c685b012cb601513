"""Values of untrusted files as columns of the schema: Arrow arrays that grow batch by batch.

No event stays a Python object. Ranges that carry our own labels are separated from others here.
"""

from __future__ import annotations

import json
import threading
from itertools import starmap
from typing import TYPE_CHECKING, Any, Final

from portagpu.facts.captures.labels import COLLECTIVE, COLLECTIVE_LABELS, decode, to_json
from portagpu.facts.captures.model import (
    EVENT_COLUMNS,
    Kind,
    arrow,
    field_type,
    import_library,
    table,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

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


Columns = dict[str, Any]
"""Name -> Arrow array, of one batch."""
_TIMES: Final = ("start_ns", "end_ns", "name")
_DEVICE: Final = (*_TIMES, "device", "stream", "correlation")
_HOST: Final = (*_TIMES, "pid", "tid")
_USUAL: Final[dict[Kind, tuple[str, ...]]] = {
    "kernel": _DEVICE,
    "copy": (*_DEVICE, "bytes", "copy_kind"),
    "set": (*_DEVICE, "bytes"),
    "sync": _DEVICE,
    "api": (*_HOST, "correlation"),
    "range": (*_HOST, "domain", "payload"),
    "collective": (*_HOST, "operation", "bytes", "dtype", "group"),
}


class Words:
    """Texts in the order in which they are first used: the dictionary of a column of words."""

    def __init__(self) -> None:
        self._codes: dict[str, int] = {}
        self._lock = threading.Lock()

    def code(self, text: str) -> int:
        """The number of a text."""
        found = self._codes.get(text)
        if found is None:
            with self._lock:
                found = self._codes.setdefault(text, len(self._codes))
        return found

    @property
    def texts(self) -> list[str]:
        """All texts, by their numbers."""
        return list(self._codes)

    def of_texts(self, values: pa.Array, change: Callable[[str], str] | None = None) -> pa.Array:
        """The numbers of an array of UTF-8 bytes; an empty one gives null."""
        pa: Any = arrow()
        compact = values.dictionary_encode()
        texts = [decoded(each) for each in compact.dictionary.to_pylist()]
        codes = [self.code(change(each) if change else each) if each else None for each in texts]
        return pa.array(codes, pa.int32()).take(compact.indices)

    def column(self, codes: Sequence[pa.Array]) -> pa.ChunkedArray:
        """The column of words that has these numbers, batch by batch."""
        pa: Any = arrow()
        words = pa.array(self.texts, pa.string())
        chunks = [pa.DictionaryArray.from_arrays(each, words) for each in codes]
        return pa.chunked_array(chunks, pa.dictionary(pa.int32(), pa.string()))


class Numbered:
    """Texts that a file numbers; those that are used become words."""

    MISSING: Final = "(name missing)"
    _DENSE: Final = 1 << 22

    def __init__(self, texts: Mapping[int, str], words: Words | None = None) -> None:
        np: Any = import_library("numpy")
        self.words = words or Words()
        self._ids = np.fromiter(sorted(texts), np.int64, len(texts))
        self._texts = [texts[int(number)] for number in self._ids]
        self._texts.append(self.MISSING)
        self._codes = np.full(len(self._texts), -1, np.int32)
        self._dense = None
        if len(texts) and (span := int(self._ids[-1]) - int(self._ids[0]) + 1) <= self._DENSE:
            self._dense = np.full(span, len(texts), np.int64)
            self._dense[self._ids - self._ids[0]] = np.arange(len(texts))

    def of(self, numbers: pa.Array) -> pa.Array:
        """The words' numbers of an array of whole numbers; null stays null."""
        np: Any = import_library("numpy")
        places = self._places(numbers.fill_null(0).to_numpy(zero_copy_only=False))
        codes = self._codes[places]
        if (codes < 0).any():
            for place in np.unique(places[codes < 0]).tolist():
                self._codes[place] = self.words.code(self._texts[place])
            codes = self._codes[places]
        mask = numbers.is_null().to_numpy(zero_copy_only=False) if numbers.null_count else None
        return _from_numpy(codes, mask)

    def _places(self, numbers: Any) -> Any:
        np: Any = import_library("numpy")
        last = len(self._ids)
        if not last:
            return np.zeros(len(numbers), np.int64)
        if self._dense is not None:
            offset = numbers - self._ids[0]
            inside = (numbers >= self._ids[0]) & (numbers <= self._ids[-1])
            return np.where(inside, self._dense[np.where(inside, offset, 0)], last)
        places = np.minimum(np.searchsorted(self._ids, numbers), last - 1)
        return np.where(self._ids[places] == numbers, places, last)


def to_table(batches: Sequence[Columns], words: Mapping[str, Words], kind: Kind) -> pa.Table:
    """Batches of events as one table; codes of ``words`` become words.

    Without batches it has the columns that such files have of that kind, and no rows.
    """
    pa: Any = arrow()
    if not batches:
        return table({name: [] for name in _USUAL[kind]})
    columns = {}
    for name in EVENT_COLUMNS:
        if not any(name in batch for batch in batches):
            continue
        stored = pa.int32() if name in words else field_type(name)
        chunks = [
            batch[name] if name in batch else pa.nulls(len(batch["start_ns"]), stored)
            for batch in batches
        ]
        columns[name] = (
            words[name].column(chunks) if name in words else pa.chunked_array(chunks, stored)
        )
    return pa.table(columns)


def joined(parts: Sequence[pa.Table]) -> pa.Table:
    """Tables of events one below another, in the schema's order; what one of them lacks is null."""
    if len(parts) == 1:
        return parts[0]
    pa: Any = arrow()
    whole = pa.concat_tables(parts, promote_options="default").unify_dictionaries()
    return whole.select([name for name in EVENT_COLUMNS if name in whole.column_names])


def narrow(values: pa.Array, column: str) -> pa.Array:
    """Whole numbers as the type of a column; what does not fit is null."""
    pa: Any = arrow()
    kind = field_type(column)
    if values.type == kind:
        return values
    try:
        return values.cast(kind)
    except pa.ArrowInvalid:
        import pyarrow.compute as pc

        limit = 1 << 31
        fits = pc.and_(pc.less(values, limit), pc.greater_equal(values, -limit))
        return pc.if_else(fits, values, pa.scalar(None, values.type)).cast(kind)


def narrowed(batch: Columns, sources: Mapping[str, str], wanted: Collection[str]) -> Columns:
    """The wanted columns of the schema for which ``batch`` has the source."""
    return {
        column: narrow(batch[source], column)
        for column, source in sources.items()
        if source in batch and column in wanted
    }


def _from_numpy(values: Any, mask: Any = None) -> pa.Array:
    """Numbers as an Arrow array: pa.array() looks for pandas at each call, which takes longer."""
    pa: Any = arrow()
    if mask is not None:
        return pa.array(values, mask=mask)
    buffers = [None, pa.py_buffer(values)]
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), buffers)


def translated(numbers: pa.Array, values: Mapping[int, int]) -> pa.Array:
    """The value of each number; null where there is none."""
    import pyarrow.compute as pc

    pa: Any = arrow()
    keys = pa.array(list(values), pa.int64())
    found = pc.index_in(numbers, value_set=keys, skip_nulls=True)
    return pa.array(list(values.values()), pa.int64()).take(found)


def positive(values: pa.Array) -> pa.Array:
    """Numbers above 0; all others are null."""
    import pyarrow.compute as pc

    return pc.if_else(pc.greater(values, 0), values, None)


def decoded(raw: bytes) -> str:
    """A text of UTF-8; what is none of it is replaced."""
    return raw.decode("utf-8", "replace")


def take_apart(ranges: pa.Table) -> tuple[pa.Table, pa.Table | None]:
    """Ranges with name, domain and labels each in their column, and the collectives among them.

    The names of ``ranges`` are texts as :func:`portagpu.facts.captures.labels.encode` writes them,
    or any other. A domain that the source gives goes before that of the text, and a payload after
    its labels. The collectives are None where there is none; they are no longer among the ranges.
    """
    import pyarrow.compute as pc

    pa: Any = arrow()
    names = ranges.column("name").combine_chunks()
    if isinstance(names, pa.ChunkedArray):  # pyarrow 26 keeps a chunked array of no chunks
        return ranges, None
    decoded = [decode(each) if each is not None else None for each in names.dictionary.to_pylist()]
    if not any(each and (each[1] or each[2]) for each in decoded):
        return ranges, None

    def of_text(values: list[Any]) -> Any:
        return pa.array(values, pa.string()).take(names.indices)

    of_names = [each and each[0] for each in decoded]
    domains = of_text([(each[2] or None) if each else None for each in decoded])
    payloads = of_text([to_json(each[1]) if each and each[1] else None for each in decoded])
    columns = {"name": of_text(of_names), "domain": domains, "payload": payloads}
    for name in ("domain", "payload"):
        if name in ranges.column_names:
            given = ranges.column(name).cast(pa.string()).combine_chunks()
            ours = columns[name]
            # a payload next to labels is the same without their names, or with less of them
            columns[name] = pc.coalesce(*((ours, given) if name == "payload" else (given, ours)))
    whole = {name: ranges.column(name) for name in ranges.column_names} | columns
    ranges = table({name: whole[name] for name in EVENT_COLUMNS if name in whole})
    ours = pc.equal(pc.cast(ranges.column("domain"), pa.string()), COLLECTIVE).fill_null(False)
    if not pc.any(ours).as_py():
        return ranges, None
    return ranges.filter(pc.invert(ours)), _collectives(ranges.filter(ours))


def _collectives(ranges: pa.Table) -> pa.Table:
    labels = [json_object(text) for text in ranges.column("payload").to_pylist()]
    kept = [name for name in ranges.column_names if name not in ("domain", "payload")]
    columns: dict[str, Any] = {name: ranges.column(name) for name in kept}
    columns["operation"] = ranges.column("name")
    for label in COLLECTIVE_LABELS:
        columns[label] = [_fitting(each.get(label), EVENT_COLUMNS[label]) for each in labels]
    return table(columns)


def _fitting(value: object, kind: str) -> object:
    """The value where it is of the column's type, else None."""
    if kind == "word":
        return None if value is None else str(value)
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    limit = 1 << (31 if kind == "int32" else 63)
    return value if -limit <= value < limit else None
