"""Devices as a vendor's library shows them, from a child process: once, or in a stream.

:func:`probe` asks once. :class:`Stream` has one child process for each source, which stays open.

A :class:`Source` names a module whose function reads the values that change, once a call. It opens
its library at the first call and keeps it. A library that hangs, dies or loses a device does no
harm to the others: its child is ended and started again, after pauses that grow, and the sample
says so. Devices are known by :attr:`portagpu.facts.readings.Reading.key`, never by index.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.patience import LIMITS
from portagpu.base.subprocesses import Caller, call, start_caller
from portagpu.facts.readings.model import Findings, FormatError, Source, from_document

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from typing import Self

    from portagpu.facts.readings.model import GpuState, Link, Pcie, Reading


# A value beyond these is a driver's way to say that there is none, is in another unit, or was read
# with the structures of another version of the library (a powered device draws something; the
# kernel's own unit for temperatures is 0.001 degree).
_PLAUSIBLE: Final = {
    "clock_mhz": (1.0, 1e5),
    "memory_clock_mhz": (1.0, 1e5),
    "max_clock_mhz": (1.0, 1e5),
    "max_memory_clock_mhz": (1.0, 1e5),
    "power_w": (0.001, 1e4),
    "power_limit_w": (1.0, 1e4),
    "utilization_percent": (0.0, 100.0),
    "memory_utilization_percent": (0.0, 100.0),
    "energy_j": (0.0, 1e15),
    "fan_percent": (0.0, 200.0),
    "fan_rpm": (0.0, 1e5),
    "memory_used_bytes": (0.0, float(1 << 44)),
}
_MEMORY_BYTES: Final = (float(1 << 20), float(1 << 44))
_CELSIUS: Final = (-40.0, 150.0)
# of the die, the hottest place first
_TEMPERATURES: Final = ("hotspot", "gpu", "edge")


def probe(
    module: str, library: str, addresses: Collection[str] = (), only: str | None = None
) -> Findings:
    """The findings that ``module.probe(only)`` returns in a child process.

    ``library`` is its name for people. ``addresses`` are the GPUs that PCI shows, empty where that
    is not known. ``only`` is the address of the one GPU to read. A child that hangs or dies, and an
    answer that is not possible, are problems.
    """
    document, problem = call(module, "probe", (only,), limit_s=LIMITS.library_s)
    if not problem:
        try:
            return plausible_findings(from_document(document), library, addresses)
        except FormatError as error:
            problem = str(error)
    return Findings(kind=library, problems=(f"{library} does not answer: {problem}",))


def telemetry_of(
    readings: Collection[Reading], pci: str | None, uuid: str | None
) -> Mapping[str, float]:
    """Telemetry of the GPU at that address, else of the GPU or part with that UUID.

    Names are those of :meth:`portagpu.devices.contract.Plugin.telemetry`; what is not known is
    absent."""
    for reading in readings:
        if reading.pci == pci if pci is not None else uuid in _uuids(reading):
            state = reading.state
            degrees = [state.temperatures_c.get(name) for name in _TEMPERATURES]
            found = {
                "clock_mhz": state.clock_mhz,
                "memory_clock_mhz": state.memory_clock_mhz,
                "temperature_c": next((value for value in degrees if value is not None), None),
                "power_w": state.power_w,
            }
            return {name: float(value) for name, value in found.items() if value is not None}
    return {}


def _uuids(reading: Reading) -> set[str]:
    return {uuid for uuid in (reading.uuid, *(p.uuid for p in reading.parts)) if uuid is not None}


def plausible_findings(
    findings: Findings, library: str, addresses: Collection[str] = ()
) -> Findings:
    """``findings`` without values that no device has, and without GPUs that PCI does not show."""
    strange = [r for r in findings.readings if addresses and r.pci not in (None, *addresses)]
    problems = list(findings.problems)
    if strange:
        problems.append(
            f"{library} shows {len(strange)} GPU(s) where PCI shows none (at {strange[0].pci}): "
            "its Python package is of another version than its library; install the one that your "
            "driver or ROCm brings"
        )
    readings = tuple(
        _plausible_reading(reading) for reading in findings.readings if reading not in strange
    )
    return replace(findings, readings=readings, problems=tuple(problems))


def _is_within(value: Any, bounds: tuple[float, float]) -> bool:
    return value is not None and math.isfinite(value) and bounds[0] <= value <= bounds[1]


def _plausible_reading(reading: Reading) -> Reading:
    """``reading`` without values that no such device has."""
    memory = reading.memory_bytes
    return replace(
        reading,
        memory_bytes=memory if _is_within(memory, _MEMORY_BYTES) else None,
        pcie=_plausible_pcie(reading.pcie),
        state=_plausible_state(reading.state),
    )


def _plausible_state(state: GpuState) -> GpuState:
    values: dict[str, Any] = {
        name: value if _is_within(value := getattr(state, name), bounds) else None
        for name, bounds in _PLAUSIBLE.items()
    }
    return replace(
        state,
        temperatures_c=_plausible_degrees(state.temperatures_c),
        limits_c=_plausible_degrees(state.limits_c),
        **values,
    )


def _plausible_degrees(found: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in found.items() if _is_within(value, _CELSIUS)}


def _plausible_pcie(link: Pcie) -> Pcie:
    values: dict[str, Any] = {}
    for name in ("", "max_", "device_"):
        generation, width = getattr(link, f"{name}generation"), getattr(link, f"{name}width")
        values[f"{name}generation"] = generation if generation in range(1, 8) else None
        values[f"{name}width"] = width if width in (1, 2, 4, 8, 12, 16, 32) else None
    return replace(link, **values)


__all__ = ["Problem", "Sample", "Source", "Stream"]

FIRST_PAUSE_S: Final = 1.0
MAX_PAUSE_S: Final = 60.0
"""The pause before a child is started again doubles from the first to the longest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """What a sample lacks, as a sentence for people; ``device`` is its key, None for a source."""

    source: str
    text: str
    device: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What all sources said at one time.

    ``time_s`` is the end of the sample in seconds since the Unix epoch, ``monotonic_s`` the same by
    the clock that never steps. ``readings`` have one for each device that answered, keys are
    distinct. A device or source that did not answer is in ``problems`` alone.
    """

    time_s: float
    monotonic_s: float
    readings: tuple[Reading, ...] = ()
    links: tuple[Link, ...] = ()
    problems: tuple[Problem, ...] = ()


class Stream:
    """Sources that stay open. The context manager opens and closes them.

    Not for several threads at a time. Nothing is raised for what a library does.
    """

    def __init__(
        self,
        sources: Iterable[Source],
        *,
        open_limit_s: float = LIMITS.stream_open_s,
        hang_limit_s: float = LIMITS.stream_hang_s,
        first_pause_s: float = FIRST_PAUSE_S,
        longest_pause_s: float = MAX_PAUSE_S,
    ) -> None:
        limits = _Limits(open_limit_s, hang_limit_s, first_pause_s, longest_pause_s)
        self._feeds = [_Feed(source, limits) for source in sources]

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self) -> None:
        """Start the children and their first samples, and wait for nothing."""
        for feed in self._feeds:
            feed.ask()

    def read(self, limit_s: float) -> Sample:
        """A sample of all sources, after at most about ``limit_s`` seconds.

        All sources read at the same time. One that does not answer in time is a problem of this
        sample; its answer is that of a later one, unless it takes longer than the limits of the
        stream: then its child is ended.
        """
        deadline = time.monotonic() + limit_s
        for feed in self._feeds:
            feed.ask()
        readings: dict[str, Reading] = {}
        links: list[Link] = []
        problems: list[Problem] = []
        for feed in self._feeds:
            found, wrong = feed.answer(max(0.0, deadline - time.monotonic()))
            problems += wrong
            links += found.links
            for reading in found.readings:
                key = reading.key
                if key is None:
                    text = f"{feed.source.name} shows a device without PCI address and UUID"
                    problems.append(Problem(source=feed.source.name, text=text))
                else:
                    readings.setdefault(key, reading)
        return Sample(
            time_s=time.time(),
            monotonic_s=time.monotonic(),
            readings=tuple(readings.values()),
            links=tuple(links),
            problems=tuple(problems),
        )

    def close(self) -> None:
        """End all children; the stream may be opened again."""
        for feed in self._feeds:
            feed.close()


@dataclass(frozen=True, slots=True)
class _Limits:
    open_s: float
    hang_s: float
    first_pause_s: float
    longest_pause_s: float


class _Child:
    """A child process of one source, and the answer that it owes."""

    def __init__(self, source: Source, caller: Caller, limits: _Limits) -> None:
        self._source = source
        self._caller = caller
        self._limits = limits
        self.started_s = time.monotonic()
        self.answered = False

    def ask(self) -> None:
        if not self._caller.waits:
            limit_s = self._limits.hang_s if self.answered else self._limits.open_s
            self._caller.begin(self._source.module, self._source.function, limit_s=limit_s)

    def answer(self, limit_s: float) -> tuple[Findings | None, str, bool]:
        """(findings, "", True), else (None, the problem, whether the child is still of use)."""
        name = self._source.name
        try:
            document, problem = self._caller.wait(min(limit_s, self._caller.left_s))
        except TimeoutError:
            if self._caller.left_s <= 0:
                return None, f"{name} {self._caller.late}, and is started again", False
            what = "has not answered" if self.answered else "is still being opened"
            return None, f"{name} {what} after {self._caller.waiting_s:.1f} s", True
        if problem:
            return None, f"{name} broke: {problem}", False
        try:
            found = plausible_findings(from_document(document), name)
        except FormatError as error:
            return None, f"{name} broke: {error}", False
        # a library that cannot be opened may answer in a process that is new
        if found.problems and not found.readings:
            return None, "; ".join(found.problems), False
        self.answered = True
        return found, "", True

    def has_left(self) -> bool:
        return self._caller.has_left()

    def kill(self) -> None:
        """End the child and wait for nothing: one that is blocked in the kernel does not end."""
        self._caller.kill()
        self._caller.close()

    def close(self) -> None:
        self._caller.close()


class _Feed:
    """One source: its child, and the next one while a device is missing."""

    def __init__(self, source: Source, limits: _Limits) -> None:
        self.source = source
        self._limits = limits
        self._child: _Child | None = None
        self._next: _Child | None = None
        """A second child that opens the library again, because the first lost a device."""
        self._ending: list[_Child] = []
        """Killed children that have not ended: they are blocked in the kernel."""
        self._known: dict[str, str] = {}
        """Key -> name of every device that the source has shown."""
        self._reason = ""
        self._pause_s = limits.first_pause_s
        self._start_at = 0.0

    def ask(self) -> None:
        """Have the children read, and start one where that is due; waits for nothing."""
        self._ending = [child for child in self._ending if not child.has_left()]
        if self._child is None and self._may_start():
            self._child = self._start()
        for child in (self._child, self._next):
            if child is not None:
                child.ask()

    def answer(self, limit_s: float) -> tuple[Findings, list[Problem]]:
        """What the source says, and a problem for it or for each device that it no longer shows."""
        if self._child is None:
            return self._nothing(self._reason)
        found, reason, usable = self._child.answer(limit_s)
        if found is None:
            if usable:
                return self._nothing(reason)
            self._drop(self._child, reason)
            return self._nothing(reason)
        found = self._with_next(found)
        return found, list(self._problems(found))

    def close(self) -> None:
        for child in (self._child, self._next):
            if child is not None:
                child.close()
        self._child = self._next = None
        self._start_at, self._pause_s, self._reason = 0.0, self._limits.first_pause_s, ""

    def _may_start(self) -> bool:
        """Whether the pause is over, and no child is left that a driver does not let end."""
        return not self._ending and time.monotonic() >= self._start_at

    def _start(self) -> _Child | None:
        caller, problem = start_caller()
        if caller is None:
            self._reason = f"{self.source.name} cannot be opened: {problem}"
            self._wait_longer()
            return None
        return _Child(self.source, caller, self._limits)

    def _drop(self, child: _Child, reason: str) -> None:
        """End the child in use, which is of no use any more; the next one starts after a pause."""
        self._kill(child)
        if self._next is not None:
            self._kill(self._next)
        self._child = self._next = None
        self._reason = reason
        # one that worked for longer than the last pause begins with the shortest again
        if time.monotonic() - child.started_s > 2 * self._pause_s + self._limits.hang_s:
            self._pause_s = self._limits.first_pause_s
        self._wait_longer()

    def _kill(self, child: _Child) -> None:
        child.kill()
        if not child.has_left():
            self._ending.append(child)

    def _wait_longer(self) -> None:
        self._start_at = time.monotonic() + self._pause_s
        self._pause_s = min(2 * self._pause_s, self._limits.longest_pause_s)

    def _nothing(self, reason: str) -> tuple[Findings, list[Problem]]:
        text = reason or f"{self.source.name} is not open"
        if self._ending:
            text += "; its process does not end, as the driver blocks it in the kernel"
        wrong = [Problem(source=self.source.name, text=text)]
        wrong += [
            Problem(source=self.source.name, text=f"{name}: {text}", device=key)
            for key, name in self._known.items()
        ]
        return Findings(kind=self.source.name), wrong

    def _problems(self, found: Findings) -> Iterable[Problem]:
        shown = _keys(found.readings)
        for key, name in self._known.items():
            if key not in shown:
                text = f"{name}: {self.source.name} no longer shows it"
                yield Problem(source=self.source.name, text=text, device=key)
        for text in found.problems:
            yield Problem(source=self.source.name, text=text)
        for reading in found.readings:
            if reading.key is not None and reading.state.error is not None:
                text = f"{_name(reading)}: {reading.state.error}"
                yield Problem(source=self.source.name, text=text, device=reading.key)

    def _with_next(self, found: Findings) -> Findings:
        """The findings; those of a child that opened the library again, where it shows more."""
        shown = _keys(found.readings)
        self._known |= {key: _name(r) for r in found.readings if (key := r.key) is not None}
        lost = self._known.keys() - shown
        if not lost:
            if self._next is not None:
                self._next.close()
                self._next = None
            return found
        if self._next is None:
            if self._may_start():
                self._next = self._start()
                self._wait_longer()
            if self._next is not None:
                self._next.ask()
            return found
        better, _, usable = self._next.answer(0.0)
        if better is None:
            if not usable:
                self._kill(self._next)
                self._next = None
            return found
        if lost & _keys(better.readings) and self._child is not None:
            self._child.close()
            self._child, self._next = self._next, None
            self._pause_s = self._limits.first_pause_s
            self._known |= {key: _name(r) for r in better.readings if (key := r.key) is not None}
            return better
        self._next.close()
        self._next = None
        return found


def _keys(readings: Collection[Reading]) -> set[str]:
    return {key for reading in readings if (key := reading.key) is not None}


def _name(reading: Reading) -> str:
    where = reading.key or ""
    return f"{reading.name} at {where}" if reading.name else where
