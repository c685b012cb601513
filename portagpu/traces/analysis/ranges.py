"""Which annotated range started what on the devices, and the steps of a run.

Work on a device belongs to the call of the runtime with its correlation; the call belongs to the
innermost range of its own thread that is open when it starts. Work without such a call belongs to
the innermost range on its own device, where the capture has ranges there.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from portagpu.facts.captures.model import import_library
from portagpu.traces.analysis.arrays import (
    BLOCK,
    DIGITS,
    NULL,
    by_code,
    integers,
    order_of,
    sums_by,
    union_ns_by,
)
from portagpu.traces.analysis.model import Steps
from portagpu.traces.analysis.work import named, possible

if TYPE_CHECKING:
    import numpy.typing as npt

    from portagpu.facts.captures.model import Capture
    from portagpu.traces.analysis.work import Calls, Work

np: Any = import_library("numpy")

_MAX_DEPTH: Final = 100
"""Of ranges in ranges: one that a program opens in each step and never closes is around all later
ones, and the names of their paths would fill any memory."""
_NUMBERED: Final = re.compile(r"(.*?)(\d{1,18})$", re.DOTALL)


class Path(NamedTuple):
    """Names from the outermost range; ``parent`` is the place of the path without the last."""

    name: str
    parent: int
    depth: int


@dataclass(frozen=True, slots=True)
class _Nest:
    """Ranges on lines of two keys (process and thread; device and stream), by line and start.

    ``parents`` are places of the ranges around them, or -1.
    """

    keys: npt.NDArray[Any]
    """One row of two integers for each line, sorted."""
    lines: npt.NDArray[Any]
    starts: npt.NDArray[Any]
    ends: npt.NDArray[Any]
    parents: npt.NDArray[Any]
    paths: npt.NDArray[Any]

    def innermost(
        self, first: npt.NDArray[Any], second: npt.NDArray[Any], times: npt.NDArray[Any]
    ) -> npt.NDArray[Any]:
        """For each time on a line the place of the innermost open range, or -1."""
        found = np.full(len(times), -1, np.int64)
        lines = self._lines_of(first, second)
        bounds = np.searchsorted(self.lines, np.arange(len(self.keys) + 1)).tolist()
        order = by_code(lines + 1)
        some = np.searchsorted(lines[order], np.arange(len(self.keys) + 1)).tolist()
        for line in np.unique(lines[lines >= 0]).tolist():
            rows = order[some[line] : some[line + 1]]
            begin, end = bounds[line], bounds[line + 1]
            at = np.searchsorted(self.starts[begin:end], times[rows], side="right") - 1 + begin
            at[at < begin] = -1
            while True:
                closed = np.flatnonzero((at >= 0) & (self.ends[at] <= times[rows]))
                if not len(closed):
                    break
                at[closed] = self.parents[at[closed]]
            found[rows] = at
        return found

    def path_at(self, places: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The path of each range; -1 for -1."""
        return np.append(self.paths, -1)[places]

    def _lines_of(self, first: npt.NDArray[Any], second: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The line of each pair of keys, or -1."""
        code, known = np.zeros(len(first), np.int64), np.ones(len(first), bool)
        of_keys = np.zeros(len(self.keys), np.int64)
        for place, values in enumerate((first, second)):
            kinds = np.unique(self.keys[:, place])
            at = np.searchsorted(kinds, values)
            at[at == len(kinds)] = 0
            known &= kinds[at] == values
            code = code * len(kinds) + at
            of_keys = of_keys * len(kinds) + np.searchsorted(kinds, self.keys[:, place])
        lines = np.searchsorted(of_keys, code)
        lines[lines == len(of_keys)] = 0
        known &= of_keys[lines] == code
        lines[~known] = -1
        return lines


@dataclass(frozen=True, slots=True)
class Ranges:
    """The annotated ranges of a capture; marks are left out."""

    host: _Nest
    device: _Nest
    paths: list[Path]
    count: int | None
    """Ranges and marks; None where the source cannot have any."""
    impossible: int
    unclosed: int

    def path(self, at: int) -> str:
        """The names of a path with "/" between."""
        parts = []
        while at >= 0:
            parts.append(self.paths[at].name)
            at = self.paths[at].parent
        return "/".join(reversed(parts))


def ranges_of(capture: Capture, calls: Calls, last_ns: int) -> Ranges:
    """The ranges of ``capture``; one that never closed ends at ``last_ns``."""
    paths = _Paths()
    table = capture.tables.get("range")
    if table is None or not table.num_rows:
        nothing = np.zeros(0, np.int64)
        empty = _nest(_Spans([], nothing, nothing, nothing), nothing, nothing, nothing, paths)
        return Ranges(empty, empty, paths.known, None if table is None else 0, 0, 0)
    times = possible(table, open_end=last_ns)
    ends = integers(table, "end_ns")
    unclosed = table.num_rows if ends is None else int((ends == NULL).sum())
    codes, names = named(table)
    count = len(times.starts)
    given = _Spans(names, times.of(codes), times.starts, times.ends)
    spans = times.starts < times.ends
    devices, threads, streams = (times.integers(table, e) for e in ("device", "tid", "stream"))
    # a thread is known by its process too where calls and ranges both say it
    processes = np.full(count, NULL) if calls.pids is None else times.integers(table, "pid")
    host = _nest(given, np.flatnonzero(spans & (devices == NULL)), processes, threads, paths)
    device = _nest(given, np.flatnonzero(spans & (devices != NULL)), devices, streams, paths)
    return Ranges(host, device, paths.known, count, times.impossible, unclosed)


class _Spans(NamedTuple):
    """The possible rows of ranges and marks, and the names that their codes mean."""

    names: list[str]
    codes: npt.NDArray[Any]
    starts: npt.NDArray[Any]
    ends: npt.NDArray[Any]


class _Paths:
    """The paths of ranges, each once."""

    def __init__(self) -> None:
        self.known: list[Path] = []
        self._places: dict[tuple[int, str], int] = {}

    def place(self, parent: int, name: str) -> int:
        """The place of the path with that name inside of another one; -1 is none.

        All that is deeper than the deepest is one path, "...".
        """
        depth = self.known[parent].depth + 1 if parent >= 0 else 0
        if depth > _MAX_DEPTH:
            return parent
        name = "..." if depth == _MAX_DEPTH else name
        at = self._places.setdefault((parent, name), len(self.known))
        if at == len(self.known):
            self.known.append(Path(name, parent, depth))
        return at


def _nest(
    spans: _Spans,
    chosen: npt.NDArray[Any],
    first: npt.NDArray[Any],
    second: npt.NDArray[Any],
    paths: _Paths,
) -> _Nest:
    """The ``chosen`` rows of ``spans`` on lines, by the two keys of each row of ``spans``."""
    names = spans.names
    first, second, starts, ends, codes = (
        each[chosen] for each in (first, second, spans.starts, spans.ends, spans.codes)
    )
    # of two ranges at one time the one with the first name is around the other, in any format
    ranked = np.empty(len(names), np.int64)
    ranked[sorted(range(len(names)), key=names.__getitem__)] = np.arange(len(names))
    keys, lines = _lines(first, second)
    order = order_of(starts)
    order = np.arange(len(starts)) if order is None else order
    order = order[by_code(lines[order])]
    ties = np.flatnonzero((np.diff(starts[order]) == 0) & (np.diff(lines[order]) == 0))
    rows = np.union1d(ties, ties + 1)
    tied = order[rows]
    by = (ranked[codes[tied]], -ends[tied], starts[tied], lines[tied])
    order[rows] = tied[np.lexsort(by)]
    lines, starts, ends = lines[order], starts[order], ends[order]
    parents = _parents(lines.tolist(), starts.tolist(), ends.tolist())
    texts = [names[code] for code in codes[order].tolist()]
    _star(texts, parents, lines.tolist())
    found: list[int] = []
    for text, parent in zip(texts, parents, strict=True):
        found.append(paths.place(found[parent] if parent >= 0 else -1, text))
    whole = (np.array(parents, np.int64), np.array(found, np.int64))
    return _Nest(keys, lines, starts, ends, *whole)


def _lines(
    first: npt.NDArray[Any], second: npt.NDArray[Any]
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """The different pairs, one a row and sorted, and the place of each pair in them."""
    (ones, one), (others, other) = (
        np.unique(each, return_inverse=True) for each in (first, second)
    )
    pairs, places = np.unique(one * len(others) + other, return_inverse=True)
    at = np.divmod(pairs, max(1, len(others)))
    return np.stack((ones[at[0]], others[at[1]]), axis=1), places


def _parents(lines: list[int], starts: list[int], ends: list[int]) -> list[int]:
    """For each range the last one before it that is still open when it starts, or -1."""
    parents: list[int] = []
    around: list[int] = []
    line = -1
    for at, start in enumerate(starts):
        if lines[at] != line:
            line, around = lines[at], []
        while around and ends[around[-1]] <= start:
            around.pop()
        parents.append(around[-1] if around else -1)
        around.append(at)
    return parents


def _star(texts: list[str], parents: list[int], lines: list[int]) -> None:
    """Give outermost ranges that count up, as "step 1" and "step 2", one name: "step *"."""
    series: dict[tuple[int, str], list[tuple[int, int]]] = {}
    for at, (text, parent, line) in enumerate(zip(texts, parents, lines, strict=True)):
        if parent < 0 and (match := _NUMBERED.match(text)):
            series.setdefault((line, match[1]), []).append((at, int(match[2])))
    for (_, stem), members in series.items():
        first = members[0][1]
        if len(members) > 1 and [each[1] for each in members] == list(
            range(first, first + len(members))
        ):
            for at, _ in members:
                texts[at] = f"{stem}*"


def paths_of_work(work: Work, calls: Calls, ranges: Ranges) -> npt.NDArray[Any] | None:
    """For each row of ``work`` the place of its path, -1 for none; None where nothing says it."""
    host, device = ranges.host, ranges.device
    on_host = work.owners is not None and len(host.starts) > 0
    if not on_host and not len(device.starts):
        return None
    pids = None if (host.keys[:, 0] == NULL).all() else calls.pids
    tids = None if (host.keys[:, 1] == NULL).all() else calls.tids
    streams = None if (device.keys[:, 1] == NULL).all() else work.streams
    found = np.full(len(work.starts), -1, np.int32)
    for first in range(0, len(found), BLOCK):
        here = np.arange(first, min(first + BLOCK, len(found)))
        owned = np.zeros(len(here), bool)
        if on_host and work.owners is not None:
            owned = work.owners[here] >= 0
            at = work.owners[here[owned]]
            inner = host.innermost(_at(pids, at), _at(tids, at), calls.starts[at])
            found[here[owned]] = host.path_at(inner)
        if len(device.starts) and not owned.all():
            rest = here[~owned]
            numbers = work.devices
            numbers = np.full(len(rest), numbers) if isinstance(numbers, int) else numbers[rest]
            inner = device.innermost(numbers, _at(streams, rest), work.starts[rest])
            found[rest] = device.path_at(inner)
    return found


def path_on_host(
    ranges: Ranges, pids: npt.NDArray[Any], tids: npt.NDArray[Any], times: npt.NDArray[Any]
) -> npt.NDArray[Any]:
    """The place of the path that is open at each time on a thread of the host; -1 for none."""
    host = ranges.host
    first, second = (
        np.full(len(times), NULL) if (host.keys[:, place] == NULL).all() else values
        for place, values in enumerate((pids, tids))
    )
    return host.path_at(host.innermost(first, second, times))


def _at(values: npt.NDArray[Any] | None, rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return np.full(len(rows), NULL) if values is None else values[rows]


def matching(ranges: Ranges, pattern: str) -> npt.NDArray[Any]:
    """For each path whether it, or a path around it, matches the glob; one more entry, False."""
    found: list[bool] = []
    for at, path in enumerate(ranges.paths):
        inside = path.parent >= 0 and found[path.parent]
        found.append(inside or fnmatchcase(ranges.path(at), pattern))
    return np.array([*found, False])


def range_rows(
    work: Work, paths: npt.NDArray[Any] | None, ranges: Ranges, shown: npt.NDArray[Any]
) -> list[dict[str, Any]]:
    """Rows of RANGE_COLUMNS but for the rank, of the paths for which ``shown`` holds."""
    size = len(ranges.paths)
    if not size:
        return []
    calls = np.bincount(ranges.host.paths, minlength=size)
    host = sums_by(ranges.host.paths, ranges.host.ends - ranges.host.starts, size)
    on_device = np.bincount(ranges.device.paths, minlength=size)
    device, kernels = _inclusive(work, paths, ranges) if paths is not None else (None, None)
    rows = []
    for at, path in enumerate(ranges.paths):
        if not shown[at] or not (calls[at] or (device is not None and device[at])):
            continue
        rows.append(
            {
                "path": ranges.path(at),
                "depth": path.depth,
                "calls": int(calls[at] or on_device[at]),
                "host_ns": int(host[at]) if calls[at] else None,
                "mean_host_ns": round(int(host[at]) / int(calls[at]), DIGITS)
                if calls[at]
                else None,
                "device_ns": None if device is None else int(device[at]),
                "kernels": None if kernels is None else int(kernels[at]),
            }
        )
    return rows


def _inclusive(
    work: Work, paths: npt.NDArray[Any], ranges: Ranges
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Device time and kernels of each path with all that is in it."""
    size = len(ranges.paths)
    depths = np.array([path.depth for path in ranges.paths], np.int32)
    parents = np.array([path.parent for path in ranges.paths], np.int32)
    kernels = np.bincount(paths[work.kernels() & (paths >= 0)], minlength=size)
    device = np.zeros(size, np.int64)
    for depth in range(int(depths.max()), -1, -1):
        level = np.flatnonzero(depths == depth)
        rows = np.flatnonzero(np.append(depths == depth, False)[paths])
        device += union_ns_by(paths[rows], work.starts[rows], work.ends[rows], size)
        if depth:
            np.add.at(kernels, parents[level], kernels[level])
            paths = np.append(np.where(depths == depth, parents, np.arange(size)), -1)[paths]
    return device, kernels


def steps_of(work: Work, calls: Calls, ranges: Ranges, rank: int | None) -> Steps | None:
    """The range that repeats at the outermost level where one does, with the greatest total.

    None where its calls last less than half of the time from the first to the last: operators and
    collectives that repeat are not steps.

    A step has all that its process started while it was open: a backward pass has a thread of its
    own.
    """
    nest = ranges.host
    depths = np.array([path.depth for path in ranges.paths] or [0])[nest.paths]
    durations = nest.ends - nest.starts
    best: tuple[int, str, Any] | None = None
    for depth in np.unique(depths).tolist():
        level = np.flatnonzero(depths == depth)
        groups = np.stack((nest.lines[level], nest.paths[level]), axis=1)
        kinds, codes, counts = np.unique(groups, axis=0, return_inverse=True, return_counts=True)
        totals = sums_by(codes.reshape(-1), durations[level], len(kinds))
        for at in np.flatnonzero(counts > 1).tolist():
            found = (int(totals[at]), ranges.path(int(kinds[at][1])))
            if best is None or (-found[0], found[1]) < (-best[0], best[1]):
                best = (*found, level[codes.reshape(-1) == at])
        if best is not None:
            break
    if best is None:
        return None
    total, name, members = best
    starts, ends = nest.starts[members], nest.ends[members]
    if 2 * total < ends.max() - starts.min():
        return None
    host = tuple((ends - starts).tolist())
    if work.owners is None:
        return Steps(rank, name, host, ())
    process = int(nest.keys[nest.lines[members[0]]][0])
    at = np.full(len(work.starts), -1, np.int64)
    for first in range(0, len(at), BLOCK):
        owners = work.owners[first : first + BLOCK]
        times = calls.starts[owners]
        place = np.searchsorted(starts, times, side="right") - 1
        inside = (owners >= 0) & (place >= 0) & (times < ends[place])
        if calls.pids is not None and process != NULL:
            inside &= calls.pids[owners] == process
        at[first : first + BLOCK][inside] = place[inside]
    rows = at >= 0
    rows = slice(None) if rows.all() else np.flatnonzero(rows)
    at, begins, stops = at[rows], work.starts[rows], work.ends[rows]
    categories = sorted({each.category for each in work.names})
    kinds = np.array([categories.index(each.category) for each in work.names] or [0])
    device = union_ns_by(at, begins, stops, len(members)).tolist()
    at *= len(categories)
    at += kinds[work.codes[rows]]
    shares = union_ns_by(at, begins, stops, len(members) * len(categories)).tolist()
    by_category = tuple(
        {
            category: ns
            for place, category in enumerate(categories)
            if (ns := shares[step * len(categories) + place])
        }
        for step in range(len(members))
    )
    return Steps(rank, name, host, tuple(device), by_category)
