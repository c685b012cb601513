"""The reader of a file, among those of torch and of all vendors, and which captures are of one
process: files of different events, and passes with other counters.

Ranks of a run have the same kinds of events each, and the same counters. A process of which each
file has another kind (kernels, calls) has one clock. A program that was measured again for each set
of counters has the same kernels on the same devices in every pass, and other counters.
"""

from __future__ import annotations

import codecs
import dataclasses
import json
from collections import Counter
from dataclasses import replace
from functools import cache, partial
from importlib import import_module
from pathlib import Path, PurePath
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
from portagpu.base.text import excerpt, one_line
from portagpu.facts.captures.json_stream import unpacked
from portagpu.facts.captures.model import CapturedDevice, Source, ToolMessage, arrow, table
from portagpu.facts.formats.foreign_readers import reader_names
from portagpu.facts.readings.model import FormatError
from portagpu.traces.analysis import iprof, key_averages, kineto
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
    from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
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
    found: list[Reader] = [kineto, key_averages, iprof]
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
    if (reader := _reader_of(head, file)) is not None:
        some = getattr(reader, "read_columns", None) if columns else None
        found: Capture = some(file, columns) if some else reader.read(file)
        return found
    if is_document(head):
        raise FormatError(f"{file}: already a summary, which diff and diagnose read: give captures")
    if head[:1] == b"\x80" and head[1:2] in (b"\2", b"\3", b"\4", b"\5"):
        raise FormatError(
            f"{file}: a pickle, as of torch's memory snapshots: reading it could run a program in "
            "it, so it is not read; give a trace"
        )
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
    return _reader_of(head, file) is not None


def _reader_of(head: bytes, file: Path) -> Reader | None:
    # torch's is the first of all: vendors' packages are not loaded for its files
    if kineto.matches(head, file):
        return cast("Reader", kineto)
    return next((each for each in readers() if each.matches(head, file)), None)


_Group = list["Capture"]


def joined(captures: Sequence[Capture], problems: list[str]) -> list[Capture]:
    """One capture for each process that captures of one run are of, in their order.

    :param captures: those that say their rank are never joined.
    :param problems: gets a sentence where a process was measured several times.
    """
    if len(captures) < 2:
        return list(captures)
    files = [_of_files(group) for group in _grouped(captures, _place, _are_files)]
    found = []
    for group in _grouped(files, _launches, _are_passes):
        # the pass without counters was not slowed by them
        plain = min(group, key=lambda each: each.metrics is not None)
        if len(group) > 1:
            problems.append(
                f"{len(group)} files are passes of one process, which was measured again for other "
                f"counters: the times are those of {excerpt(PurePath(plain.source.path).name)}"
            )
        metrics = _tables(each.metrics for each in group)
        found.append(plain if len(group) == 1 else replace(plain, metrics=metrics))
    return found


def _grouped(
    captures: Iterable[Capture],
    key: Callable[[Capture], Hashable],
    fits: Callable[[_Group, Capture], bool],
) -> list[_Group]:
    """Captures with the same key that fit together; a key of None fits with none."""
    groups: list[_Group] = []
    by_key: dict[Hashable, list[_Group]] = {}
    for capture in captures:
        of = key(capture) if capture.rank is None else None
        known = by_key.setdefault(of, []) if of is not None else []
        group = next((group for group in known if fits(group, capture)), None)
        if group is not None:
            group.append(capture)
            continue
        groups.append([capture])
        known.append(groups[-1])
    return groups


def _place(capture: Capture) -> Hashable:
    """The folder, the format and the process of a file that is of at most one process."""
    pids = {each.pid for each in capture.processes}
    if len(pids) > 1 or capture.metrics is not None:
        return None
    return PurePath(capture.source.path).parent, capture.source.format, *pids


def _are_files(group: _Group, other: Capture) -> bool:
    return all(each.tables.keys().isdisjoint(other.tables) for each in group)


def _of_files(group: _Group) -> Capture:
    if len(group) == 1:
        return group[0]
    return replace(
        group[0],
        tables={kind: part for each in group for kind, part in each.tables.items()},
        devices=tuple({each.index: each for part in group for each in part.devices}.values()),
        processes=tuple(dict.fromkeys(each for part in group for each in part.processes)),
        totals=_tables(each.totals for each in group),
        messages=tuple(dict.fromkeys(each for part in group for each in part.messages)),
        problems=tuple(dict.fromkeys(each for part in group for each in part.problems)),
        dropped=sum(each.dropped for each in group),
        details={name: value for part in group for name, value in part.details.items()},
    )


def _launches(capture: Capture) -> Hashable:
    """How often each kernel ran on each device; None for a capture without kernels."""
    kernels = capture.tables.get("kernel")
    if kernels is None or not kernels.num_rows or "name" not in kernels.column_names:
        return None
    columns = [name for name in ("name", "device") if name in kernels.column_names]
    counted = kernels.group_by(columns).aggregate([([], "count_all")]).to_pydict()
    return capture.source.format, frozenset(Counter(zip(*counted.values(), strict=True)).items())


def _are_passes(group: _Group, other: Capture) -> bool:
    sets = [_counters(each) for each in (*group, other)]
    return len(set(sets)) == len(sets)


def _counters(capture: Capture) -> frozenset[str]:
    if capture.metrics is None:
        return frozenset()
    return frozenset(capture.metrics.column("metric").unique().to_pylist())


def _tables(parts: Iterable[Any]) -> Any:
    pa: Any = arrow()
    known = [each for each in parts if each is not None]
    if len(known) < 2:
        return known[0] if known else None
    return pa.concat_tables(known, promote_options="permissive").unify_dictionaries()
