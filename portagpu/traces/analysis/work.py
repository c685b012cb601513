"""What ran on the devices of one capture, and the calls of the host that started it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from portagpu.facts.captures.model import ON_DEVICE, import_library
from portagpu.traces.analysis.arrays import (
    BLOCK,
    LIMIT,
    NULL,
    in_two_threads,
    integers,
    order_of,
    sums_by,
    words,
)
from portagpu.traces.analysis.kernel_names import classify

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa

    from portagpu.facts.captures.model import Capture, Kind

np: Any = import_library("numpy")

MAX_NS: Final = 1 << 53
"""104 days: nothing on a device, and no call or range, takes longer."""


class Times(NamedTuple):
    """Starts and ends of the possible rows of a table, and which these are."""

    starts: npt.NDArray[Any]
    ends: npt.NDArray[Any]
    kept: npt.NDArray[Any] | None
    """The mask of the possible rows; None for all."""
    impossible: int

    def of(self, values: npt.NDArray[Any] | None) -> Any:
        """Those of ``values`` whose rows are possible; None stays None."""
        return values if values is None or self.kept is None else values[self.kept]

    def integers(self, table: pa.Table, name: str) -> npt.NDArray[Any]:
        """A column of the possible rows of their table, NULL where it has no value."""
        values = self.of(integers(table, name))
        found: npt.NDArray[Any] = np.full(len(self.starts), NULL) if values is None else values
        return found


def possible(table: pa.Table, *, open_end: int | None = None) -> Times:
    """The rows whose times can be: from a start to a later end, on a clock that is not broken.

    ``open_end`` is the end of a row that has none.
    """
    starts, ends = integers(table, "start_ns"), integers(table, "end_ns")
    if starts is not None and open_end is not None:
        given = np.full(len(starts), NULL) if ends is None else ends
        ends = np.where(given == NULL, np.maximum(open_end, starts), given)
    if starts is None or ends is None:
        nothing = np.zeros(0, np.int64)
        return Times(nothing, nothing, np.zeros(table.num_rows, bool), table.num_rows)
    if _sound(starts, ends):
        return Times(starts, ends, None, 0)
    durations = ends - starts
    wrong = (starts <= -LIMIT) | (ends >= LIMIT) | (durations < 0) | (durations > MAX_NS)
    most = MAX_NS
    while durations[~wrong].sum(dtype=np.float64) >= LIMIT:
        # sums of such durations would not fit into 64 bits
        most >>= 1
        wrong |= durations > most
    kept = ~wrong
    return Times(starts[kept], ends[kept], kept, int(wrong.sum()))


def _sound(starts: npt.NDArray[Any], ends: npt.NDArray[Any]) -> bool:
    total = 0.0
    for first in range(0, len(starts), BLOCK):
        begins, stops = starts[first : first + BLOCK], ends[first : first + BLOCK]
        durations = stops - begins
        if begins.min() <= -LIMIT or stops.max() >= LIMIT:
            return False
        if durations.min() < 0 or durations.max() > MAX_NS:
            return False
        total += float(durations.sum())
    return total < LIMIT


def named(table: pa.Table) -> tuple[npt.NDArray[Any], list[str]]:
    """The code of each row's name, and the names: short where a row has no other, "" for none."""
    found = words(table, "name")
    codes, given = found if found is not None else (np.full(table.num_rows, -1, np.int32), [])
    texts = [text or "" for text in given]
    if len(codes) and codes.min() < 0:
        short = words(table, "short_name")
        own, others = short if short is not None else (np.full(len(codes), -1, np.int32), [])
        own = np.where(own < 0, len(others), own) + len(texts)
        codes = np.where(codes < 0, own.astype(np.int32), codes)
        texts = [*texts, *(text or "" for text in others), ""]
    return codes, texts


@dataclass(frozen=True, slots=True)
class Calls:
    """Calls of the runtime in the order of their start."""

    starts: npt.NDArray[Any]
    pids: npt.NDArray[Any] | None
    tids: npt.NDArray[Any] | None
    correlations: npt.NDArray[Any] | None
    by_name_ns: dict[str, int]
    count: int | None
    """None where the source cannot have any."""
    impossible: int = 0


