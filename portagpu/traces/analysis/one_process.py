"""Which captures are of one process: files of different events, and passes with other counters.

Ranks of a run have the same kinds of events each, and the same counters. A process of which each
file has another kind (kernels, calls) has one clock. A program that was measured again for each set
of counters has the same kernels on the same devices in every pass, and other counters.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from portagpu.base.text import excerpt
from portagpu.facts.captures.model import arrow

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

    from portagpu.facts.captures.model import Capture

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
    for each in captures:
        of = key(each) if each.rank is None else None
        known = by_key.setdefault(of, []) if of is not None else []
        group = next((group for group in known if fits(group, each)), None)
        if group is not None:
            group.append(each)
            continue
        groups.append([each])
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
