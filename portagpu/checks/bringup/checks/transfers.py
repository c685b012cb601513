"""The gate transfers, and what gates share that measure devices and look for outliers among them.

Do copies arrive, and how fast are memory and launches?
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from portagpu.runs.engine import Progress
from portagpu.runs.judges.peers import MIN_PEERS, peer_expectation
from portagpu.runs.results.run import Verdict
from portagpu.runs.results.wording import exactly
from portagpu.suites import performance as bench

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from portagpu.checks.bringup.device import CheckedDevice
    from portagpu.checks.bringup.run import Context
    from portagpu.runs.results.run import Result


def check(context: Context) -> Iterator[Result]:
    """The gate's measures on every device; values are checked before a time is kept."""
    yield from measure_devices(context, context.amounts["measures"])


def measure_devices(context: Context, names: Sequence[str]) -> Iterator[Result]:
    """The measures ``names`` on every device as this gate's results, and the peer outliers.

    A wrong value is a FAIL of its measure; the result "values" says that there was none.
    """
    by_device: dict[str, list[Result]] = {}

    def of(device: CheckedDevice) -> Iterator[Result]:
        if spent := context.time_is_up():
            yield context.result("measures", Verdict.INCONCLUSIVE, spent, device=device.name)
            return
        found = by_device[device.name] = measure(context, names, device)
        yield from adopted_results(
            context, found, device.name if len(context.tested.devices) > 1 else None
        )

    yield from context.compared(map(of, context.tested.devices))
    yield from peer_outliers(context, by_device)


def measure(
    context: Context,
    names: Sequence[str],
    device: CheckedDevice | None = None,
    world: int | None = None,
) -> list[Result]:
    """The results of the measures ``names``, on ``device`` or over ``world`` ranks."""
    options = bench.BenchOptions(
        names=names,
        backend=context.tested.backend,
        index=0 if device is None else device.index,
        world=world,
        effort=bench.Effort(context.effort),
        target=context.tested.wanted,
        further=False,
    )
    run = options.new_run()
    bench.measure(run, options, context.tested.ranks, _Steps(context, device))
    return [_as_a_gate_asks(result) for result in run.results]


def _as_a_gate_asks(result: Result) -> Result:
    """A gate asks for right values: a noisy time that nothing would judge stays UNVERIFIED."""
    noisy = result.verdict is Verdict.INCONCLUSIVE and result.value is not None
    return replace(result, verdict=Verdict.UNVERIFIED) if noisy and not result.expected else result


class _Steps(Progress):
    """Reports which measure begins, and stops when the gate's time is up."""

    def __init__(self, context: Context, device: CheckedDevice | None) -> None:
        self._context = context
        self._prefix = "" if device is None else f"{device.name}: "

    def item_begins(self, name: str, number: int, total: int) -> None:
        self._context.step(f"{self._prefix}{name} ({number} of {total})")

    def stop_reason(self) -> str:
        return self._context.time_is_up()


def adopted_results(
    context: Context, found: Sequence[Result], device: str | None
) -> Iterator[Result]:
    """The results as this gate's; ``device`` is added to those that name none."""
    for result in found:
        named = result if result.device or device is None else replace(result, device=device)
        yield context.adopt(named)
    kept = [result for result in found if result.value is not None and not result.failed]
    if kept:
        yield context.judge(
            "values",
            True,
            f"the values of {len(kept)} measures were checked before a time was kept",
            device=device,
            value=0,
            unit="1",
            expected=exactly(0, "values that are wrong"),
            does_not_show="values at other sizes and dtypes",
        )


def peer_outliers(context: Context, by_device: Mapping[str, Sequence[Result]]) -> Iterator[Result]:
    """The outliers from the median of all devices, one result per measure; from four devices on."""
    if len(by_device) < MIN_PEERS:
        return
    values: dict[tuple[str, str], dict[str, float]] = {}
    for device, found in by_device.items():
        for result in found:
            if isinstance(result.value, int | float):
                values.setdefault((result.id, result.unit or "1"), {})[device] = result.value
    for (name, unit), of_devices in values.items():
        compared = bench.compare_peers(of_devices)
        verdict = Verdict.PASS if compared.judged else Verdict.UNVERIFIED
        if compared.outliers:
            verdict = Verdict.FAIL
        yield context.result(
            f"peers/{name}",
            verdict,
            compared.sentence or f"{len(of_devices)} devices agree",
            device=compared.outliers[0].name if compared.outliers else None,
            value=compared.outliers[0].value if compared.outliers else None,
            unit=unit,
            expected=peer_expectation(compared, unit),
            extra={"values": of_devices, "median": compared.median, "mad": compared.mad},
        )
