"""Batches of columns from files as tables of events: words, numbered texts, and types."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final

from portagpu.facts.captures.arrow import arrow, import_library
from portagpu.facts.captures.model import EVENT_COLUMNS, Kind, field_type, table

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pyarrow as pa

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
