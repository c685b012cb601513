"""Loads for bring-up: the same product on each rank in turn, and a sustained load."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import islice
from statistics import fmean, median
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.patience import LIMITS
from portagpu.base.stats import Summary, mad, summarise
from portagpu.runs.engine import broken_world
from portagpu.runs.judges.peers import RELATIVE, Peers, compare_peers, peer_expectation
from portagpu.runs.results.advice import separated, wrong_value
from portagpu.runs.results.run import Result
from portagpu.runs.results.verdicts import Evidence, Verdict
from portagpu.runs.results.wording import exactly
from portagpu.suites.performance.cases import SCALES, SUITE
from portagpu.suites.performance.timing import PACES, Effort, RankSamples

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from portagpu.runs.world import Ranks, WorldOutcome

UNIT: Final = "TFLOPS"
ONE_DEVICE: Final = "all ranks share one device"
SHARED_RELATIVE: Final = 0.5
"""Ranks that share one device also share it with whatever else runs there."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The same product on every rank: ``summaries`` in TFLOPS by rank, and the outliers."""

    summaries: Mapping[str, Summary]
    peers: Peers
    results: tuple[Result, ...]


def compare_ranks(
    ranks: Ranks,
    *,
    backend: str | None = None,
    world: int,
    effort: Effort = Effort.QUICK,
    dtype: str = "fp32",
    size: int | None = None,
    rounds: int = 3,
    relative: float | None = None,
    timeout_s: float | None = None,
) -> Comparison:
    """Let every rank measure the same product while all others wait, and compare them.

    Ranks take turns, so that a momentary disturbance affects more than one rank.

    :param ranks: Runs the ranks.
    :param backend: The backend's name, by default the one for this machine.
    :param world: The number of ranks.
    :param effort: How long each rank measures.
    :param dtype: The dtype of the product, as ``gemm`` names it.
    :param size: Rows and columns of the square matrices, by default what fits the device.
    :param rounds: How many turns each rank has.
    :param relative: The fraction of the median from which a rank is an outlier, by default 0.05,
        and 0.5 if ranks share one device.
    :param timeout_s: The limit of all rounds in seconds, by default that of ``effort``.
    :returns: Rates in TFLOPS by rank, and a result for each: PASS, FAIL for an outlier or a wrong
        value, UNVERIFIED if fewer than four ranks can be compared.
    """
    pace = PACES[effort]
    outcome = ranks.run(
        "portagpu.suites.performance.load_ranks:take_turns",
        world,
        arguments={"effort": str(effort), "dtype": dtype, "size": size, "rounds": rounds},
        backend=backend,
        timeout_s=timeout_s or pace.timeout_s + world * rounds * (pace.warmup_s + 2 * pace.point_s),
    )
    if not outcome.ok:
        empty = Peers(None, None, (), False, outcome.sentence)
        return Comparison({}, empty, (_broken_result("ranks/gemm", outcome),))
    readings = [RankSamples.from_json(value) for value in outcome.values]
    shared = bool(readings[0].notes["shared"])
    summaries = {
        f"rank {rank}": summarise(_rates(reading))
        for rank, reading in enumerate(readings)
        if not reading.wrong
    }
    values = {name: each.median for name, each in summaries.items()}
    within = relative if relative is not None else SHARED_RELATIVE if shared else RELATIVE
    compared = (
        compare_peers(values, relative=within) if values else Peers(None, None, (), False, "none")
    )
    results = separated(
        (
            _rank_result(f"rank {rank}", reading, summaries.get(f"rank {rank}"), compared, within)
            for rank, reading in enumerate(readings)
        ),
        ONE_DEVICE if shared else "",
    )
    return Comparison(summaries, compared, tuple(results))


def _rates(reading: RankSamples) -> list[float]:
    return [
        point.work / seconds / SCALES[UNIT] for point in reading.points for seconds in point.seconds
    ]


def _rank_result(
    name: str, reading: RankSamples, summary: Summary | None, compared: Peers, within: float
) -> Result:
    shared: dict[str, Any] = {
        "id": "ranks/gemm",
        "suite": SUITE,
        "area": "ranks",
        "device": name,
        "evidence": (Evidence.EXECUTED,),
        "shape": reading.notes["shape"],
        "does_not_show": "how fast the device should be: it is only compared with its peers",
    }
    if summary is None:
        return Result(
            verdict=Verdict.FAIL,
            reason=reading.wrong,
            expected=exactly("right", f"values are checked: {reading.notes['judged']}"),
            extra=wrong_value(reading.digest),
            **shared,
        )
    outlier = next((each for each in compared.outliers if each.name == name), None)
    verdict, reason = Verdict.PASS, ""
    if outlier is not None:
        verdict = Verdict.FAIL
        side = "below" if outlier.relative < 0 else "above"
        reason = f"{abs(outlier.relative):.0%} {side} the median of its peers"
    elif not compared.judged:
        verdict, reason = Verdict.UNVERIFIED, compared.reason
    return Result(
        verdict=verdict,
        reason=reason,
        value=summary.median,
        unit=UNIT,
        statistic="median",
        n=summary.n,
        spread=summary.spread,
        expected=peer_expectation(compared, UNIT, within),
        extra={
            "peers_median": compared.median,
            "peers_mad": compared.mad,
            "relative_allowed": within,
            "threads": reading.threads,
            "clock": reading.clock,
            "judged": reading.notes["judged"],
        },
        **shared,
    )


