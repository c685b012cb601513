"""Running cases in worlds of ranks with hard limits, and turning what they read into results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from portagpu.bench import suite
from portagpu.bench.cases import SCALES, SUITE, TIME_SCALES
from portagpu.bench.device import Device
from portagpu.bench.effort import PACES, Effort
from portagpu.bench.judge import judge
from portagpu.bench.reading import Reading
from portagpu.bench.stats import Summary, summarise
from portagpu.results import Result
from portagpu.target import Target, load_target, load_targets
from portagpu.verdicts import Evidence, Verdict
from portagpu.world import State

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from portagpu.bench.cases import Case
    from portagpu.world import Ranks, WorldOutcome

OPENED: Final = "device/open"
"""The id of the result that blocks all others where the device cannot be opened."""
_OPEN_S: Final = 60.0


def open_device(
    ranks: Ranks, backend: str | None = None, index: int = 0, timeout_s: float = _OPEN_S
) -> Device | Result:
    """The device's facts, read in a rank; a failed result where it cannot be opened."""
    outcome = ranks.run(
        "portagpu.bench.device:describe",
        backend=backend,
        indices=[index],
        group=False,
        timeout_s=timeout_s,
    )
    if outcome.ok:
        return Device.from_json(outcome.values[0])
    return Result(
        id=OPENED,
        suite=SUITE,
        area="device",
        verdict=Verdict.ERROR,
        reason=f"the device cannot be opened: {outcome.sentence}",
        device=f"{backend or 'device'} {index}",
        duration_s=outcome.duration_s,
    )


def run(
    names: Sequence[str] | None = None,
    *,
    ranks: Ranks,
    backend: str | None = None,
    index: int = 0,
    world: int | None = None,
    effort: Effort = Effort.QUICK,
    target: Target | str | None = None,
    device: Device | None = None,
    on_result: Callable[[Result], None] | None = None,
    on_case: Callable[[Case, int, int], None] | None = None,
    timeout_s: float | None = None,
) -> list[Result]:
    """Measure what ``names`` say and judge it; one result for each case, in order.

    ``names`` are areas ("gemm"), metrics ("memory/copy") or case ids; none is everything. ``index``
    is the device of measures of one device; ``world`` the number of ranks of collectives (by
    default every device, or two ranks where all share one). ``target`` is what is judged, by
    default what this device is; another target makes every case INCONCLUSIVE. ``timeout_s`` is the
    hard limit of each case. ``device`` saves looking again at what ``open_device`` gave.

    ``on_case(case, number, of)`` is called before each case that runs. Raises UnknownMeasure,
    TargetNotFound, and MissingDependency where there is no torch.
    """
    suite.selected_areas(names)
    wanted = load_target(target) if isinstance(target, str) else target
    report = on_result or _ignore
    results: list[Result] = []

    def add(result: Result) -> None:
        results.append(result)
        report(result)

    opened = device or open_device(ranks, backend, index)
    if isinstance(opened, Result):
        add(opened)
        stand_in = Device(backend=backend or "", name="")
        for case in suite.plan(names, stand_in, effort, world or 2, wanted):
            add(_not_run(case, "the device cannot be opened", blocked_by=OPENED))
        return results
    if wanted is not None and opened.target != wanted.id:
        described = Device.of_target(wanted)
        here = f"this machine's device is {_who(opened)}, not {wanted.id}"
        for case in suite.plan(names, described, effort, world or 2, wanted):
            add(_elsewhere(case, here))
        return results
    judged = wanted or load_targets().get(opened.target or "")
    size = world or default_world(opened)
    cases = suite.plan(names, opened, effort, size, judged)
    session = Session(ranks, opened, effort, judged, timeout_s)
    for number, case in enumerate(cases, 1):
        if on_case is not None and case.absent is None:
            on_case(case, number, len(cases))
        add(session.result(case))
    return results


def default_world(device: Device) -> int:
    """The ranks of collectives: every device, or two where all ranks share one."""
    return 2 if device.shared else device.count


