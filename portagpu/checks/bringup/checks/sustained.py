"""The gate sustained: are results the same under load, and how do clocks and throughput change?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from portagpu.checks.bringup.checks.transfers import measure_devices
from portagpu.runs.results.run import Verdict
from portagpu.suites import performance as bench

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from portagpu.checks.bringup.run import Context
    from portagpu.runs.results.run import Result


def check(context: Context) -> Iterator[Result]:
    """Matrix products per dtype, then all devices under load at once for the stated seconds."""
    yield from measure_devices(context, ["gemm"])
    if spent := context.time_is_up():
        yield context.result("sustained", Verdict.INCONCLUSIVE, spent)
        return
    amounts = context.amounts
    seconds = amounts["seconds"]
    if context.tested.shared:
        seconds = amounts.get("shared_seconds", seconds)

    def show(position: int, interval: Mapping[str, Any]) -> None:
        context.step(
            f"{context.tested.devices[position].name}: {interval['tflops']:.2f} TFLOPS after "
            f"{interval['t_s']:.0f} of {seconds} s"
        )

    for each in bench.sustain_load(
        context.tested.ranks,
        seconds,
        backend=context.tested.backend,
        indices=[device.index for device in context.tested.devices],
        on_interval=show,
    ):
        for result in each.results:
            yield context.adopt(result)
