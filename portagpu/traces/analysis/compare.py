"""Two summaries side by side: what became slower or faster, and what is within noise.

Times are those of one device, and of one step where both sides have steps of one name. Steps that
repeat say how much a time varies by itself. A difference below that floor is within noise. Without
repeated steps there is no floor, and a difference is shown and not judged. What cannot be compared
is refused with its reason, and with what to do instead.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from portagpu.base.text import one_line
from portagpu.base.units import count
from portagpu.facts.captures.columns import json_object
from portagpu.facts.captures.model import ON_DEVICE
from portagpu.traces.analysis.comparison import Comparison, Refusal
from portagpu.traces.analysis.differences import Times, differences

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from portagpu.facts.captures.model import Capture
    from portagpu.traces.analysis.model import Summary

LEAST_OF_CAPTURE: Final = 0.5
"""Share of the device's time that all steps last together: a range that repeats is no step else."""
MOST_DROPPED: Final = 0.01
"""Share of the events that may be missing: the differences that are looked for are of this size."""
_OF_ONE_FILE: Final = re.compile(r"(?:^|_)(?:id|time|date|start|path)$|^left out")
"""Details that differ between any two captures."""
WORK: Final = ("batch", "batch_size", "sequence_length", "model", "dtype", "precision")
"""Details of a capture, and labels of annotations, that say which work was done."""
_MOST_LABELS: Final = 10_000
"""Different payloads of ranges that are looked at: each step may have its own."""


def compare(a: Summary, b: Summary, allow: Collection[str] = ()) -> Comparison:
    """B beside A. A reason in ``allow`` no longer refuses; the verdict is then no PASS."""
    name = _common_step(a, b)
    found = list(_refusals(a, b, name))
    refusals = tuple(each for each in found if each.reason not in allow or not each.whole)
    allowed = tuple(each for each in found if each.reason in allow and each.whole)
    if any(each.reason == "steps" for each in allowed):
        name = ""
    one, other = Times.of(a).per_step(name), Times.of(b).per_step(name)
    is_refused = any(each.whole for each in refusals)
    missing = set(_kinds(a)) ^ set(_kinds(b))
    return Comparison(
        a=one.side(),
        b=other.side(),
        refusals=refusals,
        allowed=allowed,
        differences=() if is_refused else tuple(differences(one, other, missing)),
        notes=tuple(_notes(a, b, name)),
    )


def with_labels(summary: Summary, captures: Sequence[Capture]) -> Summary:
    """The summary with those labels of annotated ranges among its details that WORK names."""
    found: dict[str, set[str]] = {}
    for capture in captures:
        ranges = capture.tables.get("range")
        if ranges is None or "payload" not in ranges.column_names:
            continue
        given = ranges.column("payload").unique().slice(0, _MOST_LABELS)
        for text in given.to_pylist():
            labels = json_object(text)
            for key in labels.keys() & set(WORK):
                found.setdefault(key, set()).add(str(labels[key]))
    labels = {key: ", ".join(sorted(values)) for key, values in sorted(found.items())}
    return replace(summary, details={**labels, **summary.details})


# ---- what can be compared


def _refusals(a: Summary, b: Summary, name: str) -> Iterator[Refusal]:
    for side, summary in (("A", a), ("B", b)):
        if not summary.rows.num_rows:
            yield Refusal("nothing", f"{side} has no kernel, copy or set of a device")
    if not a.rows.num_rows or not b.rows.num_rows:
        return
    totals = {"A": not a.devices, "B": not b.devices}
    if totals["A"] != totals["B"]:
        one, other = ("A", "B") if totals["A"] else ("B", "A")
        yield Refusal("totals", f"{one} has only the sums that a tool computed, {other} has events")
    yield from _other_devices(a, b)
    for side, summary in (("A", a), ("B", b)):
        read = sum(summary.events.values())
        share = summary.dropped / (summary.dropped + read) if summary.dropped else 0.0
        if share > MOST_DROPPED:
            yield Refusal("dropped", f"{side} lacks {share:.1%} of its events, which were dropped")
        tools = {each.format for each in summary.sources}
        if len(tools) > 1:
            told = ", ".join(sorted(tools))
            yield Refusal("clocks", f"{side} is of several tools ({told}), whose clocks differ")
    names = [", ".join(map(repr, _whole_steps(each))) for each in (a, b)]
    if not name and any(names):
        told = f"A has {names[0] or 'none'} and B has {names[1] or 'none'}"
        yield Refusal("steps", f"no step has the same name on both sides: {told}")
    yield from _other_work(a, b)
    if not any(totals.values()):
        for kind in sorted(set(_kinds(a)) ^ set(_kinds(b))):
            one, other = ("A", "B") if kind in _kinds(a) else ("B", "A")
            why = f"events of the kind {kind!r} were recorded in {one} and not in {other}"
            yield Refusal("kinds", why, whole=kind == "kernel")


