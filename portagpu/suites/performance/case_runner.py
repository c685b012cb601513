"""Runs one case in a world of ranks, and makes a result of its samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.stats import INTERVAL_LEVEL, Summary, median_interval, summarise
from portagpu.runs.engine import broken_world
from portagpu.runs.results.advice import separated, wrong_value
from portagpu.runs.results.run import Result
from portagpu.runs.results.verdicts import Evidence, Verdict
from portagpu.runs.results.wording import exactly
from portagpu.runs.world import Ranks
from portagpu.suites.performance.cases import SCALES, SUITE, TIME_SCALES, function_spec
from portagpu.suites.performance.device import CacheLevel, best_by_level
from portagpu.suites.performance.judge import figures_of, figures_to_show, judge, share_of_limit
from portagpu.suites.performance.timing import PACES, Effort, RankSamples

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from portagpu.facts.targets import Target
    from portagpu.runs.world import WorldOutcome
    from portagpu.suites.performance.cases import BenchCase
    from portagpu.suites.performance.device import MeasuredDevice


_PATIENCE: Final = 4.0
"""Times its limit of silence that a case may take in all: a machine with four times as much work
as processors makes everything take so long, and what hangs is silent."""


@dataclass(frozen=True, slots=True)
class BenchContext:
    """What the cases of one run share: ranks, device, effort and target."""

    ranks: Ranks
    device: MeasuredDevice
    effort: Effort
    target: Target | None
    timeout_s: float | None = None
    busy: str = ""
    """A clause about other work on this machine when the run began; empty without any."""

    def result(self, case: BenchCase) -> Result:
        """Run ``case`` and judge its samples."""
        if case.absent is not None:
            return not_run(case, case.absent.reason, verdict=case.absent.verdict)
        outcome = self._run(case)
        if not outcome.ok:
            return self._broken_result(case, outcome)
        readings = [RankSamples.from_json(value) for value in outcome.values]
        return self._judge_samples(case, readings, outcome.duration_s)

    def _run(self, case: BenchCase) -> WorldOutcome:
        if case.environment:
            # a variable may be read when the library is loaded, long before a rank could set it
            with Ranks({**self.ranks.environment, **case.environment}) as ranks:
                return self._run_on(ranks, case)
        return self._run_on(self.ranks, case)

    def _run_on(self, ranks: Ranks, case: BenchCase) -> WorldOutcome:
        limit_s = time_limit_s(case, self.effort)
        return ranks.run(
            function_spec(case),
            case.world,
            arguments={"effort": str(self.effort), **case.arguments},
            backend=self.device.backend,
            indices=range(case.world) if case.world > 1 else [self.device.index],
            group=case.world > 1,
            timeout_s=self.timeout_s or limit_s,
            most_s=None if self.timeout_s else _PATIENCE * limit_s,
        )

    def _broken_result(self, case: BenchCase, outcome: WorldOutcome) -> Result:
        culprit, fields = outcome.culprit, broken_world(outcome, outcome.first_failure)
        return _case_result(
            case,
            device=self._culprit_name(case, culprit) if culprit is not None else None,
            evidence=() if fields["verdict"] is Verdict.ERROR else (Evidence.EXECUTED,),
            extra={"output": text} if (text := _culprit_output(outcome)) else {},
            **fields,
        )

    def _culprit_name(self, case: BenchCase, rank: int) -> str:
        return f"rank {rank}" if case.world > 1 else self.device.name

    def _judge_samples(
        self, case: BenchCase, readings: list[RankSamples], duration_s: float
    ) -> Result:
        if any(reading.wrong for reading in readings):
            return self._wrong_result(case, readings, duration_s)
        if skip := next((reading.skip for reading in readings if reading.skip), ""):
            return not_run(case, skip, verdict=Verdict.SKIP)
        try:
            samples = rates(case, readings)
            points = [summarise(each) for each in samples]
        except ValueError as error:
            return _case_result(
                case, Verdict.ERROR, f"nothing was measured: {error}", duration_s=duration_s
            )
        last = points[-1]
        size = int(readings[0].points[-1].x) or None
        versions = _named_versions(self.device)
        judgement = judge(
            case, last, self.target, size_bytes=size, versions=versions, busy=self.busy
        )
        wrong = judgement.verdict is Verdict.ERROR
        limit_share = share_of_limit(case, last, self.target)
        several = not self.device.shared and self.device.count > 1 and case.world == 1
        return _case_result(
            case,
            judgement.verdict,
            judgement.reason,
            device=self.device.name if several or wrong else None,
            value=None if wrong else last.median,
            unit=case.unit,
            statistic="median",
            n=last.n,
            spread=None if wrong else last.spread,
            expected=judgement.expected,
            evidence=() if wrong else (Evidence.EXECUTED,),
            duration_s=duration_s,
            extra={
                **_extra_fields(case, readings, [] if wrong else points, limit_share),
                **({} if wrong else _interval_fields(samples[-1])),
                **({} if wrong else self._figures(case, last, size, versions)),
            },
        )

    def _wrong_result(
        self, case: BenchCase, readings: Sequence[RankSamples], duration_s: float
    ) -> Result:
        """The result of a case of which a rank rejected a value, or ran something else.

        What ranks exchange may come from any of them: where several are wrong, none is named.
        """
        wrong = [rank for rank, reading in enumerate(readings) if reading.wrong]
        first = readings[wrong[0]]
        several = f" on ranks {', '.join(map(str, wrong))}" if len(wrong) > 1 else ""
        found = _case_result(
            case,
            Verdict.FAIL,
            f"{first.wrong}{several}; no time was kept",
            device=None if several else self._culprit_name(case, wrong[0]),
            expected=exactly("right", f"values are checked: {case.checks}"),
            duration_s=duration_s,
            evidence=(Evidence.EXECUTED,),
            extra={} if first.other_work else wrong_value("" if several else first.digest),
        )
        exchanged = "ranks exchange values, and one may give others wrong ones"
        (result,) = separated([found], exchanged if case.world > 1 else "")
        return result

    def _figures(
        self,
        case: BenchCase,
        summary: Summary,
        size_bytes: int | None,
        versions: Mapping[str, str | None],
    ) -> dict[str, Any]:
        """The figures of the target, where it states several of ``case``."""
        stated = self.target.expectations(case.metric) if self.target is not None else ()
        figures = figures_to_show(figures_of(stated, case, summary, size_bytes, versions))
        return {"figures": figures} if figures else {}


def time_limit_s(case: BenchCase, effort: Effort) -> float:
    """How long ``case`` may be silent: longer with each further rank, all of which start and are
    checked on one host. Each timed sample and each step is a sign of life."""
    pace = PACES[effort]
    return case.time_factor * (pace.timeout_s + (case.world - 1) * pace.rank_s)


def rates(case: BenchCase, readings: Sequence[RankSamples]) -> list[list[float]]:
    """The value of every sample of every point, in the unit of ``case``.

    If several ranks measured together, a sample took as long as its slowest rank. Raises
    ValueError if there is no point, no time, or ranks do not match.
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


