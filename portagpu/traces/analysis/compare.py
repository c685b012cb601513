"""Two summaries compared: what became slower or faster, and what is within noise.

Times are those of one device, and of one step where both sides have steps of one name. Steps that
repeat say how much a time varies by itself. A difference below that floor is within noise. Without
repeated steps there is no floor, and a difference is shown and not judged. What cannot be compared
is refused with its reason, and with what to do instead.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass, field, replace
from statistics import fmean, median
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.stats import mad
from portagpu.base.text import one_line
from portagpu.base.units import count
from portagpu.facts.captures.columns import json_object
from portagpu.facts.captures.model import ON_DEVICE
from portagpu.traces.analysis.comparison import MIN_STEPS, Comparison, Difference, Refusal, Side

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from portagpu.facts.captures.model import Capture
    from portagpu.traces.analysis.comparison import Part
    from portagpu.traces.analysis.model import Steps, Summary

DEVIATIONS: Final = 2.0
"""Of both sides' spread together: of normal noise, 95 % is below."""
_TO_STANDARD: Final = 1.4826
"""A normal distribution's standard deviation, as a multiple of its median absolute deviation."""
_FEW: Final = {2: 1.196, 3: 1.495, 4: 1.363, 5: 1.206, 6: 1.200, 7: 1.140, 8: 1.129, 9: 1.107}
"""The factor that corrects the deviation of a few samples: C. Croux, P. J. Rousseeuw,
"Time-efficient
algorithms for two highly robust estimators of scale", Computational Statistics 1 (1992) 411-428."""


@dataclass(frozen=True, slots=True)
class Times:
    """The times of one side, of one device and of one step where ``steps`` is not 0."""

    summary: Summary
    devices: int
    ranks: int
    step: str = ""
    steps: int = 0
    samples: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """"host", "device" or a category -> its time in each step, the mean of all ranks."""

    @classmethod
    def of(cls, summary: Summary) -> Times:
        places = {(each.rank, each.device) for each in summary.devices} or {
            (row["rank"], row["device"])
            for row in summary.rows.select(["rank", "device"]).to_pylist()
        }
        return cls(summary, max(len(places), 1), max(len({rank for rank, _ in places}), 1))

    def per_step(self, name: str) -> Times:
        """The same by steps of that name; an empty name changes nothing."""
        found = [each for each in self.summary.steps if each.name == name and each.host_ns]
        if not name or not found:
            return self
        number = min(len(each.host_ns) for each in found)
        # a device's time, as there may be several devices of a rank
        of_rank = self.devices / self.ranks
        samples: dict[str, list[float]] = {
            "host": [fmean(each.host_ns[at] for each in found) for at in range(number)]
        }
        if all(len(each.device_ns) >= number for each in found):
            # else the capture does not say what a step started
            samples["device"] = [
                fmean(each.device_ns[at] for each in found) for at in range(number)
            ]
        if all(len(each.by_category_ns) >= number for each in found):
            names = {key for each in found for step in each.by_category_ns[:number] for key in step}
            for key in sorted(names):
                samples[key] = [_category(found, at, key) / of_rank for at in range(number)]
        return replace(self, step=name, steps=number, samples=samples)

    def side(self) -> Side:
        """What these are the times of."""
        return Side(
            files=tuple(each.path for each in self.summary.sources),
            ranks=self.ranks,
            devices=self.devices,
            step=self.step,
            steps=self.steps,
            noise=self.relative_spread("host"),
        )

    @property
    def by(self) -> float:
        """What sums are divided by."""
        return float(self.devices * max(self.steps, 1))

    def middle(self, key: str) -> float | None:
        values = self.samples.get(key)
        return median(values) if values else None

    def spread(self, key: str) -> float | None:
        """The standard deviation between steps, from their median absolute deviation."""
        values = self.samples.get(key, ())
        number = len(values)
        if number < MIN_STEPS:
            return None
        few = _FEW.get(number, number / (number - 0.8))
        return _TO_STANDARD * few * mad(values)

    def relative_spread(self, key: str) -> float | None:
        spread, middle = self.spread(key), self.middle(key)
        return spread / middle if spread is not None and middle else None


def _category(found: Sequence[Steps], at: int, key: str) -> float:
    return fmean(each.by_category_ns[at].get(key, 0) for each in found)


