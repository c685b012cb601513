"""What captures show: time by device, kernel, category and range, by unions of intervals; and how
long each operator of the host took, with and without the operators in it.

Nothing depends on the order of rows or on the format that they were read from. Ties are ordered by
name, and every computed number is rounded to DIGITS decimals.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from portagpu.facts.captures.model import KINDS, ON_DEVICE, import_library, table
from portagpu.traces.analysis.arrays import (
    BLOCK,
    DIGITS,
    NULL,
    by_code,
    in_two_threads,
    integers,
    median,
    percentiles,
    sums_by,
)
from portagpu.traces.analysis.device_times import (
    DeviceTimes,
    collective_rows,
    collectives_of,
    percent,
)
from portagpu.traces.analysis.kernel_names import classify
from portagpu.traces.analysis.model import (
    CATEGORY_COLUMNS,
    COLLECTIVE_COLUMNS,
    OPERATOR_COLUMNS,
    RANGE_COLUMNS,
    SUMMARY_COLUMNS,
    DeviceTime,
    Steps,
    Summary,
)
from portagpu.traces.analysis.ranges import (
    matching,
    path_on_host,
    paths_of_work,
    range_rows,
    ranges_of,
    steps_of,
)
from portagpu.traces.analysis.reading import joined
from portagpu.traces.analysis.work import calls_of, named, possible, work_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import numpy.typing as npt
    import pyarrow as pa

    from portagpu.facts.captures.model import Capture, CapturedDevice
    from portagpu.traces.analysis.device_times import Collectives
    from portagpu.traces.analysis.ranges import Ranges
    from portagpu.traces.analysis.work import Calls, Work


np: Any = import_library("numpy")

_FIGURES: Final = ("calls", "total_ns", "mean_ns", "median_ns", "p95_ns", "max_ns")


class Operators:
    """The operators of one capture.

    With ``shown``, a value for each path of ``ranges`` and one for none, only those that begin in
    such a range count.
    """

    def __init__(self, capture: Capture, ranges: Ranges, shown: npt.NDArray[Any] | None) -> None:
        self.rows: list[dict[str, Any]] = []
        """Rows of OPERATOR_COLUMNS but for the rank."""
        self.count: int | None = None
        """None where the source cannot have any."""
        self.impossible: int = 0
        table = capture.tables.get("operator")
        if table is None:
            return
        times = possible(table)
        self.impossible = times.impossible
        starts, ends = times.starts, times.ends
        codes, texts = named(table)
        # one code for each name, in the order of names
        names = sorted(set(texts))
        places = {name: place for place, name in enumerate(names)}
        codes = np.array([*(places[text] for text in texts), 0])[times.of(codes)]
        pids, tids = times.integers(table, "pid"), times.integers(table, "tid")
        if shown is not None:
            chosen = shown[path_on_host(ranges, pids, tids, starts)]
            starts, ends, codes, pids, tids = (
                each[chosen] for each in (starts, ends, codes, pids, tids)
            )
        self.count = len(starts)
        if not self.count:
            return
        calls = np.bincount(codes, minlength=len(names))
        used = np.flatnonzero(calls)
        calls = calls[used]
        durations = (ends - starts)[by_code(codes)]
        begins = np.cumsum(calls) - calls
        total = np.add.reduceat(durations, begins)
        middle, high = percentiles(durations, begins, calls)
        longest = np.maximum.reduceat(durations, begins)
        own = sums_by(codes, _self_times(pids, tids, starts, ends, codes), len(names))[used]
        lacking = np.bincount(codes[tids == NULL], minlength=len(names))[used]
        figures = (calls, total, total / calls, middle, high, longest)
        columns = (each.round(DIGITS).tolist() for each in (*figures, own, lacking))
        for place, *row, self_ns, without in zip(used.tolist(), *columns, strict=True):
            self.rows.append(
                dict(zip(_FIGURES, row, strict=True))
                | {"name": names[place] or None, "self_ns": None if without else self_ns}
            )


def _self_times(
    pids: npt.NDArray[Any],
    tids: npt.NDArray[Any],
    starts: npt.NDArray[Any],
    ends: npt.NDArray[Any],
    codes: npt.NDArray[Any],
) -> npt.NDArray[Any]:
    """How long each interval is the last one that was opened among those open on its thread.

    Where intervals nest, that is its time without those in it. Of two that begin at once, the
    shorter is within the longer, and of equal ones the last by code. Those without a thread have 0.
    """
    found = np.zeros(len(starts), np.int64)
    order = np.lexsort((codes, -ends, starts, tids, pids))
    order = order[tids[order] != NULL]
    if not len(order):
        return found
    pids, tids, starts, ends = (each[order] for each in (pids, tids, starts, ends))
    changes = (pids[1:] != pids[:-1]) | (tids[1:] != tids[:-1])
    threads = np.zeros(len(order), np.int64)
    np.cumsum(changes, out=threads[1:])
    firsts = np.append(0, np.flatnonzero(changes) + 1)
    # between two marks that follow one another, what is open does not change
    marks, of = np.concatenate((starts, ends)), np.concatenate((threads, threads))
    places = np.lexsort((marks, of))
    opened = np.cumsum(places < len(starts))
    marks, of = marks[places], of[places]
    lengths = np.where(of[1:] == of[:-1], marks[1:] - marks[:-1], 0)
    some = np.flatnonzero(lengths)
    last = _last_open(ends, opened[some], marks[some])
    inside = last >= firsts[of[some]]
    np.add.at(found, order[last[inside]], lengths[some][inside])
    return found


def _last_open(
    ends: npt.NDArray[Any], below: npt.NDArray[Any], times: npt.NDArray[Any]
) -> npt.NDArray[Any]:
    """For each of ``times`` the last place under ``below`` whose end is after it, or -1.

    A tree of maxima: up until a block has such an end, then down to it.
    """
    levels = [ends]
    while len(levels[-1]) > 1:
        under = levels[-1]
        under = np.append(under, NULL) if len(under) % 2 else under
        levels.append(np.maximum(under[0::2], under[1::2]))
    found = np.full(len(times), -1, np.int64)
    heights = np.zeros(len(times), np.int8)
    rest, stops = np.arange(len(times)), below.copy()
    for height, level in enumerate(levels):
        odd = (stops & 1) == 1
        stops -= odd
        hit = odd & (level[np.minimum(stops, len(level) - 1)] > times[rest])
        found[rest[hit]] = stops[hit]
        heights[rest[hit]] = height
        rest, stops = rest[~hit], stops[~hit] >> 1
        if not len(rest):
            break
    for height in range(int(heights.max(initial=0)), 0, -1):
        rows = np.flatnonzero((heights >= height) & (found >= 0))
        right = found[rows] * 2 + 1
        level = levels[height - 1]
        there = right < len(level)
        there[there] = level[right[there]] > times[rows[there]]
        found[rows] = right - ~there
    return found


NEEDED: Final = (
    "start_ns",
    "end_ns",
    "name",
    "pid",
    "tid",
    "device",
    "correlation",
    "bytes",
    "operation",
    "dtype",
    "group",
    "sequence",
)
"""The columns of events that a summary is made of."""


def summarize(
    captures: Sequence[Capture], *, device: int | None = None, within: str | None = None
) -> Summary:
    """Sum up what captures show together.

    :param captures: Mostly one for each rank of a run.
    :param device: Only this device of each capture counts, as if nothing else had run.
    :param within: Only what was started in ranges whose path, or that of a range around them,
        matches this glob.
    :returns: Tables and times; every time is in nanoseconds.
    """
    parts: list[_Part] = []
    problems: list[str] = []
    single = [each for capture in joined(captures, problems) for each in _by_rank(capture)]
    for rank, capture in zip(_ranks(single, problems), single, strict=True):
        part = _Part(rank, capture, device, within)
        problems += [f"{part.prefix(len(single))}{each}" for each in part.problems]
        parts.append(part)
    collectives, remarks = collective_rows([(part.rank, part.collectives) for part in parts])
    sources = tuple(dict.fromkeys(each.source for each in captures))
    return Summary(
        sources=sources,
        rows=_table([row for part in parts for row in part.rows], SUMMARY_COLUMNS),
        devices=tuple(time for part in parts for time in part.devices),
        ranges=_table([row for part in parts for row in part.ranges], RANGE_COLUMNS),
        collectives=table(collectives, COLLECTIVE_COLUMNS),
        steps=tuple(part.steps for part in parts if part.steps is not None),
        hardware=_distinct(each for capture in captures for each in capture.devices),
        api_ns=_added(part.api_ns for part in parts),
        events=_added(part.events for part in parts),
        messages=tuple(dict.fromkeys(each for capture in captures for each in capture.messages)),
        problems=tuple(dict.fromkeys([*problems, *remarks])),
        dropped=sum(capture.dropped for capture in captures)
        + sum(part.impossible for part in parts),
        details=_agreed(captures),
        categories=_table([row for part in parts for row in part.categories], CATEGORY_COLUMNS),
        operators=_table([row for part in parts for row in part.operators], OPERATOR_COLUMNS),
    )


class _Part:
    """What one capture shows."""

    def __init__(
        self, rank: int | None, capture: Capture, device: int | None, within: str | None
    ) -> None:
        self.rank = rank
        self.problems = list(capture.problems)
        self.devices: list[DeviceTime] = []
        self.rows: list[dict[str, Any]] = []
        self.categories: list[dict[str, Any]] = []
        calls = calls_of(capture)
        work = work_of(capture, calls)
        last = int(work.ends.max(initial=0))
        last = last if capture.span_ns is None else max(last, capture.span_ns[1])
        ranges = ranges_of(capture, calls, last)
        paths = paths_of_work(work, calls, ranges)
        self.collectives: Collectives = collectives_of(capture, work, calls)
        shown = np.ones(len(ranges.paths) + 1, bool)
        if device is not None or within is not None:
            rows = np.full(len(work.starts), True)
            if device is not None:
                rows &= work.devices == device
            if within is not None:
                shown = matching(ranges, within)
                rows &= False if paths is None else shown[paths]
            work = work.where(rows)
            paths = None if paths is None else paths[rows]
        self.ranges = [{"rank": rank, **row} for row in range_rows(work, paths, ranges, shown)]
        self.steps: Steps | None = steps_of(work, calls, ranges, rank)
        operators = Operators(capture, ranges, None if within is None else shown)
        self.operators = [{"rank": rank, **row} for row in operators.rows]
        self.api_ns = calls.by_name_ns
        self._of_devices(work, calls)
        if device is None and within is None:
            self._of_totals(capture)
        self.events: dict[str, int] = {
            str(kind): count for kind in KINDS if (count := capture.count(kind)) is not None
        }
        self.events |= {str(kind): count for kind, count in work.counts.items()}
        for kind, of in (("api", calls), ("range", ranges), ("operator", operators)):
            if of.count is not None:
                self.events[kind] = of.count
        parts = (work, calls, ranges, operators)
        self.impossible: int = sum(each.impossible for each in parts)
        if self.impossible:
            self.problems.append(
                f"{self.impossible} events end before they start, or have no sound times: left out"
            )
        if work.without_device:
            self.problems.append(
                f"{work.without_device} events do not say their device: counted to the first"
            )
        if ranges.unclosed:
            self.problems.append(
                f"{ranges.unclosed} ranges never closed: counted until the end of the capture"
            )

    def prefix(self, captures: int) -> str:
        """Whose problem it is, where there are several captures."""
        return f"rank {self.rank}: " if captures > 1 and self.rank is not None else ""

    def _of_devices(self, work: Work, calls: Calls) -> None:
        if isinstance(work.devices, int):
            numbers = [work.devices][: len(work.starts)]
        else:
            numbers = np.unique(work.devices).tolist()

        def of_device(number: int) -> tuple[Any, Any, DeviceTime]:
            own = work if len(numbers) == 1 else work.where(work.devices == number)
            return self._of_device(number, own, calls)

        for rows, categories, times in in_two_threads(of_device, numbers):
            self.rows += rows
            self.categories += categories
            self.devices.append(times)

    def _of_device(
        self, number: int, work: Work, calls: Calls
    ) -> tuple[list[dict[str, Any]], list[dict[str, Any]], DeviceTime]:
        times = DeviceTimes(work)
        rows = [
            {**row, "kind": name.kind, "name": name.name or None, "category": name.category}
            | {"library": name.library or None, "rule": name.rule or None}
            for name, row in zip(times.names, times.by_name(), strict=True)
        ]
        categories = [
            {**row, "kind": kind, "category": category}
            for (kind, category), row in zip(times.kinds, times.by_kind(), strict=True)
        ]
        kernel_sum = sum(row["total_ns"] for row in categories if row["kind"] == "kernel")
        for row in (*rows, *categories):
            whole = kernel_sum if row["kind"] == "kernel" else None
            row |= {"rank": self.rank, "device": number}
            row["percent_of_kernels"] = percent(row["total_ns"], whole)
        return (
            rows,
            categories,
            DeviceTime(
                rank=self.rank,
                device=number,
                wall_ns=times.wall_ns,
                busy_ns=times.busy_ns,
                idle_ns=times.wall_ns - times.busy_ns,
                kernel_sum_ns=kernel_sum,
                compute_ns=times.of["compute"],
                communication_ns=times.of["communication"],
                exposed_communication_ns=times.exposed["communication"],
                copy_ns=times.of["copy"],
                exposed_copy_ns=times.exposed["copy"],
                gaps=len(times.gaps),
                median_gap_ns=median(times.gaps),
                longest_gap_ns=int(times.gaps.max()) if len(times.gaps) else None,
                median_launch_ns=_median_launch(work, calls),
                by_category_ns=times.by_category,
            ),
        )

    def _of_totals(self, capture: Capture) -> None:
        """Rows from the sums of a tool that gives no events."""
        if capture.totals is None or self.rows:
            return
        given = capture.totals.to_pylist()
        sums: dict[int | None, int] = {}
        for each in given:
            if each.get("kind") == "kernel":
                of = each.get("device")
                sums[of] = sums.get(of, 0) + (each.get("total_ns") or 0)
        for each in given:
            kind, name, total = each.get("kind"), each.get("name"), each.get("total_ns")
            if kind == "api" and name and total:
                self.api_ns[name] = self.api_ns.get(name, 0) + total
            if kind == "operator":
                self.operators.append({"rank": self.rank, **each})
            if kind not in ON_DEVICE:
                continue
            row = dict.fromkeys(SUMMARY_COLUMNS) | each | {"rank": self.rank}
            row["category"] = "copy"
            if kind == "kernel":
                row["category"], library, rule = classify(name or "")
                row["library"], row["rule"] = library or None, rule or None
                row["percent_of_kernels"] = percent(total, sums[each.get("device")])
            self.rows.append({key: _rounded(value) for key, value in row.items()})


def _median_launch(work: Work, calls: Calls) -> float | None:
    """From the start of a call to that of its first kernel on the device."""
    if work.owners is None:
        return None
    none = np.iinfo(np.int64).max
    first = np.full(len(calls.starts), none)
    kernels = np.array([each.kind == "kernel" for each in work.names])
    for begin in range(0, len(work.starts), BLOCK):
        rows = slice(begin, begin + BLOCK)
        owners = work.owners[rows]
        some = (owners >= 0) & kernels[work.codes[rows]]
        np.minimum.at(first, owners[some], work.starts[rows][some])
    first -= calls.starts
    return median(first[first < none >> 1])


def _rounded(value: Any) -> Any:
    return round(value, DIGITS) if isinstance(value, float) else value


_TEXTS: Final = ("kind", "category", "name", "path")


def _table(rows: list[dict[str, Any]], columns: Mapping[str, str]) -> pa.Table:
    """The rows with the longest total first; ranges in the order of their paths."""

    def order(row: dict[str, Any]) -> tuple[Any, ...]:
        total, numbers = row.get("total_ns"), (row["rank"], row.get("device"))
        places = tuple(-1 if number is None else number for number in numbers)
        texts = tuple(row.get(name) or "" for name in _TEXTS)
        return (total is None, -(total or 0), *places, *texts)

    rows = sorted(rows, key=order)
    return table({name: [row.get(name) for row in rows] for name in columns}, columns)


def _by_rank(capture: Capture) -> list[Capture]:
    """One capture for each rank, where it has processes of several."""
    pids: dict[int, list[int]] = {}
    for process in capture.processes:
        if process.rank is not None:
            pids.setdefault(process.rank, []).append(process.pid)
    tables = [each for each in capture.tables.values() if each.num_rows]
    if len(pids) < 2 or not all("pid" in each.column_names for each in tables):
        return [capture]
    first = min(pids)
    others = [pid for rank in pids if rank != first for pid in pids[rank]]
    found: list[Capture] = []
    for rank in sorted(pids):
        # what belongs to no process of a rank stays with the first
        chosen = {
            kind: each.filter(
                _of_processes(each, others if rank == first else pids[rank], rank == first)
            )
            for kind, each in capture.tables.items()
        }
        own = tuple(each for each in capture.processes if each.rank == rank)
        found.append(
            replace(
                capture, tables=chosen, processes=own, problems=() if found else capture.problems
            )
        )
    return found


def _of_processes(of: pa.Table, pids: list[int], inverted: bool) -> npt.NDArray[Any]:
    known = integers(of, "pid")
    if known is None:
        return np.full(of.num_rows, inverted)
    return np.isin(known, pids, invert=inverted)


def _ranks(captures: Sequence[Capture], problems: list[str]) -> list[int | None]:
    """The rank of each capture, which is its own among them."""
    ranks = [each.rank for each in captures]
    if len(captures) < 2 or (None not in ranks and len(set(ranks)) == len(ranks)):
        return ranks
    what = "do not say which ranks they are" if None in ranks else "are of the same rank"
    problems.append(
        f"the captures {what}: they count as ranks, numbered in the order given; of several cycles "
        "or regions of a rank, give one"
    )
    return list(range(len(captures)))


def _distinct(devices: Iterable[CapturedDevice]) -> tuple[CapturedDevice, ...]:
    return tuple(sorted(dict.fromkeys(devices), key=lambda each: (each.index, repr(each))))


def _added(parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    found: dict[str, int] = {}
    for part in parts:
        for name, number in part.items():
            found[name] = found.get(name, 0) + number
    return dict(sorted(found.items()))


def _agreed(captures: Iterable[Capture]) -> dict[str, str]:
    """What the captures say of their conditions; values that differ stand side by side."""
    found: dict[str, dict[str, None]] = {}
    for capture in captures:
        for name, value in capture.details.items():
            found.setdefault(name, {})[value] = None
    return {name: ", ".join(sorted(values)) for name, values in sorted(found.items())}
