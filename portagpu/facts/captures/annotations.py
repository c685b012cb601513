"""Ranges that carry our own labels, apart from those of other programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from portagpu.facts.captures.arrow import arrow
from portagpu.facts.captures.columns import json_object
from portagpu.facts.captures.labels import COLLECTIVE, COLLECTIVE_LABELS, decode, to_json
from portagpu.facts.captures.model import EVENT_COLUMNS, table

if TYPE_CHECKING:
    import pyarrow as pa


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
            # a payload beside labels is the same without their names, or with less of them
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