def differences(a: Times, b: Times, missing: Collection[str]) -> Iterator[Difference]:
    """All times that both sides can have: one of them is ``missing`` these kinds of events."""
    if a.steps and b.steps:
        yield _sampled("step", "host", a, b, "host")
        if "device" in a.samples or "device" in b.samples:
            yield _sampled("time", "device busy in a step", a, b, "device")
    yield from _of_devices(a, b, missing)
    yield from _of_categories(a, b, missing)
    if "range" not in missing:
        yield from _of_ranges(a, b)
    yield from _of_kernels(a, b, missing)


def _sampled(part: Part, name: str, a: Times, b: Times, key: str) -> Difference:
    """A time that each step has, with the floor of both sides' spreads."""
    spreads = [a.spread(key), b.spread(key)]
    floor = None
    if spreads[0] is not None and spreads[1] is not None:
        floor = DEVIATIONS * math.hypot(spreads[0], spreads[1])
    return Difference(part, name, a.middle(key), b.middle(key), floor)


def _proportional(
    a: Times, b: Times, key: str, one: float | None, other: float | None
) -> float | None:
    """A floor where only ``key`` has samples: the same share of the time, which is a guess."""
    shares = [a.relative_spread(key), b.relative_spread(key)]
    if shares[0] is None or shares[1] is None or one is None or other is None:
        return None
    return DEVIATIONS * math.hypot(shares[0] * one, shares[1] * other)


_DEVICE_TIMES: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "wall": ("wall_ns", ()),
    "busy": ("busy_ns", ()),
    "idle": ("idle_ns", ()),
    "exposed communication": ("exposed_communication_ns", ()),
    "exposed copy": ("exposed_copy_ns", ("copy",)),
}
"""Name -> field of DeviceTime, and kinds that both sides must have recorded."""


def _of_devices(a: Times, b: Times, missing: Collection[str]) -> Iterator[Difference]:
    if not a.summary.devices or not b.summary.devices:
        return
    for name, (key, needs) in _DEVICE_TIMES.items():
        if not set(needs) & set(missing):
            one, other = (
                sum(getattr(each, key) for each in side.summary.devices) / side.by
                for side in (a, b)
            )
            floor = _proportional(a, b, "device", one, other)
            yield Difference("time", name, one, other, floor)


def _of_categories(a: Times, b: Times, missing: Collection[str]) -> Iterator[Difference]:
    left_out = {"copy"} if {"copy", "set"} & set(missing) else set()
    if set(a.samples) - {"host", "device"} and set(b.samples) - {"host", "device"}:
        names = sorted((a.samples.keys() | b.samples.keys()) - {"host", "device"} - left_out)
        rows = [_sampled("category", name, a, b, name) for name in names]
    else:
        sums = [_category_sums(side) for side in (a, b)]
        names = sorted((sums[0].keys() | sums[1].keys()) - left_out)
        rows = [
            Difference("category", name, sums[0].get(name), sums[1].get(name)) for name in names
        ]
    yield from sorted(rows, key=_by_size)


def _category_sums(side: Times) -> dict[str, float]:
    """Category -> its time; of totals alone the sum of its kernels."""
    found: dict[str, float] = {}
    for each in side.summary.devices:
        for name, value in each.by_category_ns.items():
            found[name] = found.get(name, 0.0) + value / side.by
    if not side.summary.devices:
        for row in side.summary.rows.select(["category", "total_ns"]).to_pylist():
            found[row["category"]] = (
                found.get(row["category"], 0.0) + (row["total_ns"] or 0) / side.by
            )
    return found


def _of_ranges(a: Times, b: Times) -> Iterator[Difference]:
    rows = [
        _sums(side.summary.ranges.to_pylist(), "path", "host_ns", side.ranks * max(side.steps, 1))
        for side in (a, b)
    ]
    yield from _rows("range", a, b, rows, lambda _: "host")


def _of_kernels(a: Times, b: Times, missing: Collection[str]) -> Iterator[Difference]:
    columns = ["kind", "name", "category", "total_ns", "calls"]
    tables = [
        [
            each
            for each in side.summary.rows.select(columns).to_pylist()
            if each["kind"] not in missing
        ]
        for side in (a, b)
    ]
    of = {row["name"]: row["category"] for table in tables for row in table}
    rows = [
        _sums(table, "name", "total_ns", side.by)
        for side, table in zip((a, b), tables, strict=True)
    ]
    yield from _rows("kernel", a, b, rows, lambda name: of[name])


