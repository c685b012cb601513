"""One look at one device, in flat values with their unit in the name; devices from one look to the
next: who they are, what is new, and whether they stall; and the options of a monitor, with their
bounds.

A round's samples are JSON objects of the schema ``portagpu.sample/1``, its events of
``portagpu.event/1``: :func:`to_documents`. A value that is not known is null, never 0.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from portagpu.facts.readings.stream import Problem


SAMPLE_SCHEMA: Final = "portagpu.sample/1"
EVENT_SCHEMA: Final = "portagpu.event/1"


def _value(about: str, default: Any = None) -> Any:
    if default is dict:
        return field(default_factory=dict, metadata={"about": about})
    return field(default=default, metadata={"about": about})


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """Which device it is. An index does not identify it: tools and restarts change it."""

    kind: str = _value('"gpu" or "cpu"', "gpu")
    uuid: str | None = _value("the device's UUID, as its vendor's runtime spells it")
    pci: str | None = _value("its PCI address, with the domain")
    vendor: str | None = _value("its vendor")
    name: str | None = _value("its product")

    @property
    def key(self) -> str:
        """What finds this device again: its UUID, else its PCI address, else its name."""
        return self.uuid or self.pci or f"{self.kind} {self.name or self.vendor or ''}".strip()

    def __str__(self) -> str:
        """Its name for people: the address, which ``lspci`` shows too, else the UUID."""
        place = self.pci or self.uuid
        name = self.name or self.vendor or ("GPU" if self.kind == "gpu" else "CPU")
        return f"{name} {place}" if place else name


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningProcess:
    """A process on a device. ``user`` and ``name`` are None where this machine does not know it."""

    pid: int
    user: str | None = None
    name: str | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample(Device):
    """The values of one device at one time. None is unknown; an empty map has no known value."""

    utilization_percent: float | None = _value(
        "share of the time in which at least one kernel ran (of a CPU: all processors)"
    )
    memory_controller_percent: float | None = _value(
        "share of the time in which memory was read or written"
    )
    memory_used_bytes: int | None = _value("memory in use")
    memory_total_bytes: int | None = _value("memory that there is")
    power_w: float | None = _value("power that it draws")
    power_limit_w: float | None = _value("its present power limit")
    energy_j: float | None = _value("energy since the counter began")
    temperatures_c: Mapping[str, float] = _value("degrees Celsius by sensor", dict)
    limits_c: Mapping[str, float] = _value("degrees Celsius at which something happens", dict)
    margin_c: float | None = _value("degrees until heat slows the clocks, if it states no limit")
    clock_mhz: float | None = _value("clock of the cores")
    max_clock_mhz: float | None = _value("the highest clock of the cores")
    memory_clock_mhz: float | None = _value("clock of the memory")
    max_memory_clock_mhz: float | None = _value("the highest clock of the memory")
    throttling: tuple[str, ...] | None = _value("reasons that slow the clocks; [] is none")
    throttled_s: Mapping[str, float] = _value(
        "seconds in which a reason slowed the clocks, since its counter began, by reason", dict
    )
    fan_percent: float | None = _value("speed of the fans")
    corrected_errors: int | None = _value("corrected memory errors since the driver was loaded")
    uncorrected_errors: int | None = _value("uncorrected ones")
    retired_pages: Mapping[str, int] = _value("memory pages taken out of use, by cause", dict)
    remapped_rows: Mapping[str, int] = _value("memory rows that were replaced, by cause", dict)
    pending_repair: bool | None = _value("memory waits for a reset to be taken out of use")
    recovery: str | None = _value("the recovery that the device asks for; null is none or unknown")
    pcie_generation: int | None = _value("present generation of the PCI Express link")
    pcie_lanes: int | None = _value("its present width")
    pcie_replays: int | None = _value("packets that were sent again")
    links_up: int | None = _value("links to other devices that work; null if it has none")
    links_down: int | None = _value("links that do not work, or have no partner")
    link_errors: Mapping[str, int] = _value("errors of all its links, by the vendor's name", dict)
    processes: int | None = _value("processes on the device")
    running: tuple[RunningProcess, ...] | None = _value(
        "each of them: `pid`, `user`, `name` and `memory_bytes`; null if the source lists none"
    )
    errors_since_start: Mapping[str, int] = _value(
        "errors since the monitor started: corrected, uncorrected, pcie-replay, link", dict
    )
    stalled: bool | None = _value("busy, but near idle power, for long; null: cannot be judged")
    error: str | None = _value("why the device gave no values")


class Happening(StrEnum):
    """What happened."""

    STALLED = "stalled"
    STALL_ENDED = "stall-ended"
    GONE = "gone"
    BACK = "back"
    ERRORS = "errors"
    PROBLEM = "problem"
    PROBLEM_ENDED = "problem-ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """What happened, to a device or (without one) to a source of readings."""

    event: Happening
    text: str
    device: Device | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One look at all devices. ``at_s`` is of the clock that only goes forward.

    That of a recording has no ``time``, and is not written as lines.
    """

    number: int
    time: datetime | None
    at_s: float
    host: str
    samples: tuple[Sample, ...] = ()
    events: tuple[Event, ...] = ()
    problems: tuple[str, ...] = ()
    """What could not be read, for people."""
    missing: int = 0
    """Devices that were there since the start and are not now."""


