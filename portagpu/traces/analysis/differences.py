"""The times of two summaries side by side, with the noise of steps that repeat."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from statistics import fmean, median
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.stats import mad
from portagpu.traces.analysis.comparison import LEAST_STEPS, Difference, Side

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from portagpu.traces.analysis.comparison import Part
    from portagpu.traces.analysis.model import Steps, Summary

DEVIATIONS: Final = 2.0
"""Of both sides' spread together: of normal noise, 95 % is below."""
_TO_STANDARD: Final = 1.4826
"""A normal distribution's standard deviation, as a multiple of its median absolute deviation."""
_FEW: Final = {2: 1.196, 3: 1.495, 4: 1.363, 5: 1.206, 6: 1.200, 7: 1.140, 8: 1.129, 9: 1.107}
"""What the deviation of so few samples is too small by: C. Croux, P. J. Rousseeuw, "Time-efficient
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
            # else the capture does not tell what a step started
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
        if number < LEAST_STEPS:
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
