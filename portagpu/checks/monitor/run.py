"""The engine of ``portagpu monitor``: looks at all devices again and again, and hands each look on.

Readings come from :mod:`portagpu.facts.readings.stream`, whose child processes call the vendors'
libraries: one that hangs costs the readings of its devices, and nothing else. Intervals are of the
clock that only goes forward; stamps are of the wall clock, which may step.
"""

from __future__ import annotations

import math
import platform
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Final

from portagpu.checks.monitor.lines import ReaderGone
from portagpu.checks.monitor.sample import Round, Sample
from portagpu.checks.monitor.tracker import Tracker
from portagpu.devices.discovery import samplers
from portagpu.facts.readings.model import NO_VENDOR
from portagpu.facts.readings.stream import Stream
from portagpu.facts.targets import named_product
from portagpu.machine.inventory.gpu import product_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from portagpu.checks.monitor.options import MonitorOptions
    from portagpu.checks.monitor.sample import Device
    from portagpu.facts.readings import Link, Reading
    from portagpu.facts.readings.stream import Source

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
    host = platform.node()
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


def to_samples(readings: Iterable[Reading], links: Iterable[Link] = ()) -> list[Sample]:
    """The values of each reading, and of the links that begin there, as a sample."""
    by_gpu: dict[str, list[Link]] = {}
    for link in links:
        if link.a.pci is not None:
            by_gpu.setdefault(link.a.pci, []).append(link)
    return [_to_sample(each, by_gpu.get(each.pci or "", [])) for each in readings]


def _to_sample(reading: Reading, links: Sequence[Link]) -> Sample:
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
        error=state.error,
    )


@cache
def _target_limit(device: Device) -> float | None:
    """The power limit of the device's target in W; None where no target is of that name."""
    target = named_product(device.vendor or "", None, device.name)
    limit = target.value("power.limit") if target is not None else None
    return float(limit) if isinstance(limit, int | float) else None