def calls_of(capture: Capture) -> Calls:
    """The calls of the runtime in ``capture``."""
    table = capture.tables.get("api")
    if table is None:
        return Calls(np.zeros(0, np.int64), None, None, None, {}, None)
    times = possible(table)
    codes, texts = named(table)
    codes = times.of(codes)
    sums = np.zeros(len(texts), np.int64)
    for first in range(0, len(codes), BLOCK):
        rows = slice(first, first + BLOCK)
        sums += sums_by(codes[rows], times.ends[rows] - times.starts[rows], len(texts))
    by_name: dict[str, int] = {}
    for name, ns in zip(texts, sums.tolist(), strict=True):
        if name and ns:
            by_name[name] = by_name.get(name, 0) + ns
    order = order_of(times.starts)
    columns = [times.of(integers(table, name)) for name in ("pid", "tid", "correlation")]
    starts, pids, tids, correlations = (
        each if each is None or order is None else each[order] for each in (times.starts, *columns)
    )
    return Calls(starts, pids, tids, correlations, by_name, len(starts), times.impossible)


class Name(NamedTuple):
    """What a group of events on a device is called, and what it does."""

    kind: Kind
    category: str
    name: str
    library: str
    rule: str

    @property
    def slot(self) -> str:
        """ "compute", "communication" or "copy": what the device does meanwhile."""
        if self.kind != "kernel":
            return "copy"
        return "communication" if self.category == "communication" else "compute"


@dataclass(frozen=True, slots=True)
class Work:
    """Kernels, copies and sets in the order of their start; arrays of one length."""

    starts: npt.NDArray[Any]
    ends: npt.NDArray[Any]
    names: tuple[Name, ...]
    codes: npt.NDArray[Any]
    """Places in ``names``."""
    devices: npt.NDArray[Any] | int
    """The number of each row's device; one for all."""
    owners: npt.NDArray[Any] | None
    """The place of the call that started each row, -1 where none is known; None where the capture
    cannot say."""
    streams: npt.NDArray[Any] | None
    sized: npt.NDArray[Any]
    """Rows of copies and sets that state their bytes."""
    sizes: npt.NDArray[Any]
    """The bytes of ``sized``."""
    counts: dict[Kind, int]
    """How many events of each kind that the source could have."""
    impossible: int = 0
    without_device: int = 0

    def where(self, chosen: npt.NDArray[Any]) -> Work:
        """The rows for which the mask ``chosen`` holds."""
        rows = np.flatnonzero(chosen)
        codes = self.codes[rows]
        calls = np.bincount(codes, minlength=len(self.names)).tolist()
        counts = dict.fromkeys(self.counts, 0)
        for name, count in zip(self.names, calls, strict=True):
            counts[name.kind] += count
        sized = chosen[self.sized]
        return Work(
            self.starts[rows],
            self.ends[rows],
            self.names,
            codes,
            self.devices if isinstance(self.devices, int) else self.devices[rows],
            None if self.owners is None else self.owners[rows],
            None if self.streams is None else self.streams[rows],
            np.searchsorted(rows, self.sized[sized]),
            self.sizes[sized],
            counts,
            self.impossible,
            self.without_device,
        )

    def having(self, wanted: list[bool]) -> npt.NDArray[Any]:
        """The mask of the rows whose name is ``wanted``, a value for each of ``names``."""
        return np.array([*wanted, False])[self.codes]

    def kernels(self) -> npt.NDArray[Any]:
        """The mask of the kernels."""
        return self.having([each.kind == "kernel" for each in self.names])


def work_of(capture: Capture, calls: Calls) -> Work:
    """What ran on the devices of ``capture``, and which of its ``calls`` started it."""
    ranges = capture.tables.get("range")
    with_streams = ranges is not None and integers(ranges, "device") is not None
    with_calls = calls.correlations is not None
    first = min((each.index for each in capture.devices), default=0)
    names: list[Name] = []
    counts: dict[Kind, int] = {}
    empty = np.zeros(0, np.int64)
    merged: dict[str, Any] = {"starts": empty, "ends": empty, "codes": empty.astype(np.int32)}
    merged |= {"devices": first, "owners": None, "streams": None, "sizes": None}
    impossible = without_device = 0
    for kind in ON_DEVICE:
        table = capture.tables.get(kind)
        if table is None:
            continue
        times = possible(table)
        counts[kind] = size = len(times.starts)
        impossible += times.impossible
        if not size:
            continue
        codes, own = _names(kind, table)
        devices = times.of(integers(table, "device"))
        if devices is None:
            without_device += size
            devices = np.array([first])
        elif lacking := int((devices == NULL).sum()):
            without_device += lacking
            devices = np.where(devices == NULL, first, devices)
        part = {"starts": times.starts, "ends": times.ends, "codes": times.of(codes)}
        part["codes"] = part["codes"] + np.int32(len(names)) if names else part["codes"]
        one = int(devices.min()) == int(devices.max())
        part["devices"] = int(devices[0]) if one else devices.astype(np.int32)
        part["streams"] = times.of(integers(table, "stream")) if with_streams else None
        part["sizes"] = None if kind == "kernel" else times.of(integers(table, "bytes"))
        for column in ("pid", "correlation"):
            part[column] = times.of(integers(table, column)) if with_calls else None
        names += own
        # with millions of rows each array counts
        del times, codes, devices
        part = _in_order(part, names)
        # in the order of time most calls are near one another too
        part["owners"] = _started_by(part.pop("correlation"), part.pop("pid"), calls)
        merged = _merged(merged, part)
    sizes = merged["sizes"]
    sized = empty if sizes is None else np.flatnonzero(sizes != NULL)
    return Work(
        merged["starts"],
        merged["ends"],
        tuple(names),
        merged["codes"],
        merged["devices"],
        merged["owners"],
        merged["streams"],
        sized,
        sized if sizes is None else sizes[sized],
        counts,
        impossible,
        without_device if len(capture.devices) > 1 else 0,
    )


