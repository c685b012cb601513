"""The whole suite on one device: what is planned, what runs, what cannot be judged here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from portagpu.bench import suite
from portagpu.bench.cases import SUITE
from portagpu.bench.device import Device
from portagpu.bench.effort import Effort
from portagpu.bench.session import Session, not_run
from portagpu.contents import check_installation
from portagpu.host import read_host
from portagpu.results.expectations import exactly
from portagpu.results.run import Result
from portagpu.results.verdicts import Verdict
from portagpu.target import Target, load_target, load_targets
from portagpu.world import State

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from portagpu.bench.cases import Case
    from portagpu.world import Ranks

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
        value=str(outcome.blamed.state) if outcome.blamed is not None else None,
        expected=exactly(str(State.DONE), "the device opens"),
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
    on_device: Callable[[Device], None] | None = None,
    on_result: Callable[[Result], object] | None = None,
    on_case: Callable[[Case, int, int], None] | None = None,
    timeout_s: float | None = None,
    ended: Callable[[], str] = str,
) -> list[Result]:
    """Measure what ``names`` say and judge it; one result for each case, in order.

    ``names`` are areas ("gemm"), metrics ("memory/copy") or case ids; none is everything. ``index``
    is the device of measures of one device; ``world`` the number of ranks of collectives (by
    default every device, or two ranks where all share one). ``target`` is what is judged, by
    default what this device is; another target makes every case INCONCLUSIVE. ``timeout_s`` is the
    hard limit of each case; from where ``ended()`` answers with a reason, no further case is begun,
    and is INCONCLUSIVE for it. ``device`` saves looking again at what ``open_device`` gave.

    ``on_device`` is called with the device, and ``on_case(case, number, of)`` before each case that
    runs. Raises UnknownMeasure, TargetNotFound, and MissingDependency where there is no torch.
    """
    check_installation()
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
            add(not_run(case, "the device cannot be opened", blocked_by=OPENED))
        return results
    if on_device is not None:
        on_device(opened)
    if wanted is not None and opened.target != wanted.id:
        described = Device.of_target(wanted)
        here = f"this machine's device is {_who(opened)}, not {wanted.id}"
        for case in suite.plan(names, described, effort, world or 2, wanted):
            add(_elsewhere(case, here))
        return results
    judged = wanted or load_targets().get(opened.target or "")
    size = world or default_world(opened)
    cases = suite.plan(names, opened, effort, size, judged)
    session = Session(ranks, opened, effort, judged, timeout_s, read_host().busy)
    for number, case in enumerate(cases, 1):
        if case.absent is None and (reason := ended()):
            add(not_run(case, reason))
            continue
        if on_case is not None and case.absent is None:
            on_case(case, number, len(cases))
        add(session.result(case))
    return results


def default_world(device: Device) -> int:
    """The ranks of collectives: every device, or two where all ranks share one."""
    return 2 if device.shared else device.count


def _who(device: Device) -> str:
    target = f"target {device.target}" if device.target else "no target"
    return f"{device.product or device.arch or device.name} ({target})"


def _elsewhere(case: Case, here: str) -> Result:
    absent = case.absent
    if absent is not None and absent.verdict is Verdict.SKIP:
        return not_run(case, absent.reason, verdict=Verdict.SKIP)
    return not_run(case, here)


def _ignore(result: Result) -> None:
    del result
