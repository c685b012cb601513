"""The results of a screen: one for each probe on each device, and two of each device as a whole."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.text import MAX_NAMED
from portagpu.base.units import count, number
from portagpu.runs.results.advice import Cause, Separation, separation_of, wrong_value
from portagpu.runs.results.run import Evidence, Result, Verdict
from portagpu.runs.results.wording import exactly
from portagpu.runs.world import RankState
from portagpu.suites.performance.load import telemetry_curves
from portagpu.suites.performance.timing import summary
from portagpu.suites.screen.options import SUITE, TOGETHER
from portagpu.suites.screen.tally import (
    AGAIN,
    Tally,
    excluded_rate,
    judged_in_words,
    recurrence,
    recurrence_in_words,
)
from portagpu.train.exact.probes import AREAS, published_digests

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

UNIT: Final = "results"
"""The unit of a value, which is how many results were judged."""
_LIMITS: Final = (
    "inputs, rates and loads that these batches did not reach: a device without a wrong result "
    "here may still be defective"
)
_BLIND: Final = (
    "the device compares wrong: it saw nothing in a result with one inverted element, so its other "
    "results are not judged"
)
_NO_BATCH: Final = "not run: the screen was over before its first batch"


@dataclass(slots=True)
class Screened:
    """A device and what was judged on it so far."""

    name: str
    index: int
    shared: bool = False
    """Whether other ranks of the screen use the same device."""
    tallies: dict[str, Tally] = field(default_factory=dict)
    lost: str = ""
    """Why it left the screen; empty while it can go on."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Of the result that says so."""

    def lose(self, fields: Mapping[str, Any], why: str, step: str = "") -> None:
        """Have the device leave the screen, for what happened in a probe, if that is known."""
        self.lost, self.fields = why, fields
        tally = self.tallies.get(step.removesuffix(AGAIN))
        if tally is not None and tally.failure is None:
            tally.ended = dict(fields)

    def hang(self, limit_s: float, step: str, duration_s: float) -> None:
        """The same of a device that was silent for that long while others were heard."""
        reason = f"hung after {step}: it was silent for {limit_s:g} s while others went on"
        fields = {
            "verdict": Verdict.FAIL,
            "reason": reason,
            "value": str(RankState.HUNG),
            "expected": exactly(str(RankState.DONE), "every rank ends"),
            "duration_s": duration_s,
        }
        self.lose(fields, reason, step)


def results_of(screened: Sequence[Screened], campaign: int) -> list[Result]:
    """All results of a screen, by device."""
    found = []
    for device in screened:
        found.append(_device_result(device))
        found.append(_digest_result(device, screened))
        found += [
            _probe_result(device, name, tally, campaign) for name, tally in device.tallies.items()
        ]
    return found


def _shared(device: Screened, name: str, **fields: Any) -> dict[str, Any]:
    return {"id": f"screen/{name}", "suite": SUITE, "area": SUITE, "device": device.name, **fields}


def _device_result(device: Screened) -> Result:
    """Whether the device went on to the end, and what was judged on it."""
    tallies = device.tallies.values()
    results, inputs = (sum(getattr(each, key) for each in tallies) for key in ("results", "inputs"))
    seconds = sum(each.seconds for each in tallies)
    judging_s = sum(each.judging_s for each in tallies)
    readings = sorted(
        (reading for each in tallies for reading in each.readings), key=lambda each: each["t_s"]
    )
    unreadable = next((each.unreadable for each in tallies if each.unreadable), "")
    extra = {
        "results": results,
        "inputs": inputs,
        "excluded_rate": excluded_rate(results),
        "seconds": seconds,
        "judging_part": judging_s / seconds if seconds else None,
        "curves": telemetry_curves(readings),
        **({"readings": f"broke off: {unreadable}"} if unreadable else {}),
    }
    shared = _shared(device, "device", extra=extra)
    if device.lost:
        return Result(**{**shared, **(device.fields or _not_run(device.lost))})
    if not results:
        return Result(**shared, **_not_run("no probe ran to the end of a batch"))
    wrong = [name for name, each in device.tallies.items() if each.failure or each.blind]
    said = (
        f"{number(results, 12)} results of {number(inputs, 12)} inputs were judged, "
        f"{f'and {_named(wrong)} went wrong' if wrong else 'none wrong'}"
    )
    return Result(
        **shared,
        verdict=Verdict.PASS,
        evidence=(Evidence.EXECUTED,),
        reason=said,
        value=str(RankState.DONE),
        expected=exactly(str(RankState.DONE), "every rank ends"),
        duration_s=seconds,
        does_not_show=_LIMITS,
    )


