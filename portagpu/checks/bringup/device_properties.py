"""Compares the properties that a device reports with the facts of its target: a table of rules.

A row is compared if torch reports its fields and a fact that is not "unverified" states the value.
The fields are those of torch's device properties: 2.11 and 2.13 have the same ones in CUDA builds,
and ROCm builds leave some out.

A part of a GPU (a slice, a partition) has the per-unit properties of the GPU, and a share of its
units and memory. The share is known for equal parts; otherwise the row is UNVERIFIED.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from portagpu.facts.targets import Confidence
from portagpu.facts.targets.rules import fits_sold
from portagpu.runs.results.judgement import Judgement
from portagpu.runs.results.verdicts import Verdict
from portagpu.runs.results.wording import at_least, exactly, within

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from portagpu.facts.targets import Fact, Target

KEPT_BY_DRIVER: Final = 0.03
"""The most of the memory that a driver keeps from programs. 1.5 % is the most seen: torch reports
42297524224 B of an A100's 40960 MiB; 1.0 % of an L40S, 0.4 % of an H200, nothing of an MI300X."""

_BANDWIDTH_TOLERANCE: Final = 0.03
"""Products state rounded bandwidths: an H200's 6144 bit at 3201 MHz are 4917 GB/s, sold as 4800."""

_TRANSFERS_A_CLOCK: Final = (2, 4, 8, 16)
"""By memory: of HBM CUDA's clock carries 2 transfers and HIP's 4, of GDDR6 HIP's carries 16."""

_MIB: Final = 2**20
_GIB: Final = 2**30


