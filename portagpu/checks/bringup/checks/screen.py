"""The gate screen: do devices compute wrong results without an error?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from portagpu.runs.results.run import Verdict
from portagpu.suites import screen

if TYPE_CHECKING:
    from collections.abc import Iterator

    from portagpu.checks.bringup.run import Context
    from portagpu.runs.results.run import Result


def check(context: Context) -> Iterator[Result]:
    """Every probe on all devices at once, for the stated seconds or number of batches."""
    if spent := context.time_is_up():
        yield context.result("screen", Verdict.INCONCLUSIVE, spent)
        return
    tested, amounts = context.tested, context.amounts
    counted = tested.shared and "shared_batches" in amounts
    options = screen.ScreenOptions(
        backend=tested.backend,
        indices=[device.index for device in tested.devices],
        seconds=amounts["shared_s" if tested.shared and not counted else "screen_s"],
        batches=amounts["shared_batches"] if counted else None,
        runs=amounts["shared_runs"] if counted else screen.RUNS,
        # idle threads wait in a loop: what that costs depends on the cores and on other work
        threads=1 if counted else None,
        # the gate health-after reads what the machine counts
        count_errors=False,
    )
    run = options.new_run()
    screen.add_results(run, options, tested.ranks, _Steps(context))
    for result in run.results:
        yield context.adopt(result)


class _Steps(screen.ScreenProgress):
    """Reports which probe runs."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def item_begins(self, name: str, number: int, total: int) -> None:
        self._context.step(f"{name} ({number} of {total} probes have run)")
