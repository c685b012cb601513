"""The gate memory: does memory hold what is written to it?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from portagpu.runs.results.advice import wrong_value
from portagpu.runs.results.run import Verdict
from portagpu.runs.results.wording import exactly

if TYPE_CHECKING:
    from collections.abc import Iterator

    from portagpu.checks.bringup.device import CheckedDevice
    from portagpu.checks.bringup.run import Context
    from portagpu.runs.results.run import Result

_SEED: Final = 20_260_101
_WORD_BYTES: Final = 8


def check(context: Context) -> Iterator[Result]:
    """The pattern test on every device, over the amount that the gate states."""
    yield from context.compared(
        [context.result("patterns", Verdict.INCONCLUSIVE, spent, device=device.name)]
        if (spent := context.time_is_up())
        else [_patterns(context, device)]
        for device in context.tested.devices
    )


def _patterns(context: Context, device: CheckedDevice) -> Result:
    amount = int(device.facts["free_bytes"] * context.amounts["fraction"])
    amount = min(amount, context.amounts.get("maximum_bytes", amount)) // _WORD_BYTES * _WORD_BYTES
    stated = f"{amount / 2**20:.0f} MiB of {device.facts['free_bytes'] / 2**20:.0f} MiB free"
    if amount < _WORD_BYTES:
        return context.result(
            "patterns",
            Verdict.INCONCLUSIVE,
            f"no free memory to test ({stated})",
            device=device.name,
        )
    outcome = context.tested.ranks.run(
        "portagpu.checks.bringup.device:pattern_test",
        arguments={"nbytes": amount, "seed": _SEED},
        backend=context.tested.backend,
        indices=[device.index],
        group=False,
        timeout_s=context.limit_s,
        on_step=lambda rank, name, data: context.step(f"{device.name}: {name} over {stated}"),
    )
    if not outcome.ok:
        return context.failure("patterns", outcome, device.name)
    report = outcome.values[0]
    wrong = {name: seen for name, seen in report["patterns"].items() if seen["wrong_words"]}
    reason = f"{stated} held {len(report['patterns'])} patterns"
    if wrong:
        name, seen = next(iter(wrong.items()))
        reason = (
            f"{seen['wrong_words']} of {amount // _WORD_BYTES} words do not hold the pattern "
            f"{name}, the first at byte {seen['first_offset']:#x} of the buffer"
        )
    return context.judge(
        "patterns",
        not wrong,
        reason,
        device=device.name,
        value=sum(seen["wrong_words"] for seen in wrong.values()),
        unit="1",
        expected=exactly(0, "words that do not hold their pattern"),
        duration_s=outcome.duration_s,
        does_not_show="memory outside the amount that was tested, and faults that come with heat",
        extra={
            "patterns": report["patterns"],
            "seed": _SEED,
            "bytes": report["bytes"],
            **(wrong_value(report["digest"]) if wrong else {}),
        },
    )