def _sums(
    rows: Sequence[Mapping[str, Any]], by: str, value: str, parts: float
) -> dict[str, tuple[float, float | None]]:
    """Name -> time and calls, each by ``parts``."""
    found: dict[str, tuple[float, float | None]] = {}
    for row in rows:
        if row[value] is not None:
            time, calls = found.get(row[by], (0.0, 0.0))
            more = None if calls is None or row["calls"] is None else calls + row["calls"] / parts
            found[row[by]] = (time + row[value] / parts, more)
    return found


def _rows(
    part: Part,
    a: Times,
    b: Times,
    rows: Sequence[Mapping[str, tuple[float, float | None]]],
    key: Callable[[str], str],
) -> Iterator[Difference]:
    found = []
    for name in rows[0].keys() | rows[1].keys():
        one, calls_a = rows[0].get(name, (None, None))
        other, calls_b = rows[1].get(name, (None, None))
        floor = _proportional(a, b, key(name), one, other)
        found.append(Difference(part, name or "", one, other, floor, calls_a, calls_b))
    yield from sorted(found, key=_by_size)


def _by_size(each: Difference) -> tuple[float, str]:
    """The largest change first; what only one side has counts whole."""
    return -abs((each.b_ns or 0.0) - (each.a_ns or 0.0)), each.name


MIN_SHARE: Final = 0.5
"""Share of the device's time that all steps take: other ranges that repeat are not steps."""
MAX_DROPPED: Final = 0.01
"""Share of the events that may be missing: the differences that are looked for are of this size."""
_OF_ONE_FILE: Final = re.compile(r"(?:^|_)(?:id|time|date|start|path)$|^left out")
"""Details that differ between any two captures."""
WORK: Final = ("batch", "batch_size", "sequence_length", "model", "dtype", "precision")
"""Details of a capture, and labels of annotations, that say which work was done."""
_MAX_LABELS: Final = 10_000
"""Different payloads of ranges that are looked at: each step may have its own."""


def compare(a: Summary, b: Summary, allow: Collection[str] = ()) -> Comparison:
    """Compare two summaries.

    :param a: What B is compared with.
    :param b: The other one.
    :param allow: Reasons (``comparison.ALLOWABLE``) that no longer refuse the comparison; the
        verdict is then not PASS.
    :returns: Differences per device and, where both sides have steps of one name, per step, in
        nanoseconds; or why they cannot be compared, and what to do instead.
    """
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
        given = ranges.column("payload").unique().slice(0, _MAX_LABELS)
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
        if share > MAX_DROPPED:
            yield Refusal("dropped", f"{side} lacks {share:.1%} of its events, which were dropped")
        tools = {each.format for each in summary.sources}
        if len(tools) > 1:
            listed = ", ".join(sorted(tools))
            yield Refusal("clocks", f"{side} is of several tools ({listed}), whose clocks differ")
    names = [", ".join(map(repr, _whole_steps(each))) for each in (a, b)]
    if not name and any(names):
        sides = f"A has {names[0] or 'none'} and B has {names[1] or 'none'}"
        yield Refusal("steps", f"no step has the same name on both sides: {sides}")
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
        sides = f"A has {count(devices[0], 'device')}, B has {count(devices[1], 'device')}"
        yield Refusal("devices", sides)


def _other_work(a: Summary, b: Summary) -> Iterator[Refusal]:
    for key in WORK:
        one, other = a.details.get(key), b.details.get(key)
        if one is not None and other is not None and one != other:
            sides = f"A was taken with {key} {one}, B with {key} {other}"
            yield Refusal("work", one_line(sides))
    moved = [_bytes_of_collectives(side) for side in (a, b)]
    for key in sorted(moved[0].keys() & moved[1].keys()):
        if moved[0][key] != moved[1][key]:
            sides = f"{moved[0][key]} bytes in A and {moved[1][key]} in B"
            yield Refusal("work", f"a call of {key} has {sides} (the most frequent size)")


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
        if share >= MIN_SHARE:
            found[each.name] = share
    return found


def _notes(a: Summary, b: Summary, name: str) -> Iterator[str]:
    if a.sources == b.sources and a.sources:
        yield "A and B are the same files: every difference is 0"
    for key in sorted(a.details.keys() & b.details.keys()):
        is_noted = key not in WORK and not _OF_ONE_FILE.search(key)
        if a.details[key] != b.details[key] and is_noted:
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