def _extra_fields(
    case: BenchCase,
    readings: Sequence[RankSamples],
    points: Sequence[Summary],
    of_limit: float | None,
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
        "stable_warmup": all(each.stable for each in readings),
        "telemetry": first.telemetry_summary(),
        "ranks": case.world,
        **({"environment": dict(case.environment)} if case.environment else {}),
        **first.notes,
    }
    if "bus_factor" in first.notes and points:
        extra |= _collective_fields(first, points)
    if points:
        extra["mean"], extra["min"], extra["max"] = points[-1].mean, points[-1].low, points[-1].high
        last = first.points[-1]
        extra |= {"flops": last.flops} if last.flops is not None else {}
        extra |= {"bytes": last.bytes} if last.bytes is not None else {}
    if of_limit is not None:
        extra["of_limit"] = of_limit
    if case.axis and points:
        extra |= _levels(first, points)
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


def _collective_fields(reading: RankSamples, points: Sequence[Summary]) -> dict[str, float]:
    """Algorithm bandwidth S / t at the largest size, and the time at the smallest."""
    smallest = reading.points[0].work / SCALES["GB/s"] / points[0].median
    return {
        "algorithm_bandwidth_gb_per_s": points[-1].median / reading.notes["bus_factor"],
        "latency_us": smallest * TIME_SCALES["us"],
        "latency_bytes": reading.points[0].x,
    }


def _levels(reading: RankSamples, points: Sequence[Summary]) -> dict[str, Any]:
    """The best value in each cache and beyond, of a case that notes caches and its arrays."""
    if not reading.notes.get("caches"):
        return {}
    levels = [CacheLevel(**each) for each in reading.notes["caches"]]
    sizes = [reading.notes["arrays"] * point.x for point in reading.points]
    return {"levels": best_by_level(levels, sizes, [point.median for point in points])}


def _interval_fields(samples: list[float]) -> dict[str, Any]:
    return {"interval": list(median_interval(samples)), "interval_level": INTERVAL_LEVEL}


def _named_versions(device: MeasuredDevice) -> dict[str, str | None]:
    """Versions by the names that expectations use, the communication library's among them."""
    versions = dict(device.versions)
    comm = versions.get("comm")
    if comm and device.comm:
        versions[device.comm.lower()] = comm.removeprefix(device.comm).strip() or None
    return versions


def _culprit_output(outcome: WorldOutcome) -> str:
    """The end of the output of the culprit, or of the first rank with output."""
    failed = [each for each in outcome.ranks if each.output]
    chosen = next((each for each in failed if each.rank == outcome.culprit), None)
    if chosen is None:
        chosen = failed[0] if failed else None
    return chosen.output[-1000:] if chosen is not None else ""


def not_run(
    case: BenchCase,
    reason: str,
    *,
    verdict: Verdict = Verdict.INCONCLUSIVE,
    blocked_by: str | None = None,
) -> Result:
    """The result of a case that did not run, without evidence."""
    return _case_result(case, verdict, reason, blocked_by=blocked_by)


def _case_result(case: BenchCase, verdict: Verdict, reason: str, **fields: Any) -> Result:
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