def to_documents(each: Round) -> Iterator[dict[str, Any]]:
    """The JSON objects of a round: one for each sample, then one for each event."""
    when = stamp(each.time)
    for sample in each.samples:
        start = {"schema": SAMPLE_SCHEMA, "time": when, "sequence": each.number, "host": each.host}
        known = {name: getattr(sample, name) for name in _SAMPLE_NAMES}
        if sample.running is not None:
            known["running"] = [asdict(each) for each in sample.running]
        yield start | known
    for event in each.events:
        yield {
            "schema": EVENT_SCHEMA,
            "time": when,
            "sequence": each.number,
            "host": each.host,
            "event": event.event,
            **{name: getattr(event.device, name, None) for name in _DEVICE_NAMES},
            "text": event.text,
        }


def stamp(time: datetime | None) -> str:
    """``time`` as RFC 3339 in UTC with milliseconds; empty without one."""
    if time is None:
        return ""
    return time.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def described() -> dict[str, str]:
    """Every key of a sample and what it says, in order."""
    head = {
        "schema": f"`{SAMPLE_SCHEMA}`",
        "time": "when, in UTC (RFC 3339)",
        "sequence": "number of the look at all devices, from 0; a gap is looks that were left out",
        "host": "name of the host",
    }
    return head | {each.name: each.metadata["about"] for each in fields(Sample)}


_SAMPLE_NAMES: Final = tuple(each.name for each in fields(Sample))
_DEVICE_NAMES: Final = tuple(each.name for each in fields(Device))


AFTER_S: Final = 120.0
_ENDS_AFTER_S: Final = 10.0
_FORGETS_AFTER_S: Final = 30.0
_BUSY_PERCENT: Final = 90.0
_IDLE_PERCENT: Final = 5.0
_ABOVE_IDLE: Final = 0.15
_OF_LIMIT: Final = 0.25
_MAX_OF_LIMIT: Final = 0.4


