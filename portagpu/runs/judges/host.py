"""Host health, judged from memory controllers and sensors alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from portagpu.runs.results.expectations import at_most, exactly
from portagpu.runs.results.judgement import Judgement
from portagpu.runs.results.verdicts import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from portagpu.facts.host.sensors import MemoryController, Sensors, Temperature

_NONE: Final = exactly(0, "a host in order")


def judge_host(controllers: Sequence[MemoryController], sensors: Sensors) -> Iterator[Judgement]:
    """Memory errors, temperatures and thermal throttling; SKIP where the host counts none."""
    yield from _memory(controllers)
    yield from _temperatures(sensors.temperatures)
    yield _throttling(sensors)


def _memory(controllers: Sequence[MemoryController]) -> Iterator[Judgement]:
    counted = [c for c in controllers if c.uncorrected is not None]
    if not counted:
        reason = "no driver of the kernel counts errors of the host's memory here"
        yield Judgement(Verdict.SKIP, reason, name="host-memory-errors")
        return
    bad = False
    for each in counted:
        bad = bad or bool(each.uncorrected or each.corrected)
        if each.uncorrected:
            who = _culprit(each, corrected=False)
            reason = f"{who}: {each.uncorrected} uncorrected memory errors: replace the module"
            yield Judgement(
                Verdict.FAIL,
                reason,
                each.uncorrected,
                "1",
                _NONE,
                name="host-memory-errors",
                device=who,
            )
        elif each.corrected:
            who = _culprit(each, corrected=True)
            reason = f"{who}: {each.corrected} corrected memory errors: see whether they grow"
            yield Judgement(
                Verdict.UNVERIFIED,
                reason,
                each.corrected,
                "1",
                _NONE,
                name="host-memory-errors",
                device=who,
            )
    if not bad:
        reason = f"no memory error since {len(counted)} memory controllers began to count"
        yield Judgement(Verdict.PASS, reason, 0, "1", _NONE, name="host-memory-errors")


def _culprit(controller: MemoryController, *, corrected: bool) -> str:
    """The memory modules that have errors, else their controller."""
    dimms = [
        dimm.label
        for dimm in controller.dimms
        if (dimm.corrected if corrected else dimm.uncorrected)
    ]
    return ", ".join(dimms) or controller.name


def _temperatures(temperatures: Sequence[Temperature]) -> Iterator[Judgement]:
    limited = [t for t in temperatures if t.critical_celsius is not None]
    if not limited:
        reason = "no sensor of the host states a temperature and its limit"
        yield Judgement(Verdict.SKIP, reason, name="host-temperature")
        return
    over = [t for t in limited if t.critical_celsius and t.celsius >= t.critical_celsius]
    for each in over:
        name = each.label or each.sensor
        reason = f"{name} is at {each.celsius:g} °C, its limit at {each.critical_celsius:g} °C: "
        yield Judgement(
            Verdict.FAIL,
            f"{reason}check the cooling",
            each.celsius,
            "°C",
            at_most(each.critical_celsius or 0.0, "the sensor's own limit", "°C"),
            name="host-temperature",
            device=name,
        )
    if not over:
        reason = f"{len(limited)} sensors are below their limits"
        yield Judgement(Verdict.PASS, reason, name="host-temperature")


def _throttling(sensors: Sensors) -> Judgement:
    counts = (sensors.throttling.core_count, sensors.throttling.package_count)
    known = [count for count in counts if count is not None]
    if not known:
        reason = "the kernel does not count thermal throttling of this CPU"
        return Judgement(Verdict.SKIP, reason, name="host-throttling")
    if any(known):
        reason = f"the CPU was slowed {max(known)} times since boot by its temperature"
        return Judgement(Verdict.UNVERIFIED, reason, max(known), "1", _NONE, name="host-throttling")
    reason = "the CPU was never slowed by its temperature since boot"
    return Judgement(Verdict.PASS, reason, 0, "1", _NONE, name="host-throttling")
