"""What bounds a run: findings with evidence, threshold, source and next step.

``findings.toml`` has the kinds of findings and the thresholds. What vendors call launches, waits
and counters is in their tables ``trace_words.toml`` (``portagpu.facts.vendors.tables``). A capture
that lacks what an answer takes gets no answer: the result is INCONCLUSIVE and names what is
missing."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.text import MAX_NAMED, one_line
from portagpu.base.units import count, quantity
from portagpu.facts.captures.model import ON_DEVICE
from portagpu.runs.results.judgement import Finding, kinds_of, result_of
from portagpu.runs.results.verdicts import Verdict
from portagpu.runs.results.wording import at_most
from portagpu.traces.analysis.call_words import known_words
from portagpu.traces.analysis.roofline import computed_shares, counted_shares

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from portagpu.facts.captures.model import Capture
    from portagpu.runs.results.judgement import Known
    from portagpu.runs.results.run import Result
    from portagpu.traces.analysis.model import DeviceTime, Summary

SUITE: Final = "trace"
AREA: Final = "diagnose"
CANNOT: Final = "cannot answer"
_OWN: Final = Path(__file__).resolve().parent / "findings.toml"


@cache
def own_table() -> Mapping[str, Any]:
    """The table of findings and thresholds."""
    return tomllib.loads(_OWN.read_text(encoding="utf-8"))


@cache
def known_findings() -> Mapping[str, Known]:
    """Every kind of finding by its id."""
    return kinds_of(own_table())


@cache
def threshold(name: str) -> tuple[float, str]:
    """The value of a threshold, and where it is from."""
    found = {each["id"]: each for each in own_table()["threshold"]}[name]
    return float(found["value"]), str(found["source"])


def diagnose(summary: Summary, captures: Sequence[Capture] = ()) -> list[Result]:
    """What bounds the run of ``summary``, the worst first.

    ``captures`` are what it was made from: they have counters and FLOPs, which a summary lacks.
    """
    found = list(_incomplete(summary))
    if not summary.devices:
        counted = counted_shares(captures) is not None
        found += _nothing_to_answer(summary, counted)
        found += _roofline(summary, captures) if counted else ()
    else:
        found += _waits(summary)
        found += _of_shares(summary)
        found += _roofline(summary, captures)
    order = [Verdict.FAIL, Verdict.INCONCLUSIVE, Verdict.UNVERIFIED, Verdict.PASS]
    kinds = known_findings()
    results = [result_of(each, kinds[each.id], SUITE, AREA) for each in found]
    return sorted(results, key=lambda each: (order.index(each.verdict), -_size(each)))


def _size(result: Result) -> float:
    return float(result.value) if isinstance(result.value, int | float) else 0.0


def _incomplete(summary: Summary) -> Iterator[Finding]:
    read = sum(summary.events.values())
    share = summary.dropped / max(summary.dropped + read, 1)
    limit, source = threshold("dropped")
    said = [one_line(each.text) for each in summary.messages if each.level == "error"]
    if share > limit or said:
        evidence = [f"{summary.dropped} of {summary.dropped + read} events are missing"] * (
            share > limit
        )
        evidence += [f"the profiler said: {each}" for each in said[:3]]
        yield Finding(
            id="incomplete",
            evidence="; ".join(evidence),
            value=round(share, 4),
            unit="1",
            expected=at_most(limit, source),
        )
    if summary.problems:
        evidence = list(map(one_line, summary.problems[:MAX_NAMED]))
        evidence += [f"and {len(summary.problems) - MAX_NAMED} more"][
            : len(summary.problems) > MAX_NAMED
        ]
        yield Finding(id="reading", evidence="; ".join(evidence))


_BOUNDS: Final = (
    "input-bound",
    "launch-bound",
    "host-bound",
    "copy-bound",
    "communication-bound",
    "memory-bound",
    "compute-bound",
)


def _nothing_to_answer(summary: Summary, counted: bool) -> Iterator[Finding]:
    """Of a capture without events of a device, which may have counters."""
    if summary.rows.num_rows:
        why = "the capture has only the sums that a tool computed, without times of events"
        for each in _BOUNDS[:-2] if counted else _BOUNDS:
            yield _cannot(
                each, why, remedy="capture events: nsys or rocpd SQLite, or torch's trace"
            )
        return
    if counted:
        return
    recorded = [kind for kind in ON_DEVICE if kind in summary.events]
    why = "no kernel, copy or set ran on a device"
    if not recorded:
        why = "the capture has no record of a device, as of a run on a CPU"
    yield Finding(id="no-device", evidence=f"{CANNOT}: {why}")


def _cannot(name: str, missing: str, device: str | None = None, remedy: str = "") -> Finding:
    return Finding(
        id=name,
        evidence=f"{CANNOT}: {missing}",
        device=device,
        verdict=Verdict.INCONCLUSIVE,
        cause="the capture lacks what the answer takes",
        remedy=remedy or "capture again with what is missing",
    )


def _fine(name: str, evidence: str, value: float, limit: tuple[float, str]) -> Finding:
    return Finding(
        id=name,
        evidence=evidence,
        verdict=Verdict.PASS,
        value=round(value, 4),
        unit="1",
        expected=at_most(*limit),
    )


def _device_name(summary: Summary, each: DeviceTime) -> str | None:
    """What distinguishes a device from the others; None where there is one."""
    if len(summary.devices) == 1:
        return None
    return (
        f"device {each.device}" if each.rank is None else f"rank {each.rank} device {each.device}"
    )


def _share(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0


def _time(value_ns: float) -> str:
    return quantity(value_ns, "ns")


# ---- a device that waits for the host


def _waits(summary: Summary) -> Iterator[Finding]:
    limit = threshold("idle")
    waiting = [each for each in summary.devices if _share(each.idle_ns, each.wall_ns) >= limit[0]]
    if not waiting:
        worst = max(_share(each.idle_ns, each.wall_ns) for each in summary.devices)
        evidence = f"no device is idle for more than {worst:.1%} of its time"
        for name in ("input-bound", "launch-bound", "host-bound"):
            yield _fine(name, evidence, worst, limit)
        return
    for each in waiting:
        yield from _why_it_waits(summary, each)


@dataclass(frozen=True, slots=True)
class _Idle:
    """An idle device, and what may explain it."""

    summary: Summary
    time: DeviceTime
    name: str | None

    def finding(self, kind: str, evidence: str, verdict: Verdict | None = None) -> Finding:
        """A finding whose value is the share of idle time."""
        share = _share(self.time.idle_ns, self.time.wall_ns)
        return Finding(
            id=kind,
            evidence=evidence,
            device=self.name,
            verdict=verdict,
            value=round(share, 4),
            unit="1",
            expected=at_most(*threshold("idle")),
        )

    @property
    def words(self) -> str:
        time = self.time
        gap = f", the longest for {_time(time.longest_gap_ns)}" if time.longest_gap_ns else ""
        share = _share(time.idle_ns, time.wall_ns)
        return f"idle for {share:.1%} of {_time(time.wall_ns)}, in {count(time.gaps, 'gap')}{gap}"


def _why_it_waits(summary: Summary, each: DeviceTime) -> Iterator[Finding]:
    idle = _Idle(summary, each, _device_name(summary, each))
    launch, input_ = _launches(idle), _input(idle)
    yield launch
    yield input_
    explained = Verdict.FAIL in (launch.verdict, input_.verdict)
    if explained:
        evidence = f"{idle.words}; launches or input explain it"
        yield idle.finding("host-bound", evidence, Verdict.PASS)
        return
    waited = sum(
        time for name, time in summary.api_ns.items() if _any(known_words().wait, name)
    ) / max(len({d.rank for d in summary.devices}), 1)
    evidence = idle.words
    if waited:
        evidence += f"; the host waited {_time(waited)} for the device in calls that synchronise"
    if Verdict.INCONCLUSIVE in (launch.verdict, input_.verdict):
        evidence += "; whether launches or input are the cause cannot be answered"
    yield idle.finding("host-bound", evidence, Verdict.FAIL)


def _any(patterns: Sequence[re.Pattern[str]], name: str) -> bool:
    return any(each.search(name) for each in patterns)


def _launches(idle: _Idle) -> Finding:
    summary, time = idle.summary, idle.time
    if "api" not in summary.events:
        missing = "the capture has no calls of the runtime on the host"
        remedy = "trace the runtime's calls too: portagpu profile does"
        return _cannot("launch-bound", missing, idle.name, remedy)
    in_launches = sum(
        each for name, each in summary.api_ns.items() if _any(known_words().launch, name)
    )
    if not in_launches:
        missing = f"none of {count(len(summary.api_ns), 'call')} of the runtime is a known launch"
        return _cannot("launch-bound", missing, idle.name)
    kernels = _kernel_calls(summary, time)
    mean = _share(time.kernel_sum_ns, kernels)
    # calls do not say for which of the devices they are
    of_one = in_launches / max(sum(_kernel_calls(summary, each) for each in summary.devices), 1)
    launch_ns = of_one * kernels
    short, _ = threshold("short")
    explains, _ = threshold("explains")
    evidence = (
        f"{idle.words}; {count(kernels, 'kernel')} of {_time(mean)} in the mean, and "
        f"{_time(of_one)} of the host to launch one ({_time(launch_ns)} in all)"
    )
    # a kernel that is loaded at its first launch makes one long gap, which is not the rule
    has_one_gap = (time.longest_gap_ns or 0) >= explains * time.idle_ns
    starves = launch_ns >= explains * time.idle_ns or time.gaps >= explains * kernels
    is_bound = starves and mean < max(short, of_one) and not has_one_gap
    return idle.finding("launch-bound", evidence, Verdict.FAIL if is_bound else Verdict.PASS)


def _kernel_calls(summary: Summary, time: DeviceTime) -> int:
    columns = ["rank", "device", "kind", "calls"]
    return sum(
        row["calls"] or 0
        for row in summary.rows.select(columns).to_pylist()
        if (row["rank"], row["device"], row["kind"]) == (time.rank, time.device, "kernel")
    )


def _input(idle: _Idle) -> Finding:
    summary, time = idle.summary, idle.time
    remedy = (
        "annotate where the program gets its input (pg.annotate), or capture with torch's profiler"
    )
    if "range" not in summary.events:
        return _cannot("input-bound", "the capture has no ranges", idle.name, remedy)
    pattern = re.compile(own_table()["input"]["pattern"])
    columns = ["rank", "path", "host_ns"]
    rows = [
        row
        for row in summary.ranges.select(columns).to_pylist()
        if row["rank"] == time.rank and pattern.search((row["path"] or "").rpartition("/")[2])
    ]
    if not rows:
        found = count(summary.ranges.num_rows, "range")
        missing = f"none of {found} says by its name that it gets the input"
        return _cannot("input-bound", missing, idle.name, remedy)
    spent = sum(row["host_ns"] or 0 for row in rows)
    longest = max(rows, key=lambda row: row["host_ns"] or 0)["path"] or ""
    explains, _ = threshold("explains")
    evidence = (
        f"{idle.words}; the program got its input for {_time(spent)}, as in {one_line(longest)}"
    )
    is_bound = spent >= explains * time.idle_ns
    return idle.finding("input-bound", evidence, Verdict.FAIL if is_bound else Verdict.PASS)


# ---- kernels that wait for copies or communication


def _of_shares(summary: Summary) -> Iterator[Finding]:
    if "copy" not in summary.events:
        remedy = "trace memory copies too: portagpu profile does"
        yield _cannot("copy-bound", "the capture has no place for copies", None, remedy)
    else:
        yield from _of_share(
            summary,
            "copy-bound",
            "copies",
            lambda each: each.exposed_copy_ns,
            lambda each: _largest_copy(summary, each),
        )
    unknown = _unknown_share(summary)
    limit, _ = threshold("unknown")
    found = list(
        _of_share(
            summary,
            "communication-bound",
            "communication",
            lambda each: each.exposed_communication_ns,
            lambda _: _skew(summary),
        )
    )
    if unknown > limit and all(each.verdict is Verdict.PASS for each in found):
        missing = f"{unknown:.0%} of the kernels' time is of kernels that no rule knows"
        remedy = "report their names, so that a rule is added (docs/profiling.md)"
        yield _cannot("communication-bound", missing, None, remedy)
    else:
        yield from found


def _of_share(
    summary: Summary,
    name: str,
    what: str,
    exposed: Callable[[DeviceTime], int],
    more: Callable[[DeviceTime], str],
) -> Iterator[Finding]:
    limit = threshold(name.removesuffix("-bound"))
    shares = [(_share(exposed(each), each.wall_ns), each) for each in summary.devices]
    for share, each in shares:
        if share >= limit[0]:
            yield Finding(
                id=name,
                evidence=f"only {what} ran for {share:.1%} of {_time(each.wall_ns)}{more(each)}",
                device=_device_name(summary, each),
                verdict=Verdict.FAIL,
                value=round(share, 4),
                unit="1",
                expected=at_most(*limit),
            )
    worst = max(share for share, _ in shares)
    if worst < limit[0]:
        evidence = f"only {what} ran for at most {worst:.1%} of a device's time"
        yield _fine(name, evidence, worst, limit)


def _largest_copy(summary: Summary, time: DeviceTime) -> str:
    columns = ["rank", "device", "kind", "name", "total_ns", "bytes"]
    rows = [
        row
        for row in summary.rows.select(columns).to_pylist()
        if (row["rank"], row["device"], row["kind"]) == (time.rank, time.device, "copy")
    ]
    row = max(rows, key=lambda each: each["total_ns"] or 0, default=None)
    if row is None or not row["bytes"] or not row["total_ns"]:
        return ""
    rate = row["bytes"] / row["total_ns"]
    moved = f"{quantity(row['bytes'], 'B')} at {quantity(rate, 'GB/s')}"
    return f"; the most is {one_line(row['name'] or 'copies')}: {moved}"


def _skew(summary: Summary) -> str:
    """How much of the communication is waiting for the rank that comes last."""
    rows = summary.collectives.select(["duration_ns", "skew_ns", "last_rank"]).to_pylist()
    skew = sum(row["skew_ns"] or 0 for row in rows)
    if not skew:
        return ""
    last = [row["last_rank"] for row in rows if row["last_rank"] is not None]
    who = f", mostly for rank {max(set(last), key=last.count)}" if last else ""
    moving = sum(row["duration_ns"] or 0 for row in rows)
    waits = f"a rank waits up to {_time(skew)} for others{who}"
    return f"; {waits}, and {_time(moving)} are transfers"


def _unknown_share(summary: Summary) -> float:
    columns = ["kind", "category", "total_ns"]
    rows = [row for row in summary.rows.select(columns).to_pylist() if row["kind"] == "kernel"]
    whole = sum(row["total_ns"] or 0 for row in rows)
    return _share(sum(row["total_ns"] or 0 for row in rows if row["category"] == "unknown"), whole)


# ---- where kernels are below the roofs of the device


def _roofline(summary: Summary, captures: Sequence[Capture]) -> Iterator[Finding]:
    shares = counted_shares(captures)
    evidence = ""
    if shares is None:
        shares, evidence = computed_shares(summary, captures, own_table()["roofline"]["dtypes"])
    if shares is None:
        remedy = "collect counters of the longest kernels, or capture with torch's with_flops"
        yield _cannot("memory-bound", evidence, None, remedy)
        yield _cannot("compute-bound", evidence, None, remedy)
        return
    limit = threshold("roof")
    near = {name for name, (share, _) in shares.items() if share >= limit[0]}
    if len(near) == 2:
        near = {max(shares, key=lambda name: shares[name][0])}
    for name, (share, words) in shares.items():
        other = "" if near or len(shares) < 2 else ": below both roofs, so that latencies bound it"
        yield Finding(
            id=f"{name}-bound",
            evidence=f"{words}{other}",
            verdict=Verdict.UNVERIFIED if name in near else Verdict.PASS,
            value=round(share, 4),
            unit="1",
            expected=at_most(*limit),
        )
    if "memory" not in shares:
        missing = "the capture has no counters of bytes, only FLOPs"
        yield _cannot("memory-bound", missing, None, "collect counters of the longest kernels")
