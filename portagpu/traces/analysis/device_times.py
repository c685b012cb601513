"""How devices spent their time, and how long ranks waited for one another in collectives.

The kernel of a collective runs until all ranks have come. So the kernel of the last rank is the
shortest, and that of the first rank the longest. Clocks of several hosts are not comparable: only
durations are compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from portagpu.facts.captures.model import import_library
from portagpu.traces.analysis.arrays import (
    DIGITS,
    NULL,
    Pieces,
    blocks,
    by_code,
    covered_before,
    integers,
    order_of,
    percentiles,
    squares_by,
    sums_by,
    union_by,
    words,
)
from portagpu.traces.analysis.work import possible

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt
    import pyarrow as pa

    from portagpu.facts.captures.model import Capture, Kind
    from portagpu.traces.analysis.work import Calls, Name, Times, Work

np: Any = import_library("numpy")


def percent(part: int | None, whole: int | None) -> float | None:
    """``part`` in percent of ``whole``, rounded; None where one is not known, or of nothing."""
    return round(100 * part / whole, DIGITS) if part is not None and whole else None


class DeviceTimes:
    """The figures of all that ran on one device; ``work`` has at least one row.

    They are sums over stretches of time (``intervals.blocks``), so that they take little memory.
    """

    def __init__(self, work: Work) -> None:
        used = np.bincount(work.codes, minlength=len(work.names)).tolist()
        self.names: list[Name] = sorted(
            {name for name, calls in zip(work.names, used, strict=True) if calls}
        )
        """In the order of kind, category and name."""
        self.kinds: list[tuple[Kind, str]] = sorted({each[:2] for each in self.names})
        """Kind and category of names."""
        places = {name: place for place, name in enumerate(self.names)}
        self._places = np.array([places.get(name, 0) for name in work.names], np.int32)
        self._kind_of = np.array([self.kinds.index(each[:2]) for each in self.names], np.int64)
        slots = {each[:2]: each.slot for each in self.names}
        self._work = work
        self.wall_ns: int = int(work.ends.max() - work.starts[0])
        self._unions = np.zeros(len(self.names), np.int64)
        self._alone = np.zeros(len(self.names), np.int64)
        # a set of kinds is a number with a bit for each
        sets = np.arange(1 << len(self.kinds))
        self._set_ns = np.zeros(len(sets), np.int64)
        bits = 1 << np.arange(len(self.kinds))
        of_category = {
            category: sum(
                int(bit) for bit, (_, c) in zip(bits, self.kinds, strict=True) if c == category
            )
            for category in sorted({c for _, c in self.kinds})
        }
        categories = sum(((sets & own) > 0).astype(np.int8) for own in of_category.values())
        self._bits, self._several = bits, categories > 1
        idle: list[npt.NDArray[Any]] = []
        last: int | None = None
        for codes, starts, ends in blocks(work.codes, work.starts, work.ends):
            times, between = self._add(self._places[codes], starts, ends)
            if not len(times):
                continue
            if last is not None and last < times[0]:
                idle.append(np.array([times[0] - last]))
            idle.append(between)
            last = int(times[-1])
        self.gaps: npt.NDArray[Any] = np.concatenate(idle) if idle else sets[:0]
        """How long each stretch between two pieces of the busy time is."""

        def during(chosen: npt.NDArray[Any]) -> int:
            return int(self._set_ns[chosen].sum())

        def slot(name: str) -> npt.NDArray[Any]:
            return (
                sets & sum(int(bit) for bit, own in zip(bits, of_slots, strict=True) if own == name)
            ) > 0

        of_slots = [slots[kind] for kind in self.kinds]
        compute, communication, copy = map(slot, ("compute", "communication", "copy"))
        self.busy_ns: int = during(sets > 0)
        self.of: dict[str, int] = {
            "compute": during(compute),
            "communication": during(communication),
            "copy": during(copy),
        }
        """Slot of ``Name`` -> the union of its intervals."""
        self.exposed: dict[str, int] = {
            "communication": during(communication & ~compute),
            "copy": during(copy & ~compute & ~communication),
        }
        """Communication while no other kernel runs, and copies while no kernel runs."""
        self.by_category: dict[str, int] = {
            name: during((sets & own) > 0) for name, own in of_category.items()
        }
        own_kinds = [(sets & bit) > 0 for bit in bits]
        self._kind_unions = np.array([during(own) for own in own_kinds])
        self._kind_alone = np.array([during(own & ~self._several) for own in own_kinds])

    def _add(
        self, codes: npt.NDArray[Any], starts: npt.NDArray[Any], ends: npt.NDArray[Any]
    ) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Count a stretch; return when kinds start and end in it, and its idle times."""
        kinds, pieces = union_by(self._kind_of[codes], starts, ends)
        times, changes = np.concatenate(pieces), self._bits[kinds]
        changes = np.concatenate((changes, -changes))
        order = order_of(times)
        if order is not None:
            times, changes = times[order], changes[order]
        sets = np.cumsum(changes)[:-1]
        lengths = np.diff(times)
        np.add.at(self._set_ns, sets, lengths)
        several = self._several[sets]
        shared = Pieces(times[:-1][several], times[1:][several])
        names, pieces = union_by(codes, starts, ends)
        np.add.at(self._unions, names, pieces.ends - pieces.starts)
        np.add.at(self._alone, names, _outside(shared, pieces))
        return times, lengths[(sets == 0) & (lengths > 0)]

    def by_name(self) -> list[dict[str, Any]]:
        """The figures of ``names``."""
        work = self._work
        count = len(self.names)
        calls = np.bincount(self._places[work.codes], minlength=count)
        starts = np.cumsum(calls) - calls
        durations = np.empty(len(work.starts), np.int64)
        free = starts.copy()
        for first in range(0, len(durations), _BLOCK):
            rows = slice(first, first + _BLOCK)
            codes = self._places[work.codes[rows]]
            order = by_code(codes)
            here = np.bincount(codes, minlength=count)
            # a stretch of the result for each name, filled from the left
            places = np.repeat(free - (np.cumsum(here) - here), here)
            places += np.arange(len(places))
            durations[places] = (work.ends[rows] - work.starts[rows])[order]
            free += here
        total = np.add.reduceat(durations, starts)
        mean = total / calls
        squares = squares_by(durations, starts, calls, mean)
        middle, high = percentiles(durations, starts, calls)
        self._durations = durations
        self._parts = (calls, total, mean, squares)
        self._extremes = (
            np.minimum.reduceat(durations, starts),
            np.maximum.reduceat(durations, starts),
        )
        self._sizes = self._bytes()
        figures = (calls, total, mean, middle, high, *self._extremes, np.sqrt(squares / calls))
        return self._rows(figures, self._unions, self._alone, self._sizes)

    def by_kind(self) -> list[dict[str, Any]]:
        """The figures of ``kinds``, and how many names each has; after ``by_name``."""
        parts, _, squares = self._parts[:2], *self._parts[2:]
        # names of one kind follow one another
        names = np.bincount(self._kind_of)
        firsts = np.cumsum(names) - names
        calls, total = (np.add.reduceat(each, firsts) for each in parts)
        mean = total / calls
        away = self._parts[2] - mean[self._kind_of]
        squares = np.add.reduceat(squares + self._parts[0] * away * away, firsts)
        starts = np.cumsum(calls) - calls
        middle, high = percentiles(self._durations, starts, calls)
        least, most = self._extremes
        extremes = (np.minimum.reduceat(least, firsts), np.maximum.reduceat(most, firsts))
        figures = (calls, total, mean, middle, high, *extremes, np.sqrt(squares / calls))
        sizes: list[int | None] = []
        for first, more in zip(firsts.tolist(), names.tolist(), strict=True):
            known = [each for each in self._sizes[first : first + more] if each is not None]
            sizes.append(sum(known) if known else None)
        rows = self._rows(figures, self._kind_unions, self._kind_alone, sizes)
        return [{**row, "names": more} for row, more in zip(rows, names.tolist(), strict=True)]

    def _bytes(self) -> list[int | None]:
        """The bytes of each name; None where the source states none."""
        codes = self._places[self._work.codes[self._work.sized]]
        some = np.bincount(codes, minlength=len(self.names)).tolist()
        sums = sums_by(codes, self._work.sizes, len(self.names)).tolist()
        return [total if known else None for total, known in zip(sums, some, strict=True)]

    def _rows(
        self,
        figures: tuple[npt.NDArray[Any], ...],
        unions: npt.NDArray[Any],
        alone: npt.NDArray[Any],
        sizes: list[int | None],
    ) -> list[dict[str, Any]]:
        columns = (each.round(DIGITS).tolist() for each in (*figures, unions, alone))
        return [
            dict(zip(_FIGURES, row, strict=True))
            | {"percent_of_wall": percent(union_ns, self.wall_ns), "exposed_ns": exposed}
            | {"bytes": size}
            for *row, union_ns, exposed, size in zip(*columns, sizes, strict=True)
        ]


