"""How one device spent its time, by name and category of what ran."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from portagpu.facts.captures.model import import_library
from portagpu.traces.analysis.columns import DIGITS, percentiles, squares_by, sums_by
from portagpu.traces.analysis.intervals import (
    Pieces,
    blocks,
    by_code,
    covered_before,
    order_of,
    union_by,
)

if TYPE_CHECKING:
    import numpy.typing as npt

    from portagpu.facts.captures.model import Kind
    from portagpu.traces.analysis.work import Name, Work

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
        self.wall_ns = int(work.ends.max() - work.starts[0])
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
        self.busy_ns = during(sets > 0)
        self.of = {
            "compute": during(compute),
            "communication": during(communication),
            "copy": during(copy),
        }
        """Slot of ``Name`` -> the union of its intervals."""
        self.exposed = {
            "communication": during(communication & ~compute),
            "copy": during(copy & ~compute & ~communication),
        }
        """Communication while no other kernel runs, and copies while no kernel runs."""
        self.by_category = {name: during((sets & own) > 0) for name, own in of_category.items()}
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