def _names(kind: Kind, table: pa.Table) -> tuple[npt.NDArray[Any], list[Name]]:
    """The code of each row, and what the codes mean."""
    codes, texts = named(table)
    if kind != "kernel":
        return codes, [Name(kind, "copy", each or kind, "", "") for each in texts]
    found = [classify(each) for each in texts]
    return codes, [
        Name(kind, of.category, name, of.library, of.rule)
        for name, of in zip(texts, found, strict=True)
    ]


def _in_order(part: dict[str, Any], names: list[Name]) -> dict[str, Any]:
    """The rows by start, end and name, so that sums of floats are the same in any order of rows."""
    starts = part["starts"]
    order = order_of(starts)
    if order is not None:
        starts = starts[order]
    ties = np.flatnonzero(starts[1:] == starts[:-1])
    if len(ties):
        rows = np.union1d(ties, ties + 1)
        order = np.arange(len(starts)) if order is None else order
        ranked = np.empty(len(names), np.int64)
        ranked[sorted(range(len(names)), key=names.__getitem__)] = np.arange(len(names))
        there = order[rows]
        keys = (ranked[part["codes"][there]], part["ends"][there], starts[rows])
        order[rows] = there[np.lexsort(keys)]
    if order is None:
        return part
    arrays = [
        key
        for key, each in part.items()
        if key != "starts" and each is not None and not isinstance(each, int)
    ]
    sorted_arrays = in_two_threads(lambda key: part[key][order], arrays)
    # rows of one start changed places among themselves alone
    return part | dict(zip(arrays, sorted_arrays, strict=True)) | {"starts": starts}


def _merged(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """The rows of both, which are by start; at one start those of ``one`` come first."""
    size, more = len(one["starts"]), len(other["starts"])
    if not size:
        return other
    places = np.searchsorted(one["starts"], other["starts"], side="right") + np.arange(more)
    rest = np.ones(size + more, bool)
    rest[places] = False

    def column(old: Any, new: Any, null: int) -> Any:
        if old is None and new is None:
            return None
        if isinstance(old, int) and isinstance(new, int) and old == new:
            return old
        whole = np.empty(size + more, np.int64 if new is None else np.asarray(new).dtype)
        whole[rest] = null if old is None else old
        whole[places] = null if new is None else new
        return whole

    nulls = {"owners": -1}
    return {key: column(one.pop(key), other.pop(key), nulls.get(key, NULL)) for key in [*one]}


def _started_by(
    keys: npt.NDArray[Any] | None, pids: npt.NDArray[Any] | None, calls: Calls
) -> npt.NDArray[Any] | None:
    """The place of the call with each correlation, -1 where none is known.

    A call and its work have the same correlation, which is not 0, and are of the same process
    where both sides know it: processes count from the same numbers. Of several such calls, one
    within another, it is the first. None where one side has no correlations.
    """
    if keys is None or calls.correlations is None or not len(calls.correlations):
        return None
    found = np.full(len(keys), -1, np.int64)
    processes = np.unique(pids) if pids is not None and calls.pids is not None else [NULL]
    # a source that writes something else there, as the number of a device, has no process
    split = len(processes) > 1 and np.isin(processes, calls.pids).all()
    for pid in processes if split else [NULL]:
        rows = np.flatnonzero(pids == pid) if split else np.arange(len(keys))
        places = np.flatnonzero(calls.pids == pid) if split else None
        ids = calls.correlations if places is None else calls.correlations[places]
        order = order_of(ids)
        if order is not None:
            ids = ids[order]
            places = order if places is None else places[order]
        for first in range(0, len(rows), BLOCK):
            here = rows[first : first + BLOCK]
            wanted = keys[here]
            at = np.searchsorted(ids, wanted)
            at[at == len(ids)] = 0
            missing = (ids[at] != wanted) | (wanted == 0) | (wanted == NULL)
            at = at if places is None else places[at]
            at[missing] = -1
            found[here] = at
    return found
