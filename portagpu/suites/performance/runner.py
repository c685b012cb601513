"""Runs the performance suite on one device, and adds each measure's share of the run's ceiling.

The ceiling of arithmetic, of training steps too, is the fastest product of the same dtype, that of
memory the fastest of STREAM's four operations, both in this run. Arrays that a cache may hold
neither set that of memory nor have a share of it: a cache is faster. Where a datasheet states no
peak, as for CPUs, they are the only ceilings there are.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.installation import check_installation
from portagpu.base.patience import LIMITS
from portagpu.facts.host import read_host
from portagpu.facts.targets import load_targets
from portagpu.runs.engine import Progress, RunOptions, add_result, check_device, complete
from portagpu.runs.results.run import Result
from portagpu.runs.results.verdicts import FAILING, Verdict
from portagpu.runs.results.wording import exactly
from portagpu.runs.world import Ranks, RankState
from portagpu.suites.performance import cases
from portagpu.suites.performance.case_runner import BenchContext, not_run
from portagpu.suites.performance.cases import SCALES, SUITE, beyond_cache
from portagpu.suites.performance.device import MeasuredDevice
from portagpu.suites.performance.timing import Effort

if TYPE_CHECKING:
    from collections.abc import Sequence

    from portagpu.runs.results.run import Run
    from portagpu.suites.performance.cases import BenchCase


_STREAM: Final = frozenset(f"memory/{name}" for name in ("copy", "scale", "add", "triad"))

_NO_SHARE: Final = (
    "no share of the memory's bandwidth is given, because a cache may hold the arrays"
)
OPEN_ID: Final = "device/open"
"""The id of the result that blocks all others if the device cannot be opened."""
QUICK_S: Final = 160.0
"""After this long a quick run of everything begins no further measure, so that it ends within three
minutes on a slow or busy machine too."""


def with_shares(results: Sequence[Result], device: MeasuredDevice) -> list[Result]:
    """``results`` with ``extra.ceiling`` and ``extra.of_ceiling`` where the run has a ceiling.

    Where arrays are not beyond the caches of ``device``, ``extra.beyond_cache`` is False instead.
    """
    results = [_if_cached(each, device) for each in results]
    highest: dict[str, Result] = {}
    for result in results:
        kind = _ceiling_of(result)
        sets = result.id in _STREAM or str(result.extra.get("metric")) == kind
        if kind and sets and _number(result) > _number(highest.get(kind)):
            highest[kind] = result
    return [_with_share(each, highest.get(_ceiling_of(each))) for each in results]


def _if_cached(result: Result, device: MeasuredDevice) -> Result:
    """``result``, which says so where it would have a share and a cache may hold its arrays."""
    if _ceiling_of(result) != "memory" or not isinstance(result.shape, Mapping):
        return result
    if beyond_cache(device, int(result.shape["array_bytes"])):
        return result
    limits = "; ".join(each for each in (result.does_not_show, _NO_SHARE) if each)
    return replace(result, does_not_show=limits, extra={**result.extra, "beyond_cache": False})


def _ceiling_of(result: Result) -> str:
    """The kind of ceiling that ``result`` is below: "gemm/bf16", "memory"; empty for none."""
    if result.failed or not isinstance(result.value, int | float):
        return ""
    metric = str(result.extra.get("metric", ""))
    if metric.startswith("gemm/"):
        return metric
    if metric == "training/step" and isinstance(result.shape, Mapping):
        return f"gemm/{result.shape['dtype']}"
    moves = metric.startswith(("memory/", "operators/")) and result.unit == "GB/s"
    return "memory" if moves and result.extra.get("beyond_cache", True) else ""


def _with_share(result: Result, highest: Result | None) -> Result:
    if highest is None or result.verdict in FAILING:
        return result
    ceiling: dict[str, Any] = {
        "id": highest.id,
        "value": _number(highest),
        "unit": highest.unit,
        "source": "measured in this run",
    }
    reached = _number(result)
    if "flops_per_s" in result.extra:
        reached = result.extra["flops_per_s"] / SCALES["TFLOPS"]
    share = reached / ceiling["value"]
    return replace(result, extra={**result.extra, "ceiling": ceiling, "of_ceiling": share})


def _number(result: Result | None) -> float:
    return result.value if result is not None and isinstance(result.value, int | float) else 0.0


def open_device(
    ranks: Ranks,
    backend: str | None = None,
    index: int = 0,
    timeout_s: float = LIMITS.device_s,
) -> MeasuredDevice | Result:
    """The device's description, read in a rank, or a failed result if it cannot be opened.

    :param ranks: starts the rank.
    :param backend: a backend's name; None is the default one.
    :param index: the number of the device among the visible ones.
    :param timeout_s: seconds until it must be open.
    """
    outcome = ranks.run(
        "portagpu.suites.performance.device:describe",
        backend=backend,
        indices=[index],
        group=False,
        timeout_s=timeout_s,
    )
    if outcome.ok:
        return MeasuredDevice.from_json(outcome.values[0])
    return Result(
        id=OPEN_ID,
        suite=SUITE,
        area="device",
        verdict=Verdict.ERROR,
        reason=f"the device cannot be opened: {outcome.sentence}",
        device=f"{backend or 'device'} {index}",
        value=str(outcome.first_failure.state) if outcome.first_failure is not None else None,
        expected=exactly(str(RankState.DONE), "the device opens"),
        duration_s=outcome.duration_s,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions(RunOptions):
    """The options of a run of the performance suite.

    :param target: What is judged, by default this device's target; another one makes every case
        INCONCLUSIVE.
    :param names: Areas ("gemm"), metrics ("memory/copy") or case ids; without any, all run.
    :param backend: The backend's name, by default the one for this machine.
    :param index: The device of measures on one device.
    :param world: The number of ranks of collectives, by default one for each device, or two if all
        share one.
    :param effort: How long each case measures.
    :param timeout_s: The limit of each case in seconds, whatever it does; by default it may take
        longer while it goes on.
    :param seed: The seed of the order of cases, by default a new one for each run: what one case
        leaves does not always meet the same next one. Every result that ran has the seed and its
        place in ``extra.order``.
    :param further: Whether to run the cases that a bring-up does not need.
    """

    names: Sequence[str] = ()
    backend: str | None = None
    index: int = 0
    world: int | None = None
    effort: Effort = Effort.QUICK
    timeout_s: float | None = None
    seed: int | None = None
    further: bool = True


def run(options: BenchOptions, progress: Progress | None = None) -> Run:
    """Run the selected measures, judge them, and return the finished run.

    On Ctrl-C the returned run is marked as interrupted.

    :param options: the device and the measures.
    :param progress: reports results as they come.
    :raises UnknownMeasure: for a name that no measure has.
    :raises TargetNotFound: where no target has the wanted id.
    :raises UnknownDevice: for a device that the backend does not have.
    :raises MissingDependency: without torch.
    """
    progress = progress or Progress()
    options.load_target()
    cases.selected_areas(options.names)
    check_device(options.backend, options.index)

    def work(run: Run) -> None:
        with Ranks() as ranks:
            measure(run, options, ranks, progress)

    return complete(options.new_run(), progress, work)


def measure(run: Run, options: BenchOptions, ranks: Ranks, progress: Progress) -> None:
    """Add one result for each case to a run, in order.

    Once ``progress.stop_reason()`` gives a reason, no further case begins; those left are
    INCONCLUSIVE with that reason.

    :param run: gets the results, and the description of the device.
    :param options: the device and the measures.
    :param ranks: runs the measures.
    :param progress: reports results as they come.
    :raises UnknownMeasure: for a name that no measure has.
    :raises TargetNotFound: where no target has the wanted id.
    :raises MissingDependency: without torch.
    """
    check_installation()
    names, effort = options.names, options.effort
    cases.selected_areas(names)
    wanted = options.load_target()
    opened = open_device(ranks, options.backend, options.index)
    if isinstance(opened, Result):
        add_result(run, progress, opened)
        stand_in = MeasuredDevice(backend=options.backend or "", name="")
        for case in cases.plan(names, stand_in, effort, options.world or 2, wanted):
            blocked = not_run(case, "the device cannot be opened", blocked_by=OPEN_ID)
            add_result(run, progress, blocked)
        return
    opened.describe_in(run, opened.target, "arch")
    progress.opened(opened)
    if wanted is not None and opened.target != wanted.id:
        described = MeasuredDevice.from_target(wanted)
        here = f"this machine's device is {_device_and_target(opened)}, not {wanted.id}"
        for case in cases.plan(names, described, effort, options.world or 2, wanted):
            add_result(run, progress, _other_target_result(case, here))
        return
    judged = wanted or load_targets().get(opened.target or "")
    size = options.world or default_world(opened)
    planned = [
        case
        for case in cases.plan(names, opened, effort, size, judged)
        if options.further or not case.further
    ]
    session = BenchContext(ranks, opened, effort, judged, options.timeout_s, read_host().busy)
    seed = _new_seed() if options.seed is None else options.seed
    budget = _Budget(QUICK_S if effort is Effort.QUICK and not names else math.inf)
    try:
        for number, case in enumerate(shuffled(planned, seed), 1):
            if case.absent is None and (reason := progress.stop_reason() or budget.spent()):
                add_result(run, progress, not_run(case, reason))
                continue
            if case.absent is None:
                progress.item_begins(case.id, number, len(planned))
            found = session.result(case)
            order = {"seed": seed, "place": number}
            add_result(run, progress, replace(found, extra={**found.extra, "order": order}))
    finally:
        _put_in_order(run, planned, opened)


class _Budget:
    """How long measures may still begin."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._started_s = time.monotonic()

    def spent(self) -> str:
        """Why no further one begins; empty while there is time."""
        if time.monotonic() - self._started_s < self._seconds:
            return ""
        return (
            f"not run: the {self._seconds:.0f} s of a quick run are over; name it with --only, or "
            "use --level full"
        )


