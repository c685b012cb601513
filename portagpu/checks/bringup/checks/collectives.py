"""The gate collectives: are they exact on every rank, how fast are they, is a rank an outlier?"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from portagpu.checks.bringup.checks.transfers import adopted_results, measure
from portagpu.runs.results.run import Verdict
from portagpu.suites import performance as bench

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from portagpu.checks.bringup.run import Context
    from portagpu.runs.results.run import Result

_COMPARISONS: Final = 3


def check(context: Context) -> Iterator[Result]:
    """Checked collectives with their bus bandwidth, then the same work on each rank in turn."""
    if "collectives" not in (context.tested.devices[0].facts["capabilities"] or ()):
        yield context.result(
            "world", Verdict.SKIP, f"the {context.tested.backend} backend claims no collectives"
        )
        return
    world = (
        context.amounts["shared_world"] if context.tested.shared else len(context.tested.devices)
    )
    if world < 2:
        yield context.result(
            "world", Verdict.SKIP, "one device: there is nothing to communicate with"
        )
        return
    if spent := context.time_is_up():
        yield context.result("world", Verdict.INCONCLUSIVE, spent)
        return
    found = measure(context, ["collectives"], world=world)
    yield from adopted_results(context, found, None)
    if spent := context.time_is_up():
        yield context.result("ranks", Verdict.INCONCLUSIVE, spent)
        return

    def compare() -> bench.Comparison:
        context.step(f"each of {world} ranks in turn")
        return bench.compare_ranks(
            context.tested.ranks,
            backend=context.tested.backend,
            world=world,
            effort=bench.Effort(context.effort),
        )

    for result in confirmed_results(compare):
        yield context.adopt(result)


def confirmed_results(compare: Callable[[], bench.Comparison]) -> Sequence[Result]:
    """The results of a comparison; a rank is an outlier only if every comparison says so.

    A momentary disturbance makes a rank slow once; a faulty device stays slow. After a wrong value
    or a dead rank nothing is measured again.
    """
    compared = compare()
    suspects = outliers = {outlier.name for outlier in compared.peers.outliers}
    for _ in range(_COMPARISONS - 1):
        if not suspects or any(r.failed and r.device not in outliers for r in compared.results):
            break
        compared = compare()
        outliers = {outlier.name for outlier in compared.peers.outliers}
        suspects = suspects & outliers
    return [
        replace(result, verdict=Verdict.PASS, reason=f"{result.reason}, but not every time")
        if result.device in outliers - suspects
        else result
        for result in compared.results
    ]
