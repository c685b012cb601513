"""The table that torch's ``prof.key_averages().table()`` prints, between other lines of a log.

The columns are those of ``_build_table`` in torch/autograd/profiler_util.py, since torch 1.7. One
row is the sum of one name (and of one shape, where it is grouped by shapes). A row without time on
the host is of the device. There an annotation has a row too, with the time from its first kernel to
its last: it has the name of a row of the host, and is not counted. A compiled kernel has the name
of a row of the host too, which then has its time as its own. Neither is an operator's time on the
device counted, which is that of its kernels. A table has as many rows as ``row_limit`` allows, and
says the total of all: what is missing to it is said.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Final

from portagpu.facts.captures.columns import FARTHEST_NS, Rows
from portagpu.facts.captures.model import TOTAL_COLUMNS, Capture, Kind, Source
from portagpu.facts.captures.text_tables import lines, time_scale
from portagpu.facts.readings.model import FormatError
from portagpu.traces.analysis.call_words import known_words

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

KIND: Final = "torch key_averages"
_HEADING: Final = re.compile(
    r"Name[ \t]+(?:Overload Name[ \t]+)?Self CPU %[ \t]+Self CPU[ \t]+CPU total %[ \t]+CPU total"
    r"[ \t]+CPU time avg(?P<device>[ \t]+Self \w{2,20}[ \t]+Self \w{2,20} %)?"
)
_HEADING_BYTES: Final = re.compile(_HEADING.pattern.encode())
_SHARE: Final = r"(?:-?\d{1,9}(?:\.\d{1,4})?%|NaN|0)"
_TIME: Final = r"-?\d{1,15}(?:\.\d{1,9})?(?:us|ms|s)"
_ROW: Final = re.compile(
    rf"(?P<name>\S(?:.{{0,300}}?\S)??)[ \t]+{_SHARE}[ \t]+(?P<self>{_TIME})[ \t]+{_SHARE}[ \t]+"
    rf"(?P<total>{_TIME})[ \t]+(?P<mean>{_TIME})(?:[ \t]+(?P<device_self>{_TIME})[ \t]+{_SHARE}"
    rf"[ \t]+(?P<device_total>{_TIME})[ \t]+(?P<device_mean>{_TIME}))?"
    r"(?:[ \t]+-?\d{1,12}(?:\.\d{1,4})? [KMGT]?[bB]){0,4}[ \t]+(?P<calls>\d{1,15})(?:[ \t]|$)"
)
_BEGUN: Final = re.compile(r"\S[ \t]+(?:-?\d{1,9}(?:\.\d{1,4})?%|NaN)[ \t]*(?:-?\d|$)")
_STATED: Final = re.compile(rf"Self (\w{{2,20}}) time total: ({_TIME})[ \t]*$")
_CALL: Final = re.compile(r"(?:ze|ur)[A-Z]\w*")
"""Calls of interfaces that belong to no vendor: oneAPI's Level Zero and Unified Runtime."""
_MAX_ROW: Final = 2048
"""Characters of a line that are looked at: shapes and stacks come last."""
_ROUNDED: Final = 0.002
"""A time of milliseconds or seconds has three decimals: so much two sums of them may differ."""


@dataclass(frozen=True, slots=True)
class _Row:
    name: str
    calls: int
    self_ns: int
    total_ns: int
    mean_ns: float
    device_ns: int | None
    device_mean_ns: float

    @property
    def of_device(self) -> bool:
        return not (self.self_ns or self.total_ns) and bool(self.device_ns)


@dataclass(slots=True)
class _Table:
    has_device: bool
    rows: list[_Row] = field(default_factory=list)
    unread: int = 0
    stated: dict[str, str] = field(default_factory=dict)
    """ "CPU" and the device's name -> the total that the table states, as it is written."""


def matches(head: bytes, path: Path) -> bool:
    """Whether a line of it is the heading of such a table."""
    return _HEADING_BYTES.search(head) is not None