def _not_run(reason: str) -> dict[str, Any]:
    return {"verdict": Verdict.INCONCLUSIVE, "reason": reason}


def _probe_result(device: Screened, name: str, tally: Tally, campaign: int) -> Result:
    """What was judged of one probe on one device."""
    extra: dict[str, Any] = {
        "campaign": campaign,
        "inputs": tally.inputs,
        "batches": tally.batches,
        "largest_scale": tally.scale,
        "judging_s": tally.judging_s,
        "excluded_rate": None if tally.failure else excluded_rate(tally.results),
        "telemetry": summary(_without_time(tally.readings)),
    }
    judged: dict[str, Any] = {
        "value": float(tally.results) if tally.results else None,
        "unit": UNIT if tally.results else None,
        "duration_s": tally.seconds,
        "does_not_show": _LIMITS,
        "evidence": (Evidence.EXECUTED,) if tally.results else (),
        "extra": extra,
    }
    shared = _shared(device, name)
    if tally.failure is not None:
        judged["extra"] = {**extra, **_failure_extra(tally)}
        return Result(**shared, **judged, verdict=Verdict.FAIL, reason=_failure_reason(tally))
    if tally.blind:
        separation = tally.separation or separation_of(_BLIND, ())
        judged["extra"] = {**extra, "excluded_rate": None, **wrong_value("", separation.cause)}
        reason = f"{_BLIND}; {separation.reason}"
        return Result(**shared, **judged, verdict=Verdict.FAIL, reason=reason)
    if tally.ended is not None:
        return Result(**{**shared, **judged, "unit": None, **tally.ended})
    if tally.broke:
        return Result(**shared, **judged, verdict=Verdict.ERROR, reason=tally.broke)
    if not tally.results:
        if tally.refused:
            return Result(**shared, verdict=Verdict.SKIP, reason=tally.refused)
        reason = tally.stopped or (f"not run: {device.lost}" if device.lost else _NO_BATCH)
        blocked = "screen/device" if device.lost and not tally.stopped else None
        return Result(**shared, **_not_run(reason), blocked_by=blocked)
    reason = judged_in_words(tally.results, tally.inputs)
    if ended := tally.stopped or device.lost:
        reason = f"{reason}; {ended}"
    return Result(**shared, **judged, verdict=Verdict.PASS, reason=reason)


def separate_blind(screened: Sequence[Screened]) -> None:
    """Say of devices that compare wrong in a probe what their peers did with the same result."""
    for device in screened:
        for name, tally in device.tallies.items():
            if tally.blind:
                peers = [each.tallies[name] for each in screened if each is not device]
                seen = [[_BLIND if each.blind else None] for each in peers if each.results]
                distinct = not device.shared
                tally.separation = separation_of(_BLIND, seen, distinct=distinct)


def _failure_reason(tally: Tally) -> str:
    failure = tally.failure or {}
    batch = failure["batch"]
    which = "the batch of the published digest" if batch < 0 else f"batch {batch}"
    wrong, of = (number(failure[key], 12) for key in ("count", "of"))
    operands = f"(seed {failure['seed']}, scale {failure['scale']})"
    if failure["where"] is not None:
        parts = [f"{wrong} of {of} results are wrong in {which} {operands}"]
        looked_at = sum(failure["where"]["kinds"].values())
        first = f"the first {number(looked_at, 12)}: " if looked_at < failure["count"] else ""
        parts.append(first + failure["where"]["sentence"])
    else:
        rows = count(failure["count"], "row")
        parts = [f"the device's integer check of {rows} is wrong in {which} {operands}"]
        parts.append("the host finds the results of these rows right")
    again = (failure[key] for key in ("repeated_wrong", "repeated", "outcomes"))
    parts.append(recurrence_in_words(*again))
    if "units" in failure:
        parts.append(failure["units"]["sentence"])
    if tally.separation is not None:
        parts.append(tally.separation.reason)
    return "; ".join(parts)


