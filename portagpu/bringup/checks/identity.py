"""Are the devices there that should be, and are they what they should be?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from portagpu.bringup.context import Device
from portagpu.results import Verdict
from portagpu.target import load_targets

if TYPE_CHECKING:
    from collections.abc import Iterator

    from portagpu.bringup.context import Context
    from portagpu.results import Result

_DESCRIBE = "portagpu.bringup.device:describe"


def check(context: Context) -> Iterator[Result]:
    """Open every device in a rank of its own; count, compare, and match with the target."""
    count = 1
    index = 0
    while index < count:
        context.step(f"device {index}")
        outcome = context.ranks.run(
            _DESCRIBE,
            backend=context.backend,
            indices=[index],
            group=False,
            timeout_s=context.left_s,
        )
        if not outcome.ok:
            yield context.failure("device", outcome, f"{context.backend} device {index}")
        else:
            facts = outcome.values[0]
            count = facts["count"]
            device = Device(index, facts["device"], facts)
            context.devices.append(device)
            yield _device(context, device)
        index += 1
    yield _count(context, count)
    if context.devices:
        yield from _target(context)
    if len(context.devices) > 1:
        yield _alike(context)


def _device(context: Context, device: Device) -> Result:
    facts = device.facts
    known = facts["product"] is not None
    size = f"{facts['memory_bytes'] / 2**30:.1f} GiB"
    text = f"{facts['product'] or 'unknown product'} ({facts['arch']}), {size}"
    verdict = Verdict.PASS if known else Verdict.UNVERIFIED
    return context.result("device", verdict, text, device=device.name, extra={"facts": facts})


def _count(context: Context, count: int) -> Result:
    expected = context.expect_devices
    found = len(context.devices)
    if expected is None:
        return context.judge(
            "count",
            found == count,
            f"{found} of {count} visible devices opened",
            value=found,
            unit="1",
        )
    return context.judge(
        "count",
        found == expected,
        f"{found} devices opened, {expected} expected",
        value=found,
        unit="1",
    )


def _target(context: Context) -> Iterator[Result]:
    found = context.devices[0].facts["target"]
    wanted = context.wanted
    if wanted is not None:
        is_wanted = found == wanted.id
        seen = f"this machine is {found or 'no known target'}"
        reason = seen if is_wanted else f"{seen}, not {wanted.id}"
        culprit = None if is_wanted else context.devices[0].name
        yield context.judge("target", is_wanted, reason, device=culprit)
    elif found is None:
        product = context.devices[0].facts["product"] or "this device"
        yield context.result(
            "target",
            Verdict.UNVERIFIED,
            f"{product} is no known target, so its facts cannot be compared; docs/targets.md says "
            "how to add it",
        )
    else:
        context.target = load_targets().get(found)
        scope = context.devices[0].facts["target_scope"]
        note = " (facts of the family only)" if scope == "family" else ""
        yield context.judge("target", True, f"this machine is {found}{note}")
    if context.target is not None:
        for device in context.devices:
            yield from _facts(context, device)


def _facts(context: Context, device: Device) -> Iterator[Result]:
    """What the device reports against what its target states."""
    target = context.target
    if target is None:
        return
    stated: list[tuple[str, Any, Any]] = [
        ("arch", device.facts["arch"], target.arch.name),
        ("warp-size", device.facts["warp_size"], target.arch.warp_size),
    ]
    units = target.value("exec.unit_count")
    if units is not None:
        stated.append(("unit-count", device.facts["unit_count"], units))
    for name, reported, expected in stated:
        reason = f"{target.id} states {expected}, the device reports {reported}"
        yield context.judge(name, reported == expected, reason, device=device.name)


def _alike(context: Context) -> Result:
    """Devices of one node are the same product; the odd one out is the culprit."""
    kinds = [
        (d.facts["product"], d.facts["arch"], d.facts["memory_bytes"]) for d in context.devices
    ]
    usual = max(set(kinds), key=kinds.count)
    odd = [d for d, kind in zip(context.devices, kinds, strict=True) if kind != usual]
    if not odd:
        return context.judge("alike", True, f"{len(kinds)} devices of one kind")
    seen = f"{odd[0].facts['product']} with {odd[0].facts['memory_bytes'] / 2**30:.1f} GiB"
    reason = f"{odd[0].name} is {seen}, unlike its {len(kinds) - len(odd)} peers"
    return context.judge("alike", False, reason, device=odd[0].name)