@dataclass(frozen=True, slots=True)
class SustainedLoad:
    """One device under a sustained load; ranks that share a device are named by their rank.

    ``throughput`` holds (seconds since the start, TFLOPS) for each interval; ``readings`` what the
    plugin's telemetry said meanwhile, with the second under "t_s". ``drift_percent`` is the mean
    of the last third against the first, in percent; None with fewer than three intervals.
    """

    device: str
    shape: Mapping[str, int | str] = field(default_factory=dict)
    throughput: tuple[tuple[float, float], ...] = ()
    readings: tuple[Mapping[str, float], ...] = ()
    wrong: str = ""
    digest: str = ""
    """That of the wrong elements; empty where nothing has one."""
    compared: int = 0
    """Products of which every element was judged."""
    judged: Mapping[str, Any] = field(default_factory=dict)
    """How: "by", in words; "batches", each with operands of its own; and "share", that of the time
    which making operands and judging took, between what was timed."""
    sampled: str = ""
    """Why the operands were not exact; empty where they were."""
    results: tuple[Result, ...] = ()

    @property
    def drift_percent(self) -> float | None:
        """The drift; negative where the device became slower."""
        return drift_percent([rate for _, rate in self.throughput])

    @property
    def throttle_events(self) -> float | None:
        """The increase of the count of throttling events; None if the machine shows no count."""
        counts = [each["throttle_count"] for each in self.readings if "throttle_count" in each]
        return counts[-1] - counts[0] if counts else None


def drift_percent(rates: Sequence[float]) -> float | None:
    """The mean of the last third of ``rates`` against that of the first third, in percent."""
    third = len(rates) // 3
    if not third:
        return None
    return 100 * (fmean(rates[-third:]) / fmean(rates[:third]) - 1)


def sustain_load(
    ranks: Ranks,
    seconds: float,
    *,
    backend: str | None = None,
    indices: Sequence[int] = (0,),
    dtype: str = "fp32",
    size: int | None = None,
    interval_s: float = 1.0,
    on_interval: Callable[[int, Mapping[str, Any]], None] | None = None,
    timeout_s: float | None = None,
) -> tuple[SustainedLoad, ...]:
    """Keep devices busy with products, all at the same time.

    Every element of every product is judged: the operands of each batch are others, with exact
    results, and what differs from these is silent corruption, and FAIL. Judging is not timed.
    Telemetry is read while the products run.

    :param ranks: Runs a rank for each device.
    :param seconds: How long the load lasts.
    :param backend: The backend's name, by default the one for this machine.
    :param indices: The devices.
    :param dtype: The dtype of the product, as ``gemm`` names it.
    :param size: Rows and columns of the square matrices, by default what fits the device.
    :param interval_s: Seconds between two readings.
    :param on_interval: Called after each interval with the position in ``indices`` and ``t_s``,
        ``tflops`` and ``telemetry``.
    :param timeout_s: The limit in seconds, by default ``seconds`` and the time to start.
    :returns: The load of each device. Throughput and drift are UNVERIFIED: nothing says what they
        should be.
    """

    def announce(rank: int, name: str, data: dict[str, Any]) -> None:
        if name == "interval" and on_interval is not None:
            on_interval(rank, data)

    outcome = ranks.run(
        "portagpu.suites.performance.load_ranks:sustain",
        len(indices),
        arguments={"seconds": seconds, "interval_s": interval_s, "dtype": dtype, "size": size},
        backend=backend,
        indices=indices,
        group=False,
        timeout_s=timeout_s or seconds + LIMITS.device_s,
        on_step=announce,
    )
    if not outcome.ok:
        return (
            SustainedLoad(
                "", wrong=outcome.sentence, results=(_broken_result("sustained", outcome),)
            ),
        )
    names, one_device = [value["device"] for value in outcome.values], ""
    if len(set(names)) < len(names):
        names = [f"rank {rank}" for rank in range(len(names))]
        one_device = ONE_DEVICE
    pairs = zip(names, outcome.values, strict=True)
    loads = [_sustained_load(value, name, len(names) > 1) for name, value in pairs]
    judged = iter(separated((each for load in loads for each in load.results), one_device))
    return tuple(replace(load, results=tuple(islice(judged, len(load.results)))) for load in loads)


