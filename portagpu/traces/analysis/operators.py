"""How long each operator of the host took, with and without the operators in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from portagpu.facts.captures.model import import_library
from portagpu.traces.analysis.columns import DIGITS, NULL, percentiles, sums_by
from portagpu.traces.analysis.intervals import by_code
from portagpu.traces.analysis.ranges import path_on_host
from portagpu.traces.analysis.work import named, possible

if TYPE_CHECKING:
    import numpy.typing as npt

    from portagpu.facts.captures.model import Capture
    from portagpu.traces.analysis.ranges import Ranges

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
        self.impossible = 0
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