def _other_devices(a: Summary, b: Summary) -> Iterator[Refusal]:
    ranks = [len({each.rank for each in side.devices}) for side in (a, b)]
    devices = [len({(each.rank, each.device) for each in side.devices}) for side in (a, b)]
    if not all(ranks):
        return
    if ranks[0] != ranks[1]:
        yield Refusal("ranks", f"A has {count(ranks[0], 'rank')}, B has {count(ranks[1], 'rank')}")
    elif devices[0] != devices[1]:
        told = f"A has {count(devices[0], 'device')}, B has {count(devices[1], 'device')}"
        yield Refusal("devices", told)


def _other_work(a: Summary, b: Summary) -> Iterator[Refusal]:
    for key in WORK:
        one, other = a.details.get(key), b.details.get(key)
        if one is not None and other is not None and one != other:
            told = f"A was taken with {key} {one}, B with {key} {other}"
            yield Refusal("work", one_line(told))
    moved = [_bytes_of_collectives(side) for side in (a, b)]
    for key in sorted(moved[0].keys() & moved[1].keys()):
        if moved[0][key] != moved[1][key]:
            told = f"{moved[0][key]} bytes in A and {moved[1][key]} in B"
            yield Refusal("work", f"a call of {key} has {told} (the most frequent size)")


def _bytes_of_collectives(summary: Summary) -> dict[str, int]:
    """The most frequent size of each operation, which is another one for another batch or model."""
    sizes: dict[str, Counter[int]] = {}
    for row in summary.collectives.to_pylist():
        if row["bytes"] is not None and row["operation"]:
            sizes.setdefault(row["operation"], Counter())[row["bytes"]] += 1
    return {key: max(found, key=lambda size: (found[size], size)) for key, found in sizes.items()}


def _kinds(summary: Summary) -> tuple[str, ...]:
    """The kinds that matter here and that were recorded."""
    return tuple(kind for kind in (*ON_DEVICE, "range") if kind in summary.events)


def _common_step(a: Summary, b: Summary) -> str:
    """The name of the steps of both; empty where there is none."""
    names = set(_whole_steps(b))
    return next((each for each in _whole_steps(a) if each in names), "")


def _whole_steps(summary: Summary) -> dict[str, float]:
    """Name -> the share of the capture that these steps last; others are ranges that repeat."""
    found: dict[str, float] = {}
    for each in summary.steps:
        wall = max((d.wall_ns for d in summary.devices if d.rank == each.rank), default=0)
        share = sum(each.host_ns) / wall if wall else 1.0
        if share >= LEAST_OF_CAPTURE:
            found[each.name] = share
    return found


def _notes(a: Summary, b: Summary, name: str) -> Iterator[str]:
    if a.sources == b.sources and a.sources:
        yield "A and B are the same files: every difference is 0"
    for key in sorted(a.details.keys() & b.details.keys()):
        is_told = key not in WORK and not _OF_ONE_FILE.search(key)
        if a.details[key] != b.details[key] and is_told:
            yield f"{key} is {a.details[key]} in A and {b.details[key]} in B"
    vendors = [sorted({each.vendor for each in side.hardware if each.vendor}) for side in (a, b)]
    if all(vendors) and vendors[0] != vendors[1]:
        yield "the vendors differ: kernels have other names, so that categories are what compares"
    if name:
        yield "kernels and ranges are sums by the number of steps, with what ran outside of steps"
    else:
        yield "there are no steps: whole captures are compared, whatever they did"
    for side, summary in (("A", a), ("B", b)):
        yield from (f"{side}: {each}" for each in summary.problems)
        for message in summary.messages:
            if message.level != "info":
                yield f"{side}: the profiler said: {one_line(message.text)}"