@dataclass(slots=True)
class StallWatch:
    """Finds a job that has stalled, from the samples of one device in their order.

    Utilisation counts the time in which at least one kernel runs, and a kernel that only waits
    counts too: a collective whose other ranks never arrive spins for ever. Such a device shows
    100 % and close to idle power. Published readings of stuck jobs are in docs/monitor.md.

    The rule. A look is suspicious if utilisation is at least 90 % and power is at most

    - idle + 15 % of (limit - idle), where idle is the lowest power that this monitor has seen at a
      utilisation of at most 5 %, but at most 40 % of the limit: power is an average, and a short
      pause of a job shows what it drew before, or
    - 25 % of the limit, where the device was not seen idle.

    The limit is the device's own present power limit, else its target's. A stall begins once every
    look was suspicious for 120 s, and ends once none was for 10 s. What is not known changes
    nothing; after 30 s without known values the time starts again. The numbers are this project's
    choice, over the published readings; a device without power, limit or utilisation is not judged.
    """

    after_s: float = AFTER_S
    stalled: bool = False
    idle_w: float | None = None
    """The lowest power that was seen while the device was idle."""
    _changing_since: float | None = None
    _known_at: float | None = None

    def look(
        self,
        at_s: float,
        utilization_percent: float | None,
        power_w: float | None,
        limit_w: float | None,
    ) -> bool | None:
        """Whether the device is stalled at ``at_s``; None if that cannot be judged."""
        if utilization_percent is None or power_w is None or limit_w is None or limit_w <= 0:
            return True if self.stalled and self._is_recent(at_s) else None
        if not self._is_recent(at_s):
            self.stalled, self._changing_since = False, None
        self._known_at = at_s
        if utilization_percent <= _IDLE_PERCENT:
            self.idle_w = power_w if self.idle_w is None else min(self.idle_w, power_w)
        busy = utilization_percent >= _BUSY_PERCENT
        self._advance(at_s, suspicious=busy and power_w <= self.threshold_w(limit_w))
        return self.stalled

    def threshold_w(self, limit_w: float) -> float:
        """The power up to which a busy device with that limit is suspicious."""
        if self.idle_w is None or self.idle_w >= limit_w:
            return _OF_LIMIT * limit_w
        return min(self.idle_w + _ABOVE_IDLE * (limit_w - self.idle_w), _MAX_OF_LIMIT * limit_w)

    def _is_recent(self, at_s: float) -> bool:
        return self._known_at is not None and at_s - self._known_at <= _FORGETS_AFTER_S

    def _advance(self, at_s: float, *, suspicious: bool) -> None:
        if suspicious is self.stalled:
            self._changing_since = None
            return
        if self._changing_since is None:
            self._changing_since = at_s
        if at_s - self._changing_since >= (_ENDS_AFTER_S if self.stalled else self.after_s):
            self.stalled, self._changing_since = suspicious, None


GRACE_S: Final = 5.0
"""A device that misses looks for this long is gone; a library may be slow now and then."""


@dataclass(slots=True)
class _Known:
    """What is remembered of a device."""

    device: Device
    stall: StallWatch
    seen_at: float
    present: bool = True
    counters: dict[str, int] = field(default_factory=dict)
    errors: dict[str, int] = field(default_factory=dict)

    def event(self, happening: Happening, text: str) -> Event:
        return Event(event=happening, text=f"{self.device}: {text}", device=self.device)


@dataclass(slots=True)
class _Trouble:
    """A problem of a source since ``since``, and whether it was reported."""

    since: float
    reported: bool = False