_BLOCK: Final = 1 << 17
_FIGURES: Final = (
    "calls",
    "total_ns",
    "mean_ns",
    "median_ns",
    "p95_ns",
    "min_ns",
    "max_ns",
    "stddev_ns",
)


def _outside(shared: Pieces, pieces: Pieces) -> npt.NDArray[Any]:
    """How much of each piece lies outside ``shared``."""
    lengths = pieces.ends - pieces.starts
    if len(shared.starts):
        lengths -= covered_before(shared, pieces.ends)
        lengths += covered_before(shared, pieces.starts)
    return lengths


_WORDS = ("operation", "group", "dtype")


@dataclass(frozen=True, slots=True)
class Collectives:
    """The collectives of one capture, in the order of their start."""

    durations: npt.NDArray[Any]
    """On the device; on the host where the capture has no devices."""
    sequences: npt.NDArray[Any]
    """In the group; NULL where the source does not say it."""
    sizes: npt.NDArray[Any]
    words: dict[str, tuple[npt.NDArray[Any], list[str]]]
    """operation, group and dtype: the code of each, -1 for none, and what codes mean."""


def collectives_of(capture: Capture, work: Work, calls: Calls) -> Collectives:
    """The collectives of ``capture`` with their time on the device.

    From kernels that name their operation; else from the calls of collectives, each with the
    communication kernels that were started in it; else from communication kernels by name.
    """
    kernels = capture.tables.get("kernel")
    if kernels is not None and words(kernels, "operation") is not None:
        times = possible(kernels)
        return _stated(kernels, times, times.starts, times.ends - times.starts)
    rows = np.flatnonzero(work.having([each.slot == "communication" for each in work.names]))
    hosts = capture.tables.get("collective")
    if hosts is not None and hosts.num_rows:
        times = possible(hosts)
        durations = times.ends - times.starts
        if not work.counts.get("kernel"):
            return _stated(hosts, times, times.starts, durations)
        inside = _inside(hosts, times, calls, work, rows)
        if inside is not None and (inside >= 0).any():
            spent = work.ends[rows] - work.starts[rows]
            durations = np.zeros(len(times.starts), np.int64)
            np.add.at(durations, inside[inside >= 0], spent[inside >= 0])
            some = np.flatnonzero(np.bincount(inside[inside >= 0], minlength=len(durations)))
            return _stated(hosts, times, times.starts, durations, some)
    texts = [each.name for each in work.names]
    nothing = np.full(len(rows), NULL)
    return Collectives(
        work.ends[rows] - work.starts[rows],
        nothing,
        nothing,
        {"operation": (work.codes[rows], texts)},
    )