@dataclass(frozen=True, slots=True)
class Session:
    """What cases of one run share."""

    ranks: Ranks
    device: Device
    effort: Effort
    target: Target | None
    timeout_s: float | None = None

    def result(self, case: Case) -> Result:
        """Run ``case`` and judge what it gave."""
        if case.absent is not None:
            return _not_run(case, case.absent.reason, verdict=case.absent.verdict)
        outcome = self.ranks.run(
            suite.function_spec(case),
            case.world,
            arguments={"effort": str(self.effort), **case.arguments},
            backend=self.device.backend,
            indices=range(case.world) if case.world > 1 else [self.device.index],
            group=case.world > 1,
            timeout_s=self.timeout_s or PACES[self.effort].timeout_s,
        )
        if not outcome.ok:
            return self._broken(case, outcome)
        readings = [Reading.from_json(value) for value in outcome.values]
        return self._judged(case, readings, outcome.duration_s)

    def _broken(self, case: Case, outcome: WorldOutcome) -> Result:
        """A rank that died or hung is the device's or its library's failure; one that raised is an
        error of the check, as far as it can be told."""
        culprit = outcome.culprit
        states = {each.rank: each.state for each in outcome.ranks}
        failed = [each for each in outcome.ranks if each.state is not State.DONE]
        state = states[culprit] if culprit is not None else failed[0].state
        raised = state is State.RAISED
        named = self._name(case, culprit) if culprit is not None else None
        return _plain(
            case,
            Verdict.ERROR if raised else Verdict.FAIL,
            outcome.sentence,
            device=named,
            duration_s=outcome.duration_s,
            evidence=() if raised else (Evidence.EXECUTED,),
            extra={"output": text} if (text := _output(outcome)) else {},
        )

    def _name(self, case: Case, rank: int) -> str:
        return f"rank {rank}" if case.world > 1 else self.device.name

    def _judged(self, case: Case, readings: list[Reading], duration_s: float) -> Result:
        for rank, reading in enumerate(readings):
            if reading.wrong:
                return _plain(
                    case,
                    Verdict.FAIL,
                    f"{reading.wrong}; no time was kept",
                    device=self._name(case, rank),
                    duration_s=duration_s,
                    evidence=(Evidence.EXECUTED,),
                )
        if skip := next((reading.skip for reading in readings if reading.skip), ""):
            return _not_run(case, skip, verdict=Verdict.SKIP)
        try:
            points = [summarise(samples) for samples in rates(case, readings)]
        except ValueError as error:
            return _plain(
                case, Verdict.ERROR, f"nothing was measured: {error}", duration_s=duration_s
            )
        last = points[-1]
        size = int(readings[0].points[-1].x) or None
        opinion = judge(case, last, self.target, size_bytes=size, versions=_versions(self.device))
        wrong = opinion.verdict is Verdict.ERROR
        several = not self.device.shared and self.device.count > 1 and case.world == 1
        return _plain(
            case,
            opinion.verdict,
            opinion.reason,
            device=self.device.name if several or wrong else None,
            value=None if wrong else last.median,
            unit=case.unit,
            statistic="median",
            n=last.n,
            spread=None if wrong else last.spread,
            expected=opinion.expected,
            evidence=() if wrong else (Evidence.EXECUTED,),
            duration_s=duration_s,
            extra=_extra(case, readings, [] if wrong else points, opinion.of_limit),
        )


def rates(case: Case, readings: Sequence[Reading]) -> list[list[float]]:
    """The value of every sample of every point, in the unit of ``case``.

    Where several ranks measured together, a sample took as long as its slowest rank. Raises
    ValueError where there is no point, no time, or ranks do not match.
    """
    if not readings[0].points:
        raise ValueError("there is no point")
    found = []
    for index, first in enumerate(readings[0].points):
        seconds = [
            max(samples)
            for samples in zip(*(each.points[index].seconds for each in readings), strict=True)
        ]
        if not seconds or min(seconds) <= 0:
            raise ValueError("a sample took no time")
        if case.unit in TIME_SCALES:
            found.append([each * TIME_SCALES[case.unit] for each in seconds])
        else:
            found.append([first.work / each / SCALES[case.unit] for each in seconds])
    return found


def _extra(
    case: Case, readings: Sequence[Reading], points: Sequence[Summary], of_limit: float | None
) -> dict[str, Any]:
    first = readings[0]
    extra: dict[str, Any] = {
        "metric": case.metric,
        "counts": case.counts,
        "checks": case.checks,
        "clock": first.clock,
        "resolution_s": max(each.resolution_s for each in readings),
        "repeats": first.points[-1].repeats,
        "threads": first.threads,
        "load_average": first.load_average,
        "ranks": case.world,
        **first.notes,
    }
    if points:
        extra["mean"], extra["min"], extra["max"] = points[-1].mean, points[-1].low, points[-1].high
    if of_limit is not None:
        extra["of_limit"] = of_limit
    if case.axis and points:
        extra["curve"] = {
            "x": [point.x for point in first.points],
            "y": [point.median for point in points],
            "x_label": case.axis,
            "y_label": "bus bandwidth" if case.area == "collectives" else f"{case.area} bandwidth",
            "x_unit": "B",
            "y_unit": case.unit,
            "x_log": True,
            "series": case.id.partition("/")[2],
        }
    return extra


def _versions(device: Device) -> dict[str, str | None]:
    """Versions by the names that expectations use, the communication library's among them."""
    versions = dict(device.versions)
    comm = versions.get("comm")
    if comm and device.comm:
        versions[device.comm.lower()] = comm.removeprefix(device.comm).strip() or None
    return versions


def _who(device: Device) -> str:
    target = f"target {device.target}" if device.target else "no target"
    return f"{device.product or device.arch or device.name} ({target})"


def _output(outcome: WorldOutcome) -> str:
    """The end of what the culprit printed, or of the first that failed."""
    failed = [each for each in outcome.ranks if each.output]
    chosen = next((each for each in failed if each.rank == outcome.culprit), None)
    if chosen is None:
        chosen = failed[0] if failed else None
    return chosen.output[-1000:] if chosen is not None else ""


def _elsewhere(case: Case, here: str) -> Result:
    absent = case.absent
    if absent is not None and absent.verdict is Verdict.SKIP:
        return _not_run(case, absent.reason, verdict=Verdict.SKIP)
    return _not_run(case, here)


def _not_run(
    case: Case,
    reason: str,
    *,
    verdict: Verdict = Verdict.INCONCLUSIVE,
    blocked_by: str | None = None,
) -> Result:
    if verdict is not Verdict.INCONCLUSIVE or blocked_by is None:
        return _plain(case, verdict, reason)
    return _plain(case, verdict, reason, blocked_by=blocked_by)


def _plain(case: Case, verdict: Verdict, reason: str, **fields: Any) -> Result:
    return Result(
        id=case.id,
        suite=SUITE,
        area=case.area,
        verdict=verdict,
        reason=reason,
        shape=case.shape,
        does_not_show=case.does_not_show,
        **fields,
    )


def _ignore(result: Result) -> None:
    del result
