"""One look at one device, in flat values with their unit in the name, and what happened to it.

A round's samples are JSON objects of the schema ``portagpu.sample/1``, its events of
``portagpu.event/1``: :func:`to_documents`. A value that is not known is null, never 0.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

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
    """One look at all devices. ``at_s`` is of the clock that only goes forward."""

    number: int
    time: datetime
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


def stamp(time: datetime) -> str:
    """``time`` as RFC 3339 in UTC with milliseconds."""
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