def _stated(
    table: pa.Table,
    times: Times,
    starts: npt.NDArray[Any],
    durations: npt.NDArray[Any],
    rows: npt.NDArray[Any] | None = None,
) -> Collectives:
    """Those of the possible rows of ``table`` (default: of all) that have an operation."""
    found = {name: words(table, name) for name in _WORDS}
    known = {name: (times.of(each[0]), each[1]) for name, each in found.items() if each is not None}
    codes = known["operation"][0] if "operation" in known else np.full(len(starts), -1)
    rows = np.arange(len(starts)) if rows is None else rows
    rows = rows[codes[rows] >= 0]
    rows = rows[np.argsort(starts[rows], kind="stable")]
    sequences, sizes = (times.integers(table, name)[rows] for name in ("sequence", "bytes"))
    meant = {
        name: (each[0][rows], [text or "" for text in each[1]]) for name, each in known.items()
    }
    return Collectives(durations[rows], sequences, sizes, meant)


def _inside(
    hosts: pa.Table, times: Times, calls: Calls, work: Work, rows: npt.NDArray[Any]
) -> npt.NDArray[Any] | None:
    """For each kernel the collective in whose call its thread started it, or -1."""
    tids = times.of(integers(hosts, "tid"))
    if work.owners is None or tids is None or calls.tids is None:
        return None
    found = np.full(len(rows), -1, np.int64)
    by = work.owners[rows]
    begins = calls.starts[by]
    for tid in np.unique(tids).tolist():
        there = np.flatnonzero(tids == tid)
        there = there[np.argsort(times.starts[there], kind="stable")]
        here = np.flatnonzero((by >= 0) & (calls.tids[by] == tid))
        at = np.searchsorted(times.starts[there], begins[here], side="right") - 1
        at = np.where(at >= 0, there[at], -1)
        at[(at >= 0) & (begins[here] >= times.ends[at])] = -1
        found[here] = at
    return found


