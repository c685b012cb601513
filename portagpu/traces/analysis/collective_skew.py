"""The same collective on several ranks: how long it took, and who came last.

A collective's kernel runs until all ranks have come. So the kernel of the rank that comes last is
the shortest, and the longest waited longest. Clocks of several hosts are not comparable: only
durations are compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from portagpu.facts.captures.model import import_library
from portagpu.traces.analysis.columns import NULL, integers, words
from portagpu.traces.analysis.work import possible

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt
    import pyarrow as pa

    from portagpu.facts.captures.model import Capture
    from portagpu.traces.analysis.work import Calls, Times, Work

np: Any = import_library("numpy")

_WORDS = ("operation", "group", "dtype")


@dataclass(slots=True)
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