class FieldComparison(NamedTuple):
    """A device's value compared with a fact: whether they agree, and the comparison in words.

    ``value`` and ``unit`` are the device's; ``expected(source)`` is the expectation made of the
    fact (``portagpu.runs.results.wording``).
    """

    agrees: bool
    words: str
    value: float
    unit: str
    expected: Callable[[str], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Subject:
    """A device and its target, which is the whole GPU's if the device is a part of it.

    ``reported`` has torch's fields. ``part`` names the part, None for a whole GPU. ``parts`` is the
    number of equal parts, None if they may differ.
    """

    reported: Mapping[str, float]
    target: Target
    part: str | None = None
    parts: int | None = 1

    @property
    def counts_pairs(self) -> bool:
        """Whether the unit is a workgroup processor: some fields then state half of it.

        Source: HIP-WGP in matrix/targets/sources.toml.
        """
        fact = self.target.fact("exec.unit_count")
        return fact is not None and fact.unit == "WGP"


class Share(Enum):
    """How a property of a part relates to that of the whole GPU."""

    ALL = "the same: it is of one unit"
    EQUAL = "an equal share"
    UNKNOWN = "what no fact states"


@dataclass(frozen=True, slots=True)
class Row:
    """``compare(subject, fact)`` compares the device's value with the fact.

    The first of ``keys`` that is stated counts. A difference in a ``firm`` row is a FAIL where more
    than a third party states the fact; in the others the driver decides what exactly it reports,
    and a difference is UNVERIFIED. ``match`` is the range of the target's ``Match`` whose outside
    is always a FAIL: a device there is another one.
    """

    name: str
    fields: tuple[str, ...]
    keys: tuple[str, ...]
    compare: Callable[[Subject, Fact], FieldComparison]
    share: Share = Share.ALL
    firm: bool = True
    match: str | None = None

    def is_stated_for(self, subject: Subject) -> bool:
        """Whether facts state this property of the device."""
        known = subject.parts is not None if self.share is Share.EQUAL else subject.part is None
        return self.share is Share.ALL or known


def compare(subject: Subject, device: str, source: str = "this torch") -> Iterator[Judgement]:
    """A judgement for each comparable row, and one that lists the others.

    ``device`` is its name in results; ``source`` says in words who reported the fields.
    """
    silent, unstated = [], []
    for row in ROWS:
        fact = _fact(subject.target, row.keys)
        if any(field not in subject.reported for field in row.fields):
            silent.append(row.name)
        elif fact is None:
            unstated.append(row.name)
        elif not row.is_stated_for(subject):
            reason = (
                f"the device is the part {subject.part} of a GPU, and no fact of "
                f"{subject.target.id} states that part"
            )
            yield Judgement(Verdict.UNVERIFIED, reason, name=row.name, device=device)
        else:
            yield _judge(row, subject, fact, device)
    left = [
        f"{why}: {', '.join(names)}"
        for why, names in (
            (f"not reported by {source}", silent),
            (f"not stated by {subject.target.id}", unstated),
        )
        if names
    ]
    if left:
        yield Judgement(Verdict.SKIP, "; ".join(left), name="not-compared", device=device)


def _fact(target: Target, keys: tuple[str, ...]) -> Fact | None:
    facts = [fact for key in keys if (fact := target.fact(key)) is not None]
    known = [fact for fact in facts if fact.confidence is not Confidence.UNVERIFIED]
    return known[0] if known else None


def _judge(row: Row, subject: Subject, fact: Fact, device: str) -> Judgement:
    comparison = row.compare(subject, fact)
    reason = f"{subject.target.id} states {comparison.words}"
    expected = comparison.expected(f"{subject.target.id}: {fact.key}")

    def found(verdict: Verdict, reason: str) -> Judgement:
        return Judgement(
            verdict,
            reason,
            comparison.value,
            comparison.unit,
            expected,
            name=row.name,
            device=device,
        )

    if row.share is Share.EQUAL and subject.parts != 1:
        reason = f"{reason}, one of {subject.parts} equal parts"
    range_ = getattr(subject.target.match, row.match) if row.match is not None else None
    whole = subject.reported[row.fields[0]] * (subject.parts or 1)
    outside = range_ is not None and not range_[0] <= whole <= range_[1]
    if comparison.agrees and not outside:
        return found(Verdict.PASS, reason)
    if outside or (row.firm and fact.confidence is not Confidence.SECONDARY):
        return found(Verdict.FAIL, reason)
    why = "only a third party states it" if row.firm else "the driver decides what it counts"
    return found(Verdict.UNVERIFIED, f"{reason}; {why}")


def _equal_per_unit(field: str, unit: str) -> Callable[[Subject, Fact], FieldComparison]:
    """Compare for equality; if a unit is a pair of compute units, the value of one agrees too."""

    def judge(subject: Subject, fact: Fact) -> FieldComparison:
        comparison = _equal(field, unit)(subject, fact)
        if subject.counts_pairs and 2 * comparison.value == _number(fact):
            wanted = partial(exactly, comparison.value, unit=unit)
            words = f"{comparison.words}, of one compute unit of two"
            return comparison._replace(agrees=True, words=words, expected=wanted)
        return comparison

    return judge


def _equal(field: str, unit: str) -> Callable[[Subject, Fact], FieldComparison]:
    def judge(subject: Subject, fact: Fact) -> FieldComparison:
        found, stated = subject.reported[field], _number(fact)
        words = f"{stated:g} {unit}, the device reports {found:g}"
        return FieldComparison(
            found == stated, words, found, unit, partial(exactly, stated, unit=unit)
        )

    return judge


def _units(subject: Subject, fact: Fact) -> FieldComparison:
    """Compare for equality; with GPU_ENABLE_WGP_MODE=0 HIP counts compute units, not pairs."""
    found = subject.reported["multi_processor_count"]
    stated = _number(fact) / (subject.parts or 1)
    unit = fact.unit or "1"
    words = f"{stated:g} {unit}, the device reports {found:g}"
    if subject.counts_pairs and found == 2 * stated:
        words, stated = f"{words}, counted as compute units", found
    return FieldComparison(found == stated, words, found, unit, partial(exactly, stated, unit=unit))


def _memory(subject: Subject, fact: Fact) -> FieldComparison:
    """Compare with the reported size, of which a driver keeps a share, or with the sold size."""
    parts, found = subject.parts or 1, subject.reported["total_memory"]
    says = f"the device reports {found / _GIB:.1f} GiB"
    if fact.key == "memory.reported":
        most = _number(fact) / parts
        words = f"{most / _GIB:.1f} GiB, of which a driver keeps up to {KEPT_BY_DRIVER:.0%}, {says}"
        agrees = (1 - KEPT_BY_DRIVER) * most <= found <= most

        def wanted(source: str) -> Mapping[str, Any]:
            return {**exactly(most, source, "B"), "lower": -KEPT_BY_DRIVER}

        return FieldComparison(agrees, words, found, "B", wanted)
    sold = fact.value if isinstance(fact.value, tuple) else (fact.value,)
    agrees = any(fits_sold(found * parts, float(each)) for each in sold)
    words = f"{' or '.join(f'{each} GB' for each in sold)}, {says}"
    # the size that the device has, or else is nearest to
    size = min(sold, key=lambda each: abs(float(each) * 1e9 / parts - found))
    return FieldComparison(
        agrees, words, found, "B", partial(_about_sold, float(size) * 1e9 / parts)
    )


def _about_sold(size: float, source: str) -> Mapping[str, Any]:
    """The bounds of ``fits_sold``, as fractions of the size in GB of 1e9 bytes."""
    return {**exactly(size, source, "B"), "lower": -0.15, "upper": 1.01 * _GIB / 1e9 - 1}


def _l2(subject: Subject, fact: Fact) -> FieldComparison:
    """Compare for equality with one chiplet's cache, which HIP reports, or with the whole cache."""
    found, stated = subject.reported["L2_cache_size"], _number(fact)
    words = f"{fact.value} MiB, the device reports {found / _MIB:g}"
    wanted = partial(exactly, stated * _MIB, unit="B")
    return FieldComparison(found == stated * _MIB, words, found, "B", wanted)


def _bandwidth(subject: Subject, fact: Fact) -> FieldComparison:
    """Compare bus width times clock times transfers per clock, which the driver decides."""
    stated, width = _number(fact), subject.reported["memory_bus_width"]
    mhz = subject.reported["memory_clock_rate"] / 1000
    rates = [width / 8 * mhz * each / 1000 for each in _TRANSFERS_A_CLOCK]
    nearest = min(rates, key=lambda rate: abs(rate - stated))
    agrees = abs(nearest - stated) <= _BANDWIDTH_TOLERANCE * stated
    words = f"{stated:g} GB/s, the device reports a bus of {width:g} bit at {mhz:g} MHz"
    wanted = partial(within, stated, _BANDWIDTH_TOLERANCE, unit="GB/s")
    return FieldComparison(agrees, words, nearest, "GB/s", wanted)


def _clock(subject: Subject, fact: Fact) -> FieldComparison:
    """Compare: the highest clock is at least the one that the peaks are stated for."""
    found, stated = subject.reported["clock_rate"] / 1000, _number(fact)
    words = f"peaks at {fact.value} MHz, the device reports {found:g} MHz"
    return FieldComparison(
        found >= stated, words, found, "MHz", partial(at_least, stated, unit="MHz")
    )


def _number(fact: Fact) -> float:
    value: Any = fact.value
    return float(value)


ROWS: Final = (
    Row(
        "unit-count",
        ("multi_processor_count",),
        ("exec.unit_count",),
        _units,
        Share.EQUAL,
        match="unit_count",
    ),
    Row(
        "memory-size",
        ("total_memory",),
        ("memory.reported", "memory.size", "memory.sizes"),
        _memory,
        Share.EQUAL,
        firm=False,
        match="memory_bytes",
    ),
    Row(
        "threads-per-block",
        ("max_threads_per_block",),
        ("exec.max_threads_per_block",),
        _equal("max_threads_per_block", "threads"),
    ),
    Row(
        "threads-per-unit",
        ("max_threads_per_multi_processor",),
        ("exec.max_threads_per_unit",),
        _equal_per_unit("max_threads_per_multi_processor", "threads"),
    ),
    Row(
        "shared-memory-per-block",
        ("shared_memory_per_block",),
        ("shared_memory.per_block_default",),
        _equal("shared_memory_per_block", "B"),
    ),
    Row(
        "shared-memory-optin",
        ("shared_memory_per_block_optin",),
        ("shared_memory.per_block_optin",),
        _equal("shared_memory_per_block_optin", "B"),
    ),
    Row(
        "shared-memory-per-unit",
        ("shared_memory_per_multiprocessor",),
        ("shared_memory.per_unit",),
        _equal_per_unit("shared_memory_per_multiprocessor", "B"),
    ),
    Row(
        "registers-per-unit",
        ("regs_per_multiprocessor",),
        ("register.file_per_unit",),
        _equal_per_unit("regs_per_multiprocessor", "registers"),
        firm=False,
    ),
    Row(
        "l2-cache",
        ("L2_cache_size",),
        ("cache.l2_per_chiplet", "cache.l2_total"),
        _l2,
        Share.UNKNOWN,
        firm=False,
    ),
    Row(
        "memory-bus",
        ("memory_bus_width", "memory_clock_rate"),
        ("memory.bandwidth",),
        _bandwidth,
        Share.UNKNOWN,
        firm=False,
    ),
    Row(
        "clock",
        ("clock_rate",),
        ("peak.clock.vector", "peak.clock.matrix"),
        _clock,
        firm=False,
    ),
)
"""In the order of the results. Sizes are bytes, clocks kHz, the bus bits, as torch has them."""

FIELDS: Final = tuple(dict.fromkeys(field for row in ROWS for field in row.fields))
"""Every field of torch's properties that a row compares."""
