"""The engine of ``portagpu monitor``: looks at all devices again and again, and hands each look on.

Readings come from :mod:`portagpu.facts.readings.stream`, whose child processes call the vendors'
libraries: one that hangs costs the readings of its devices, and nothing else. Intervals are of the
clock that only goes forward; stamps are of the wall clock, which may step.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import stat
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from portagpu.base.environment import host_name
from portagpu.base.files import destination
from portagpu.checks.monitor.sample import Round, RunningProcess, Sample, Tracker, to_documents
from portagpu.devices.discovery import samplers
from portagpu.facts.readings.model import NO_VENDOR
from portagpu.facts.readings.stream import Stream
from portagpu.facts.targets import named_product
from portagpu.machine.inventory.gpu import product_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from portagpu.checks.monitor.sample import Device, MonitorOptions
    from portagpu.facts.readings import Link
    from portagpu.facts.readings.model import Process, Properties
    from portagpu.facts.readings.stream import Source


STDOUT: Final = "-"


class ReaderGone(Exception):
    """The reader of standard output has closed it."""


class JsonLines:
    """Appends the samples of each round to ``path``; "-" is standard output.

    Lines are whole: what a full disk cut off is taken back. A round that cannot be written is
    counted in ``dropped`` (in samples and events); ``say`` is called when that begins and ends, and
    each round tries again. A pipe without a reader, or a full one, loses samples instead of
    stopping the monitor; standard output waits for its reader. With ``max_bytes`` the file is
    renamed to ``path.1`` before it would grow larger, and replaces the earlier ``path.1``.
    """

    def __init__(self, path: str, say: Callable[[str], None], max_bytes: int | None = None) -> None:
        self.dropped = 0
        self._path = path
        self._name = "standard output" if path == STDOUT else path
        self._say = say
        self._max_bytes = max_bytes
        self._file: int | None = None
        self._is_cut = False
        """Whether a part of a line went out that cannot be taken back: a new line ends it."""
        self._failing_since = 0
        """How many were dropped when writing began to fail, plus one; 0 while it works."""

    def write(self, each: Round) -> None:
        """Append the lines of one round. Raises ReaderGone, and nothing else."""
        lines = [
            json.dumps(document, separators=(",", ":"), allow_nan=False)
            for document in to_documents(each)
        ]
        if not lines:
            return
        try:
            self._append(("\n".join(lines) + "\n").encode("utf-8", "backslashreplace"))
        except OSError as error:
            self._drop(len(lines), error)
            return
        if self._failing_since:
            lost = self.dropped - self._failing_since + 1
            self._say(f"{self._name} is written again; {lost} samples were dropped")
            self._failing_since = 0

    def close(self) -> None:
        """Close the file."""
        if self._file is not None and self._path != STDOUT:
            with contextlib.suppress(OSError):
                os.close(self._file)
        self._file = None

    def _drop(self, count: int, error: OSError) -> None:
        if self._path == STDOUT and error.errno == errno.EPIPE:
            raise ReaderGone from error
        if not self._failing_since:
            self._failing_since = self.dropped + 1
            why = error.strerror or error
            self._say(f"cannot write {self._name}: {why}; samples are dropped until it works again")
        self.dropped += count
        self.close()

    def _append(self, data: bytes) -> None:
        if self._file is not None and self._is_moved():
            self.close()
        if self._file is None:
            self._file = self._open()
        is_file = self._path != STDOUT and stat.S_ISREG(os.fstat(self._file).st_mode)
        size = os.fstat(self._file).st_size if is_file else 0
        if self._max_bytes is not None and size > 0 and size + len(data) > self._max_bytes:
            self._rotate()
            size = 0
        rest = memoryview(b"\n" + data if self._is_cut else data)
        whole = len(rest)
        try:
            while rest:
                rest = rest[os.write(self._file, rest) :]
        except OSError:
            if is_file:
                with contextlib.suppress(OSError):
                    os.ftruncate(self._file, size)
            else:
                self._is_cut = self._is_cut or len(rest) < whole
            raise
        self._is_cut = False

    def _is_moved(self) -> bool:
        """Whether another file is at the path than the open one, as after logrotate(8)."""
        if self._file is None or self._path == STDOUT:
            return False
        try:
            return not os.path.samestat(Path(self._path).stat(), os.fstat(self._file))
        except OSError:
            return True

    def _open(self) -> int:
        if self._path == STDOUT:
            return 1
        place = destination(Path(self._path))
        place.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK
        file = os.open(place, flags, 0o666)
        try:
            if not _ends_a_line(place, os.fstat(file)):
                os.write(file, b"\n")
        except OSError:
            os.close(file)
            raise
        return file

    def _rotate(self) -> None:
        place = destination(Path(self._path))
        place.replace(place.with_name(f"{place.name}.1"))
        self.close()
        self._file = self._open()


def _ends_a_line(place: Path, about: os.stat_result) -> bool:
    """Whether the file is empty or ends with a whole line; a killed monitor may have cut one."""
    if not stat.S_ISREG(about.st_mode) or about.st_size == 0:
        return True
    with place.open("rb") as stream:
        stream.seek(-1, os.SEEK_END)
        return stream.read(1) == b"\n"


_OPENING_S: Final = 5.0
"""How long the first look may wait for libraries that open their devices one after the other."""
_MAX_WAIT_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Watched:
    """How many looks there were, and how many were left out since one took too long."""

    looks: int
    late: int


def monitor(
    options: MonitorOptions,
    outputs: Sequence[Callable[[Round], None]],
    *,
    sources: Sequence[Source] | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Watched:
    """Read all devices again and again, until the options or the reader end it.

    Ctrl-C raises KeyboardInterrupt, after the children are ended.

    :param options: The interval, and when to end.
    :param outputs: Each is called with every round. It ends the monitor if it raises ReaderGone.
    :param sources: The vendors' libraries; by default those of this machine.
    :param clock: Seconds on a clock that only goes forward.
    :param sleep: Waits for that many seconds.
    :returns: How many rounds there were, and how many were left out because one took too long.
    """
    tracker = Tracker(options.stall_after_s, options.stale_s, _target_limit)
    host = host_name()
    looks = number = 0
    with Stream(samplers() if sources is None else sources) as stream:
        wait_s, start = _OPENING_S, None
        while True:
            look = stream.read(wait_s)
            # opening the libraries takes longer than an interval, and none is late for that
            start = clock() if start is None else start
            samples, events = tracker.follow(
                look.monotonic_s, to_samples(look.readings, look.links), look.problems
            )
            each = Round(
                number=number,
                time=datetime.fromtimestamp(look.time_s, UTC),
                at_s=look.monotonic_s,
                host=host,
                samples=samples,
                events=events,
                problems=tuple(p.text for p in look.problems if p.device is None),
                missing=tracker.missing,
            )
            looks += 1
            try:
                for output in outputs:
                    output(each)
            except ReaderGone:
                break
            passed = clock() - start
            number = max(number + 1, math.ceil(passed / options.interval_s))
            due = number * options.interval_s
            ends_at = math.inf if options.duration_s is None else options.duration_s
            if looks == options.count or due > ends_at:
                break
            sleep(max(0.0, due - passed))
            wait_s = min(0.9 * options.interval_s, _MAX_WAIT_S)
    return Watched(looks, number - looks)


def to_samples(
    readings: Iterable[Properties], links: Iterable[Link] = (), *, here: bool = True
) -> list[Sample]:
    """The values of each reading, and of the links that begin there, as a sample.

    Processes have the users and names of this machine where the readings were made ``here``.
    """
    by_gpu: dict[str, list[Link]] = {}
    for link in links:
        if link.a.pci is not None:
            by_gpu.setdefault(link.a.pci, []).append(link)
    return [_to_sample(each, by_gpu.get(each.pci or "", []), here) for each in readings]


def _to_sample(reading: Properties, links: Sequence[Link], here: bool) -> Sample:
    errors: dict[str, int] = {}
    for link in links:
        for name, count in link.errors.items():
            errors[name] = errors.get(name, 0) + count
    up = [link.up for link in links if link.up is not None]
    state, memory, pcie = reading.state, reading.memory, reading.pcie
    is_cpu = reading.vendor == NO_VENDOR
    return Sample(
        kind="cpu" if is_cpu else "gpu",
        uuid=reading.uuid,
        pci=reading.pci,
        vendor=reading.vendor or None,
        name=reading.name if is_cpu else product_name(reading.name),
        utilization_percent=state.utilization_percent,
        memory_controller_percent=state.memory_utilization_percent,
        memory_used_bytes=state.memory_used_bytes,
        memory_total_bytes=reading.memory_bytes,
        power_w=state.power_w,
        power_limit_w=state.power_limit_w,
        energy_j=state.energy_j,
        temperatures_c=dict(state.temperatures_c),
        limits_c=dict(state.limits_c),
        margin_c=state.margin_c,
        clock_mhz=state.clock_mhz,
        max_clock_mhz=state.max_clock_mhz,
        memory_clock_mhz=state.memory_clock_mhz,
        max_memory_clock_mhz=state.max_memory_clock_mhz,
        throttling=state.throttling,
        throttled_s=dict(state.throttled_s),
        fan_percent=state.fan_percent,
        corrected_errors=memory.corrected,
        uncorrected_errors=memory.uncorrected,
        retired_pages=dict(memory.retired_pages),
        remapped_rows=dict(memory.remapped_rows),
        pending_repair=memory.pending,
        recovery=state.recovery,
        pcie_generation=pcie.generation,
        pcie_lanes=pcie.width,
        pcie_replays=pcie.replays,
        links_up=sum(up) if up else None,
        links_down=len(up) - sum(up) if up else None,
        link_errors=errors,
        processes=state.processes,
        running=_running(state.process_list, here),
        error=state.error,
    )


def _running(listed: Sequence[Process] | None, here: bool) -> tuple[RunningProcess, ...] | None:
    """The processes of a list, with user and name if they are of this machine."""
    if listed is None:
        return None
    return tuple(
        RunningProcess(
            pid=each.pid, memory_bytes=each.memory_bytes, **(_about(each.pid) if here else {})
        )
        for each in listed
    )


def _about(pid: int) -> dict[str, str | None]:
    place = Path(f"/proc/{pid}")
    try:
        user, name = place.stat().st_uid, (place / "comm").read_text("utf-8", "replace").strip()
    except (OSError, ValueError):
        return {"user": None, "name": None}
    return {"user": _user(user), "name": name}


@cache
def _user(number: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


@cache
def _target_limit(device: Device) -> float | None:
    """The power limit of the device's target in W; None where no target is of that name."""
    target = named_product(device.vendor or "", None, device.name)
    limit = target.value("power.limit") if target is not None else None
    return float(limit) if isinstance(limit, int | float) else None