def read(path: Path) -> Capture:
    """The sums of the first profile in the file. Raises FormatError without a row."""
    problems: list[str] = []
    first: _Table | None = None
    others = unread = 0
    for each in _tables(path, problems):
        unread += each.unread
        if first is None:
            first = each if each.rows else None
        elif each.stated and each.stated == first.stated:
            # the same profile in another order, perhaps with rows that the first had no place for
            known = set(first.rows)
            first.rows += [row for row in each.rows if row not in known]
        else:
            others += len(each.rows)
    if first is None:
        raise FormatError(f"{path}: torch's table of averages has no whole row: give its output")
    if unread:
        problems.append(f"lines that cannot be read: {unread:,} are left out")
    if others:
        problems.append(
            f"tables of other profiles follow: their {others:,} rows are left out; give each table "
            "a file of its own"
        )
    found = Rows(TOTAL_COLUMNS)
    hosts = {row.name: row.device_ns or 0 for row in first.rows if not row.of_device}
    counted = device_ns = kernels = annotations = 0
    for row in first.rows:
        if row.of_device:
            device_ns += row.device_ns or 0
            if row.name.startswith("ProfilerStep") or not _launched(row, hosts.get(row.name)):
                annotations += 1
                continue
            counted += row.device_ns or 0
        kind = _kind_of(row)
        kernels += kind == "kernel"
        found.add(
            {
                "kind": [kind],
                "name": [row.name],
                "calls": [row.calls],
                "total_ns": [row.device_ns if row.of_device else row.total_ns],
                "self_ns": [None if row.of_device else row.self_ns],
                "mean_ns": [row.device_mean_ns if row.of_device else row.mean_ns],
            }
        )
    problems += _missing(first, counted, device_ns, kernels)
    details = {"annotations on the device that are not counted": str(annotations)}
    return Capture(
        source=Source(str(path), KIND, "torch"),
        totals=found.table(),
        problems=tuple(problems),
        dropped=unread + others,
        details=details if annotations else {},
    )


def _kind_of(row: _Row) -> Kind:
    if row.of_device:
        if row.name.startswith("Memset"):
            return "set"
        return "copy" if row.name.startswith("Memcpy") else "kernel"
    known = (_CALL, *known_words().every)
    return "api" if any(each.fullmatch(row.name) for each in known) else "operator"


def _launched(row: _Row, on_host_ns: int | None) -> bool:
    """Whether a row of the device is of what runs there, by the row of the host of its name."""
    return on_host_ns is None or _near(on_host_ns, row.device_ns or 0)


def _near(one_ns: int, other_ns: int) -> bool:
    return abs(one_ns - other_ns) <= other_ns * _ROUNDED


def _missing(found: _Table, counted_ns: int, device_ns: int, kernels: int) -> Iterator[str]:
    """What the table has no rows of, by the totals that it states."""
    if found.has_device and not kernels:
        yield (
            "no row is of a kernel: the table has time on the device by operator only; give the "
            "trace, or a table with more rows"
        )
        return
    text = next((each for name, each in found.stated.items() if name != "CPU"), "")
    whole = round(_nanoseconds(text)) if text else 0
    if found.has_device and not text:
        yield "the table does not end with the total of the device: rows may be missing"
    # older versions add annotations to the total
    if not whole or _near(counted_ns, whole) or _near(device_ns, whole):
        return
    if counted_ns > whole:
        why = "one of them is an annotation, with the time of the kernels in it"
    else:
        why = "the others are not in the table (row_limit)"
        why += ", or the total has annotations in it" if device_ns > counted_ns else ""
    share = counted_ns / whole
    yield f"rows of the device have {share:.1%} of the total that torch states: {why}"


def _tables(path: Path, problems: list[str]) -> Iterator[_Table]:
    table: _Table | None = None
    prefix, in_rows = "", False
    for line in lines(path, problems):
        text = line[:_MAX_ROW].rstrip()
        heading = _HEADING.search(text)
        if heading is not None:
            if table is not None:
                yield table
            table, in_rows = _Table(heading["device"] is not None), True
            prefix = text[: heading.start()].rstrip()
        elif table is None:
            continue
        elif (stated := _STATED.search(text)) is not None:
            in_rows = False
            table.stated.setdefault(stated[1], stated[2])
        elif in_rows and ("%" in text or "NaN" in text):
            row = _row(text.removeprefix(prefix), table.has_device)
            if row is not None:
                table.rows.append(row)
            elif _BEGUN.search(text):
                table.unread += 1
    if table is not None:
        yield table


def _row(text: str, has_device: bool) -> _Row | None:
    found = _ROW.match(text.lstrip())
    if found is None or (found["device_self"] is not None) is not has_device:
        return None
    names = ("self", "total", "mean", "device_self", "device_total", "device_mean")
    times = {name: _nanoseconds(found[name] or "0us") for name in names}
    if any(not 0 <= each < FARTHEST_NS for each in times.values()):
        # older versions took times of two clocks from each other
        return None
    return _Row(
        name=found["name"],
        calls=int(found["calls"]),
        self_ns=round(times["self"]),
        total_ns=round(times["total"]),
        mean_ns=float(times["mean"]),
        device_ns=round(times["device_self"]) if has_device else None,
        device_mean_ns=float(times["device_mean"]),
    )


def _nanoseconds(text: str) -> Decimal:
    number = text.rstrip("mus")
    return Decimal(number) * (time_scale(f"({text[len(number) :]})") or 1)