def _failure_extra(tally: Tally) -> dict[str, Any]:
    failure = tally.failure or {}
    recurs = recurrence(failure["repeated_wrong"], failure["repeated"])
    cause = tally.separation.cause if tally.separation is not None else Cause.OPEN
    return {"wrong": {**failure, "recurrence": recurs}, **wrong_value(failure["digest"], cause)}


def _digest_result(device: Screened, screened: Sequence[Screened]) -> Result:
    """Whether the published seed gave the published digests, on this device as on its peers."""
    found = {
        name: tally.digest
        for name, tally in device.tallies.items()
        # ranks of a collective get parts of their own
        if tally.digest and not name.startswith(TOGETHER)
    }
    published = published_digests().sha256
    wrong: dict[str, Separation] = {}
    unpublished, shared_by_all = [], 0
    for name, own in found.items():
        peers = [
            each.tallies[name].digest
            for each in screened
            if each is not device and each.tallies[name].digest
        ]
        expected = published.get(name) or _usual([own, *peers])
        if name not in published and name.partition("/")[0] not in AREAS and {own} == {*peers}:
            shared_by_all += 1
        elif name not in published and (peers or name.partition("/")[0] in AREAS):
            unpublished.append(name)
        if expected is not None and own != expected:
            seen = [[None if each == expected else each] for each in peers]
            wrong[name] = separation_of(own, seen, distinct=not device.shared)
    shared = _shared(device, "digests", extra={"digests": found})
    if not found:
        return Result(**shared, **_not_run("no probe ran with the published seed"))
    judged = {**shared, "evidence": (Evidence.EXECUTED,), "does_not_show": _LIMITS}
    if wrong:
        gravest = _gravest(wrong)
        by_reason: dict[str, list[str]] = {}
        for name, each in wrong.items():
            by_reason.setdefault(each.reason, []).append(name)
        listed = "; ".join(f"{_named(names)}: {reason}" for reason, names in by_reason.items())
        return Result(
            **{**judged, "extra": {**judged["extra"], **gravest, "differ": list(wrong)}},
            verdict=Verdict.FAIL,
            reason=f"wrong: {len(wrong)} of {count(len(found), 'digest')}: {listed}",
            value=float(len(wrong)),
            unit="1",
            expected=exactly(0, "the published digests, or those of most peers"),
        )
    own_ones = sum(name in published for name in found)
    said = f"{own_ones} of {count(own_ones + len(unpublished), 'digest')} are the published ones"
    if shared_by_all:
        said = f"{said}, and {shared_by_all} that have none are those of all peers"
    if unpublished:
        return Result(
            **judged,
            verdict=Verdict.UNVERIFIED,
            reason=f"no published digest of {_named(unpublished)}; {said}",
        )
    return Result(**judged, verdict=Verdict.PASS, reason=said)


def _usual(found: Sequence[str]) -> str | None:
    """What more than half of at least three devices gave; None without such a majority."""
    usual, times = Counter(found).most_common(1)[0]
    return usual if len(found) > 2 and 2 * times > len(found) else None


def _gravest(found: Mapping[str, Separation]) -> dict[str, Any]:
    """The wrong value for which a device is taken out of use, if there is one."""
    order = (Cause.DEVICE, Cause.OPEN, Cause.SOFTWARE)
    cause = min((each.cause for each in found.values()), key=order.index)
    return wrong_value("", cause)


def _named(names: Sequence[str]) -> str:
    shown = ", ".join(names[:MAX_NAMED])
    return f"{shown} and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else shown


def _without_time(readings: Iterable[Mapping[str, float]]) -> list[dict[str, float]]:
    return [{name: value for name, value in each.items() if name != "t_s"} for each in readings]