def _sustained_load(value: Mapping[str, Any], name: str, several: bool) -> SustainedLoad:
    found = SustainedLoad(
        device=name,
        shape=value["shape"],
        throughput=tuple((each[0], each[1]) for each in value["throughput"]),
        readings=tuple(value["readings"]),
        wrong=value["wrong"],
        digest=value["digest"],
        compared=value["compared"],
        judged={
            "by": value["judged"],
            "batches": value["batches"],
            "share": _share_between(value["busy_s"], value["throughput"]),
        },
        sampled=value["sampled"],
    )
    shared: dict[str, Any] = {
        "suite": SUITE,
        "area": "sustained",
        "device": name if several or found.wrong else None,
        "evidence": (Evidence.EXECUTED,),
        "shape": found.shape,
        "duration_s": found.throughput[-1][0] if found.throughput else 0.0,
    }
    results = [_identity_result(found, shared)]
    if not found.wrong:
        results += [_throughput(found, shared), _drift(found, shared)]
    return replace(found, results=tuple(results))


def _share_between(busy_s: float, throughput: Sequence[Sequence[float]]) -> float | None:
    """The share of the load's time that was not timed; None without an interval."""
    return max(0.0, 1 - busy_s / throughput[-1][0]) if throughput else None


def _identity_result(found: SustainedLoad, shared: Mapping[str, Any]) -> Result:
    return Result(
        id="sustained/identical",
        verdict=Verdict.FAIL if found.wrong else Verdict.PASS,
        reason=found.wrong,
        value=1.0 if found.wrong else 0.0,
        unit="products",
        expected=exactly(0, "products that are wrong", "products"),
        extra={
            "compared": found.compared,
            "judged": found.judged,
            **(wrong_value(found.digest) if found.wrong else {}),
        },
        does_not_show="; ".join(
            each
            for each in (
                "units and memory that this product does not use",
                f"every element against exact values: {found.sampled}" if found.sampled else "",
            )
            if each
        ),
        **shared,
    )


def _throughput(found: SustainedLoad, shared: Mapping[str, Any]) -> Result:
    rates = [rate for _, rate in found.throughput]
    if not rates:
        reason = "no interval ended within the time: give it more seconds"
        return Result(
            id="sustained/gemm", verdict=Verdict.INCONCLUSIVE, reason=reason, unit=UNIT, **shared
        )
    throttled = found.throttle_events
    reason = f"throttled {throttled:g} times under load" if throttled else ""
    return Result(
        id="sustained/gemm",
        verdict=Verdict.UNVERIFIED,
        reason=reason,
        value=median(rates),
        unit=UNIT,
        statistic="median",
        n=len(rates),
        spread=mad(rates),
        does_not_show="" if found.readings else "clocks and temperatures: none are shown here",
        extra={
            "curves": [
                _curve("throughput", UNIT, "throughput", found.throughput),
                *telemetry_curves(found.readings),
            ]
        },
        **shared,
    )


def _drift(found: SustainedLoad, shared: Mapping[str, Any]) -> Result:
    drift = found.drift_percent
    if drift is None:
        few = f"{len(found.throughput)} intervals are too few for a drift; 3 are needed"
        return Result(
            id="sustained/drift", verdict=Verdict.SKIP, reason=few, **{**shared, "evidence": ()}
        )
    return Result(
        id="sustained/drift",
        verdict=Verdict.UNVERIFIED,
        value=drift,
        unit="%",
        n=len(found.throughput),
        does_not_show="how a longer load drifts",
        extra={"means": "mean throughput of the last third against the first third"},
        **shared,
    )


_UNITS: Final = {"mhz": "MHz", "c": "°C", "w": "W", "count": "1"}


def telemetry_curves(readings: Sequence[Mapping[str, float]]) -> list[dict[str, Any]]:
    """A curve of each reading over the time of the load, which is under "t_s" in seconds."""
    names = dict.fromkeys(name for reading in readings for name in reading if name != "t_s")
    curves = []
    for name in names:
        label, _, suffix = name.rpartition("_")
        points = [(each["t_s"], each[name]) for each in readings if name in each]
        curves.append(
            _curve(label.replace("_", " ") or name, _UNITS.get(suffix, "1"), name, points)
        )
    return curves


def _curve(
    label: str, unit: str, series: str, points: Sequence[tuple[float, float]]
) -> dict[str, Any]:
    return {
        "x": [x for x, _ in points],
        "y": [y for _, y in points],
        "x_label": "time",
        "y_label": label,
        "x_unit": "s",
        "y_unit": unit,
        "x_log": False,
        "series": series,
    }


def _broken_result(name: str, outcome: WorldOutcome) -> Result:
    culprit = outcome.culprit
    return Result(
        id=name,
        suite=SUITE,
        area=name.partition("/")[0],
        device=f"rank {culprit}" if culprit is not None else None,
        **broken_world(outcome, outcome.first_failure),
    )