def shuffled(cases: Sequence[BenchCase], seed: int) -> list[BenchCase]:
    """``cases`` in the order of ``seed``: those that run, and after them those that do not."""
    order = sorted(cases, key=lambda case: case.id)
    random.Random(seed).shuffle(order)  # noqa: S311 - an order, not a secret
    return sorted(order, key=lambda case: case.absent is not None)


def _new_seed() -> int:
    return random.SystemRandom().randrange(2**31)


def _put_in_order(run: Run, cases: Sequence[BenchCase], device: MeasuredDevice) -> None:
    """List the results as they were planned, whatever order they ran in, with their shares."""
    places = {case.id: place for place, case in enumerate(cases)}
    run.results.sort(key=lambda result: places.get(result.id, -1))
    run.results[:] = with_shares(run.results, device)


def default_world(device: MeasuredDevice) -> int:
    """The number of ranks of collectives: every device, or two if all ranks share one."""
    return 2 if device.shared else device.count


def _device_and_target(device: MeasuredDevice) -> str:
    target = f"target {device.target}" if device.target else "no target"
    return f"{device.product or device.arch or device.name} ({target})"


def _other_target_result(case: BenchCase, here: str) -> Result:
    absent = case.absent
    if absent is not None and absent.verdict is Verdict.SKIP:
        return not_run(case, absent.reason, verdict=Verdict.SKIP)
    return not_run(case, here)