def collective_rows(
    parts: Sequence[tuple[int | None, Collectives]],
) -> tuple[dict[str, list[Any]], list[str]]:
    """Columns of COLLECTIVE_COLUMNS for those that several ranks have, and what was left out.

    Without a sequence the order in the group counts, if all ranks that have the collective have
    it equally often.
    """
    columns = ("operation", "group", "sequence", "dtype", "bytes", "ranks")
    rows: dict[str, list[Any]] = {
        name: [] for name in (*columns, "duration_ns", "skew_ns", "last_rank")
    }
    known = [(rank, each) for rank, each in parts if len(each.durations)]
    if len(known) < 2:
        return rows, []
    texts = {name: _meanings([each for _, each in known], name) for name in _WORDS}
    sizes = [len(each.durations) for _, each in known]
    codes = {
        name: np.concatenate([_codes(e, name, texts[name]) for _, e in known]) for name in _WORDS
    }
    durations = np.concatenate([each.durations for _, each in known])
    sequences = np.concatenate([each.sequences for _, each in known])
    volumes = np.concatenate([each.sizes for _, each in known])
    places = np.repeat(np.arange(len(known)), sizes)
    groups = codes["operation"].astype(np.int64) * (len(texts["group"]) + 1) + codes["group"] + 1
    unnumbered = sequences == NULL
    operations = codes["operation"], texts["operation"]
    problems, left = _uneven(groups, places, unnumbered, *operations)
    # the order in its group, and the occurrence of one sequence on one rank
    sequences = np.where(unnumbered, _occurrence(np.stack((places, groups)), unnumbered), sequences)
    again = _occurrence(np.stack((places, groups, sequences)), np.ones(len(groups), bool))
    order = np.lexsort((places, durations, again, sequences, groups))
    order = order[~left[order]]
    keys = np.stack((groups, sequences, again))[:, order]
    if not len(order):
        return rows, problems
    firsts = np.flatnonzero(np.append(True, (keys[:, 1:] != keys[:, :-1]).any(axis=0)))
    counts = np.diff(np.append(firsts, len(order)))
    firsts, counts = firsts[counts > 1], counts[counts > 1]
    # sorted by duration: the first of a collective is the shortest
    best, worst = order[firsts], order[firsts + counts - 1]
    skew = durations[worst] - durations[best]
    ranks = [known[place][0] for place in places[best].tolist()]
    for name in _WORDS:
        of = texts[name]
        rows[name] = [of[code] if code >= 0 else None for code in codes[name][best].tolist()]
    rows["sequence"] = sequences[best].tolist()
    rows["bytes"] = [None if each == NULL else each for each in volumes[best].tolist()]
    rows["ranks"] = counts.tolist()
    rows["duration_ns"] = durations[best].tolist()
    rows["skew_ns"] = skew.tolist()
    rows["last_rank"] = [
        rank if late else None for rank, late in zip(ranks, skew.tolist(), strict=True)
    ]
    return rows, problems


def _meanings(parts: Sequence[Collectives], name: str) -> list[str]:
    return sorted({text for each in parts if name in each.words for text in each.words[name][1]})


def _codes(part: Collectives, name: str, texts: list[str]) -> npt.NDArray[Any]:
    if name not in part.words:
        return np.full(len(part.durations), -1, np.int32)
    codes, own = part.words[name]
    place = {text: at for at, text in enumerate(texts)}
    return np.array([*(place[text] for text in own), -1], np.int32)[codes]


def _occurrence(keys: npt.NDArray[Any], rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """For each of ``rows`` how many before it have the same column of ``keys``; else 0."""
    found = np.zeros(len(rows), np.int64)
    at = np.flatnonzero(rows)
    if not len(at):
        return found
    order = at[np.lexsort((at, *keys[:, at]))]
    sorted_keys = keys[:, order]
    new = np.append(True, (sorted_keys[:, 1:] != sorted_keys[:, :-1]).any(axis=0))
    firsts = np.flatnonzero(new)
    found[order] = np.arange(len(order)) - firsts[np.cumsum(new) - 1]
    return found


def _uneven(
    groups: npt.NDArray[Any],
    places: npt.NDArray[Any],
    unnumbered: npt.NDArray[Any],
    codes: npt.NDArray[Any],
    operations: Sequence[str],
) -> tuple[list[str], npt.NDArray[Any]]:
    """Sentences on what ranks have unequally often without a sequence, and the mask of its rows."""
    kinds, first, at = np.unique(groups, return_index=True, return_inverse=True)
    counts = np.zeros((len(kinds), int(places.max()) + 1), np.int64)
    np.add.at(counts, (at[unnumbered], places[unnumbered]), 1)
    least = np.where(counts > 0, counts, np.iinfo(np.int64).max).min(axis=1)
    wrong = counts.max(axis=1) > least
    sentences = [
        f"{operations[codes[first[kind]]]}: ranks have {int(least[kind])} to "
        f"{int(counts[kind].max())} calls without a sequence: not compared"
        for kind in np.flatnonzero(wrong).tolist()
    ]
    return sentences, wrong[at] & unnumbered