class Tracker:
    """Fills in what one look alone does not show, and reports what changed since the last one.

    ``limit_of`` gives the power limit in W of a device that does not state its own.
    """

    def __init__(
        self,
        stall_after_s: float = AFTER_S,
        grace_s: float = GRACE_S,
        limit_of: Callable[[Device], float | None] = lambda _: None,
    ) -> None:
        self._stall_after_s = stall_after_s
        self._grace_s = grace_s
        self._limit_of = limit_of
        self._known: dict[str, _Known] = {}
        self._troubles: dict[str, _Trouble] = {}
        self._first = True

    @property
    def missing(self) -> int:
        """How many devices were there since the start and are not now."""
        return sum(not each.present for each in self._known.values())

    def follow(
        self, at_s: float, samples: Sequence[Sample], problems: Sequence[Problem] = ()
    ) -> tuple[tuple[Sample, ...], tuple[Event, ...]]:
        """The samples with what only time shows, and the events since the last call."""
        events: list[Event] = []
        followed = []
        for sample in map(self._named, samples):
            known = self._recall(at_s, sample, events)
            errors = list(_count_errors(known, sample))
            if errors:
                events.append(known.event(Happening.ERRORS, f"new errors: {', '.join(errors)}"))
            followed.append(self._judged(at_s, sample, known, events))
        events += self._gone(at_s, problems)
        events += self._troubles_told(at_s, problems)
        self._first = False
        return tuple(followed), tuple(events)

    def _named(self, sample: Sample) -> Sample:
        """``sample`` with the name and UUID that the device had when more of it was known."""
        if sample.pci is None or (sample.uuid is not None and sample.name is not None):
            return sample
        for known in self._known.values():
            device = known.device
            if device.pci == sample.pci and sample.uuid in (None, device.uuid):
                return replace(sample, uuid=device.uuid, name=sample.name or device.name)
        return sample

    def _recall(self, at_s: float, sample: Sample, events: list[Event]) -> _Known:
        known = self._known.get(sample.key)
        if known is None:
            known = self._without_uuid(sample)
            is_new = known is None
            known = known or _Known(_device(sample), StallWatch(self._stall_after_s), at_s)
            self._known[sample.key] = known
            known.device = _device(sample)
            if is_new and not self._first:
                events.append(known.event(Happening.BACK, "appeared"))
        elif not known.present:
            events.append(known.event(Happening.BACK, "is back"))
        known.seen_at, known.present = at_s, True
        return known

    def _without_uuid(self, sample: Sample) -> _Known | None:
        """The device at that address whose UUID was not known until this sample."""
        for key, known in self._known.items():
            device = known.device
            if sample.pci is not None and device.uuid is None and device.pci == sample.pci:
                return self._known.pop(key)
        return None

    def _gone(self, at_s: float, problems: Sequence[Problem]) -> Iterator[Event]:
        for known in self._known.values():
            if known.present and at_s - known.seen_at > self._grace_s:
                known.present = False
                ids = (known.device.pci, known.device.uuid)
                why = next(
                    (p.text for p in problems if p.device is not None and p.device in ids), ""
                )
                yield known.event(Happening.GONE, f"gives no readings{f' ({why})' if why else ''}")

    def _troubles_told(self, at_s: float, problems: Sequence[Problem]) -> Iterator[Event]:
        """What a source lacks, once it lasts; a device that it lacks is reported as gone."""
        now = {each.source: each.text for each in problems if each.device is None}
        for source, text in now.items():
            trouble = self._troubles.setdefault(source, _Trouble(at_s))
            if not trouble.reported and (self._first or at_s - trouble.since > self._grace_s):
                trouble.reported = True
                yield Event(event=Happening.PROBLEM, text=text)
        for source in [source for source in self._troubles if source not in now]:
            if self._troubles.pop(source).reported:
                yield Event(event=Happening.PROBLEM_ENDED, text=f"{source} answers again")

    def _judged(self, at_s: float, sample: Sample, known: _Known, events: list[Event]) -> Sample:
        before = known.stall.stalled
        limit_w = sample.power_limit_w or self._limit_of(known.device)
        stalled = None
        if sample.kind == "gpu":
            stalled = known.stall.look(at_s, sample.utilization_percent, sample.power_w, limit_w)
        if known.stall.stalled and not before:
            text = (
                f"may be stalled: {sample.utilization_percent:g} % busy at {sample.power_w:g} W "
                f"of {limit_w:g} W for {known.stall.after_s:g} s"
            )
            events.append(known.event(Happening.STALLED, text))
        elif before and not known.stall.stalled:
            events.append(known.event(Happening.STALL_ENDED, "is no longer stalled"))
        return replace(sample, stalled=stalled, errors_since_start=dict(known.errors))


def _device(sample: Sample) -> Device:
    return Device(**{each.name: getattr(sample, each.name) for each in fields(Device)})


def _count_errors(known: _Known, sample: Sample) -> Iterator[str]:
    """Add what the counters rose by; "3 corrected" for each that did. One that fell began again.

    Links are counted together, and so only where a look shows as many of them as one before.
    """
    links = (sample.links_up or 0) + (sample.links_down or 0)
    counters = (
        ("corrected", "", sample.corrected_errors),
        ("uncorrected", "", sample.uncorrected_errors),
        ("pcie-replay", "", sample.pcie_replays),
        ("link", str(links), sum(sample.link_errors.values()) if sample.link_errors else None),
    )
    for name, which, now in counters:
        if now is None:
            continue
        before = known.counters.get(name + which)
        rise = 0 if before is None else now - before if now >= before else now
        known.counters[name + which] = now
        known.errors[name] = known.errors.get(name, 0) + rise
        if rise:
            yield f"{rise} {name}"


MIN_INTERVAL_S: Final = 0.1
"""The shortest interval: devices average their own values over as much or more."""
MAX_INTERVAL_S: Final = 86400.0
"""The longest interval, a day."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorOptions:
    """What to do. The monitor ends after ``count`` looks or ``duration_s``, or never."""

    interval_s: float = 1.0
    count: int | None = None
    duration_s: float | None = None
    stall_after_s: float = AFTER_S

    @property
    def stale_s(self) -> float:
        """The age from which a device's last values are no longer shown."""
        return max(GRACE_S, 3 * self.interval_s)
