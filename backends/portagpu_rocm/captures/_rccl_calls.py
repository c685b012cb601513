"""Calls of RCCL in rocpd, by their arguments: collectives with bytes, type and group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from portagpu.facts.captures.columns import Words, decoded, translated
from portagpu.facts.captures.model import arrow, import_library
from portagpu_rocm.captures._rocprof import OPERATIONS

if TYPE_CHECKING:
    import pyarrow as pa

    from portagpu.facts.captures.columns import Columns
    from portagpu.facts.captures.sqlite import SqliteFile
    from portagpu.facts.captures.sqlite_batches import Type

_TYPES: Final = (
    # the numbers of ncclDataType_t (rccl.h), as torch names them, and their bytes
    ("int8", 1, "ncclInt8"),
    ("uint8", 1, "ncclUint8"),
    ("int32", 4, "ncclInt32"),
    ("uint32", 4, "ncclUint32"),
    ("int64", 8, "ncclInt64"),
    ("uint64", 8, "ncclUint64"),
    ("float16", 2, "ncclFloat16"),
    ("float32", 4, "ncclFloat32"),
    ("float64", 8, "ncclFloat64"),
    ("bfloat16", 2, "ncclBfloat16"),
    ("float8_e4m3fn", 1, "ncclFloat8e4m3"),
    ("float8_e5m2", 1, "ncclFloat8e5m2"),
)
_ARGUMENTS: Final = ("count", "sendcount", "recvcount", "datatype", "comm")
"""The arguments of RCCL's calls that are read, in the order in which they are used."""


class Span(NamedTuple):
    """Numbers of events from ``first`` to ``last``."""

    first: int
    last: int

    @property
    def size(self) -> int:
        """How many numbers."""
        return self.last - self.first + 1

    def places(self, events: pa.Array) -> Any:
        """Where events are in an array of all these numbers; all others come after it."""
        numbers = events.fill_null(0).to_numpy(zero_copy_only=False)
        inside = (numbers >= self.first) & (numbers <= self.last)
        return import_library("numpy").where(inside, numbers - self.first, self.size)


def span_of(calls: list[Columns], last_event: int) -> Span:
    """From the lowest to the highest number of the known events of some calls."""
    import pyarrow.compute as pc

    found = [pc.min_max(each["event"]).as_py() for each in calls]
    known = [each for each in found if each["min"] is not None]
    if not known:
        return Span(1, 0)
    first = max(1, min(each["min"] for each in known))
    last = min(last_event, max(each["max"] for each in known))
    return Span(first, max(last, first - 1))


def give_arguments(
    calls: list[Columns], names: Words, file: SqliteFile, table: str, last_event: int
) -> dict[str, Words]:
    """Give RCCL's calls operation, bytes, type and group, by the arguments in ``table``.

    ``names`` are the words of the calls' names. Returns the words of the new columns.
    """
    if not calls:
        return {}
    pa, np = arrow(), import_library("numpy")
    span = span_of(calls, last_event)
    texts, codes = _arguments(file, table, span)
    sizes = np.asarray([int(each) if _is_count(each) else -1 for each in texts])
    by_text = {str(place): place for place in range(len(_TYPES))}
    by_text |= {kind[2]: place for place, kind in enumerate(_TYPES)}
    kinds = np.asarray([by_text.get(text, -1) for text in texts])
    bytes_of = np.asarray([*(kind[1] for kind in _TYPES), 0])
    operations, types, groups = Words(), Words(), Words()
    for text in OPERATIONS.values():
        operations.code(text)
    for kind in _TYPES:
        types.code(kind[0])
    by_name = {
        names.code(f"nccl{text}"): operations.code(word) for text, word in OPERATIONS.items()
    }
    for each in calls:
        count, sent, received, kind, group = codes[:, span.places(each["event"])]
        count = np.where(count >= 0, count, np.where(sent >= 0, sent, received))
        items, kind = sizes[count], kinds[kind]
        unknown = (items < 0) | (kind < 0)
        each["bytes"] = pa.array(items * bytes_of[kind], pa.int64(), mask=unknown)
        each["dtype"] = pa.array(kind.astype(np.int32), mask=kind < 0)
        named = {code: groups.code(texts[code]) for code in np.unique(group[group >= 0]).tolist()}
        each["group"] = translated(pa.array(group, pa.int64()), named).cast(pa.int32())
        each["operation"] = translated(each["name"].cast(pa.int64()), by_name).cast(pa.int32())
    return {"operation": operations, "dtype": types, "group": groups}


def _arguments(file: SqliteFile, table: str, span: Span) -> tuple[list[str], Any]:
    """Texts, the last of which is empty; and by argument and event the place of its text, or -1."""
    pa, np = arrow(), import_library("numpy")
    given = Words()
    codes = np.full((len(_ARGUMENTS), span.size + 1), -1, np.int32)

    def convert(batch: Columns) -> Columns:
        if len(batch) < len(columns):
            return {}
        compact = batch["name"].dictionary_encode()
        texts = map(decoded, compact.dictionary.to_pylist())
        which = [_ARGUMENTS.index(text) if text in _ARGUMENTS else -1 for text in texts]
        argument = np.asarray([*which, -1], np.int8)[compact.indices.to_numpy()]
        places = span.places(batch["event_id"])
        chosen = (argument >= 0) & (places < span.size)
        values = given.of_texts(batch["value"].filter(pa.array(chosen))).fill_null(-1)
        codes[argument[chosen], places[chosen]] = values.to_numpy()
        return {}

    columns: dict[str, Type] = {"event_id": "whole", "name": "text", "value": "text"}
    # arguments follow in the order of events, and there is no index: those of the HIP calls, often
    # many more, are left out
    first, last = (file.first_row(table, "event_id", n) for n in (span.first, span.last + 1))
    between = (first, last) if first is not None and last is not None else None
    file.batches(table, columns, convert, between)
    if between and (codes[:, :-1] < 0).all():
        file.batches(table, columns, convert)
    return [*given.texts, ""], codes


def _is_count(text: str) -> bool:
    """Whether a text is a number of items whose bytes 64 bits can hold."""
    return text.isascii() and text.isdigit() and len(text) < 18
