"""Profiles: what was measured to be the fastest way to perform collectives, on which machine.

A profile holds for the machine, the versions and the numbers of ranks it was measured with.
``portagpu collectives tune`` writes it; ``choose`` and
:class:`portagpu.devices.collectives.algorithms.TunedGroup` read it. Its form is
``portagpu.tuning/1``, in JSON. Imports no torch.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.documents import decode, encode, mapping, version
from portagpu.base.files import read_bounded, write_atomic
from portagpu.base.text import one_line
from portagpu.base.units import size
from portagpu.devices.collectives.buckets import BucketChoice, choose_ddp
from portagpu.devices.collectives.cost import Fit  # noqa: TC001 - documents read it
from portagpu.facts.nccl_tests.model import TUNED
from portagpu.facts.readings.model import FormatError
from portagpu.facts.vendors import tables

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What was measured on. ``units`` are those of ``Sizing``: the cores of a CPU.

    ``shared`` says that all ranks use one device, as on a CPU: collectives run on what computes.
    """

    backend: str
    target: str | None
    arch: str
    product: str | None
    units: int
    shared: bool = False

    def __str__(self) -> str:
        units = "cores" if self.shared else "units"
        return f"{self.product or self.target or self.arch} with {self.units} {units}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """The communication library and torch; Gloo has no version of its own."""

    library: str
    version: str | None
    torch: str

    def __str__(self) -> str:
        own = "" if self.version is None else f" {self.version} and"
        return f"{self.library}{own or ' of'} torch {self.torch}"


SCHEMA: Final = "portagpu.tuning/1"
TABLE: Final = "tuning"
"""A vendor's table of candidates and of its tuner's configuration file."""
DEFAULT: Final = "call"
"""The library's own call, one for each tensor, in the environment as it is."""
WORTH: Final = 1.03
"""A candidate is believed if it repeats to be faster by this factor."""
_MAX_BYTES: Final = 16 << 20
_MAX_DIGITS: Final = 19


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One thing to try: an algorithm of ``algorithms``, or settings of a vendor's table.

    ``environment`` is set before the ranks start. ``algorithm``, ``protocol`` and ``channels`` are
    what it makes the library take, in the library's names; None leaves the channels to the library.
    """

    name: str
    way: str = DEFAULT
    environment: Mapping[str, str] = field(default_factory=dict)
    algorithm: str = ""
    protocol: str = ""
    channels: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One size. ``ratio`` is the median of default time over chosen time, of ``pairs`` pairs.

    ``spread`` is the median absolute deviation of the ratios. ``refuted`` names a candidate that
    was fastest at first and was not when it was measured again.
    """

    size_bytes: int
    default_us: float
    chosen_us: float
    ratio: float
    spread: float
    pairs: int
    refuted: str = ""

    def __post_init__(self) -> None:
        numbers = (self.size_bytes, self.default_us, self.chosen_us, self.ratio)
        if not all(math.isfinite(each) and each > 0 for each in numbers):
            raise ValueError("a size, its times and its ratio are above 0")
        if min(self.spread, self.pairs) < 0:
            raise ValueError("a spread and a number of pairs are at least 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """The sizes for which one candidate was chosen, both ends included."""

    low_bytes: int
    high_bytes: int
    candidate: Candidate
    points: tuple[Point, ...]

    def __post_init__(self) -> None:
        inside = all(self.low_bytes <= each.size_bytes <= self.high_bytes for each in self.points)
        if not (0 < self.low_bytes <= self.high_bytes and self.points and inside):
            raise ValueError("a range holds its points, and begins above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One operation on this many ranks: its ranges in order, without gaps.

    ``fit`` is the line through the times of the chosen candidates, ``default_fit`` that through the
    library's own call; None where there were too few sizes.
    """

    operation: str
    dtype: str
    ranks: int
    nodes: int
    ranges: tuple[Range, ...]
    fit: Fit | None = None
    default_fit: Fit | None = None

    def __post_init__(self) -> None:
        if self.operation not in TUNED:
            raise ValueError(f"{self.operation!r} is none of {', '.join(TUNED)}")
        if self.ranks < 2 or self.nodes < 1 or not self.ranges:
            raise ValueError("an entry has at least 2 ranks, 1 node and 1 range")
        for fit in (self.fit, self.default_fit):
            if fit is not None and fit.ranks != self.ranks:
                raise ValueError(f"an entry of {self.ranks} ranks has a line of {fit.ranks}")
        for before, after in zip(self.ranges, self.ranges[1:], strict=False):
            if after.low_bytes != before.high_bytes + 1:
                raise ValueError("ranges follow one another without gaps")

    @property
    def points(self) -> Iterator[Point]:
        """All points, in the order of their sizes."""
        return (point for each in self.ranges for point in each.points)

    def range_of(self, size_bytes: int) -> Range | None:
        """The range that holds that size; None outside of the measured sizes."""
        return next(
            (each for each in self.ranges if each.low_bytes <= size_bytes <= each.high_bytes), None
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What was measured on one machine. ``made`` is when, with its zone."""

    machine: Machine
    stack: Stack
    portagpu: str
    made: str
    entries: tuple[Entry, ...]

    def __post_init__(self) -> None:
        keys = [(each.operation, each.dtype, each.ranks, each.nodes) for each in self.entries]
        if not keys or len(set(keys)) < len(keys):
            raise ValueError("a profile has entries, each for another question")

    def find(self, operation: str, ranks: int, nodes: int = 1, dtype: str = "") -> Entry | None:
        """The entry of an operation; None without one.

        Raises ValueError without ``dtype`` where several dtypes were measured.
        """
        found = [
            each
            for each in self.entries
            if (each.operation, each.ranks, each.nodes) == (operation, ranks, nodes)
            and dtype in ("", each.dtype)
        ]
        if len(found) > 1:
            names = ", ".join(each.dtype for each in found)
            raise ValueError(f"the profile has times of {operation} for {names}: say which dtype")
        return found[0] if found else None

    def check(self, machine: Machine, stack: Stack) -> None:
        """Raise ValueError, with both sides, for another machine or other versions."""
        if machine != self.machine:
            here, there = str(machine), str(self.machine)
            if here == there:
                # they differ in what the words leave out
                here, there = repr(machine), repr(self.machine)
            raise ValueError(
                f"profile of another machine: it was measured on {there}, this is {here}: run "
                "portagpu collectives tune here"
            )
        if stack != self.stack:
            raise ValueError(
                f"profile of another version: it was measured with {self.stack}, this is {stack}: "
                "run portagpu collectives tune again"
            )

    def check_ranks(self, ranks: int, nodes: int = 1) -> None:
        """Raise ValueError if nothing was measured on this many ranks and nodes."""
        worlds = dict.fromkeys((each.ranks, each.nodes) for each in self.entries)
        if (ranks, nodes) not in worlds:
            known = ", ".join(f"{r} on {n} node{'s' * (n > 1)}" for r, n in worlds)
            raise ValueError(
                f"the profile has no times of {ranks} ranks on {nodes} "
                f"node{'s' * (nodes > 1)}: it has {known}"
            )

    @property
    def basis(self) -> str:
        """What it was measured on, in words."""
        return f"profile of {self.machine}, {self.stack}"

    def write(self, path: str | os.PathLike[str]) -> Path:
        """Write it to a file, completely or not at all; raises OutputError."""
        document = {"schema": SCHEMA, **encode(self)}
        return write_atomic(path, json.dumps(document, indent=1) + "\n")

    def choose_buckets(
        self,
        sizes: Sequence[int],
        backward_us: float,
        ranks: int,
        nodes: int = 1,
        *,
        dtype: str = "",
        hook: bool = False,
    ) -> BucketChoice:
        """DDP's buckets by the measured times; see :mod:`portagpu.devices.collectives.buckets`.

        ``sizes`` are the bytes of the parameters, in the order of ``model.parameters()``, all of
        one ``dtype``. DDP calls the library itself, or with ``hook`` the chosen candidates. Raises
        ValueError where no line was fitted to all_reduce, and as :meth:`find` does.
        """
        entry = self.find("all_reduce", ranks, nodes, dtype)
        fit = None if entry is None else entry.fit if hook else entry.default_fit
        if fit is None:
            raise ValueError(
                f"bucket sizes need the times of all_reduce on {ranks} ranks, of at least 3 sizes: "
                "the profile has none"
            )
        line = fit
        return choose_ddp(
            sizes,
            backward_us,
            lambda _, size_bytes: line.time_us(size_bytes),
            overlap=not self.machine.shared,
        )


def read_profile(path: str | os.PathLike[str]) -> Profile:
    """The profile in a file. Raises OSError, and FormatError in one line for what is none."""
    data = read_bounded(path, _MAX_BYTES + 1)
    try:
        if len(data) > _MAX_BYTES:
            raise ValueError(f"it has more than {size(_MAX_BYTES)}")
        document = json.loads(
            data.decode("utf-8"), parse_constant=_no_number, parse_float=_float, parse_int=_int
        )
        rest = dict(mapping(document, "profile"))
        version(SCHEMA).read(rest.pop("schema", None), "schema")
        if odd := next((each for each in _texts(document) if not each.isprintable()), None):
            raise ValueError(f"{odd[:40]!r} has characters that cannot be printed")
        return decode(Profile, rest, "profile")
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FormatError(one_line(f"{path} is not a profile of collectives: not JSON")) from error
    except ValueError as error:
        raise FormatError(one_line(f"{path} is not a profile of collectives: {error}")) from error


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is not a number")


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each)
    elif isinstance(value, dict):
        yield from value
        for each in value.values():
            yield from _texts(each)


def _float(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"{text} is too large")
    return value


def _int(text: str) -> int:
    if len(text) > _MAX_DIGITS:
        raise ValueError(f"{text[:_MAX_DIGITS]}... is too large")
    return int(text)


def in_ranges(points: Sequence[tuple[Candidate, Point]]) -> tuple[Range, ...]:
    """The ranges of points in the order of their sizes.

    Two neighbours with different candidates meet at the geometric mean of their sizes.
    """
    groups: list[tuple[Candidate, list[Point]]] = []
    for candidate, point in points:
        if groups and groups[-1][0] == candidate:
            groups[-1][1].append(point)
        else:
            groups.append((candidate, [point]))
    found: list[Range] = []
    for number, (candidate, members) in enumerate(groups):
        last = members[-1].size_bytes
        high = last
        if number + 1 < len(groups):
            high = math.isqrt(last * groups[number + 1][1][0].size_bytes)
        low = found[-1].high_bytes + 1 if found else members[0].size_bytes
        found.append(
            Range(low_bytes=low, high_bytes=high, candidate=candidate, points=tuple(members))
        )
    return tuple(found)


def repeats(ratios: Sequence[Sequence[float]]) -> bool:
    """Whether a candidate proved faster: ``ratios`` are default over candidate, for each order.

    In every order the median is at least ``WORTH``, and three quarters of all are above 1.
    """
    together = [each for of in ratios for each in of]
    if len(together) < 4:
        return False
    return min(map(median, ratios)) >= WORTH and quantiles(together, method="inclusive")[0] > 1


def settings(vendor: str, library: str, version: str | None, operation: str) -> list[Candidate]:
    """The candidates of a vendor's table for that library and version; none without a table.

    Those whose versions do not hold that of the library are left out, all of them without one.
    """
    table = tables(TABLE).get(vendor, {})
    if table.get("library") != library or version is None:
        return []
    return [
        Candidate(
            name=row["name"],
            environment=row["environment"],
            algorithm=row.get("algorithm", ""),
            protocol=row.get("protocol", ""),
            channels=row.get("channels"),
        )
        for row in table.get("candidate", ())
        if operation in row["operations"] and holds(row, version)
    ]


def holds(row: Mapping[str, Any], version: str) -> bool:
    """Whether ``version`` is from ``since`` on and before ``before``, where the row has these."""
    this = _numbers(version)
    before = row.get("before")
    return _numbers(row["since"]) <= this and (before is None or this < _numbers(before))


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(each) for each in version.split(".") if each.isdecimal())
