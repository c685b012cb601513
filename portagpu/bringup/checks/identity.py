"""Are the devices there that should be, and are they what they should be?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from portagpu.bringup.context import Device
from portagpu.bringup.reported import Subject, compare
from portagpu.results import Verdict
from portagpu.target import identify, load_targets

if TYPE_CHECKING:
    from collections.abc import Iterator

    from portagpu.bringup.context import Context
    from portagpu.results import Result
    from portagpu.target import Target

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
    device = context.devices[0]
    found = device.facts["target"]
    part = device.facts["part"]
    wanted = context.wanted
    if part is not None:
        yield _part(context, device)
    elif wanted is not None:
        is_wanted = found == wanted.id
        seen = f"this machine is {found or 'no known target'}"
        reason = seen if is_wanted else f"{seen}, not {wanted.id}"
        culprit = None if is_wanted else device.name
        yield context.judge("target", is_wanted, reason, device=culprit)
    elif found is None:
        product = device.facts["product"] or "this device"
        yield context.result(
            "target",
            Verdict.UNVERIFIED,
            f"{product} is no known target, so its facts cannot be compared; docs/targets.md says "
            "how to add it",
        )
    else:
        context.target = load_targets().get(found)
        scope = device.facts["target_scope"]
        note = " (facts of the family only)" if scope == "family" else ""
        yield context.judge("target", True, f"this machine is {found}{note}")
    for each in context.devices:
        whole = _whole(each)
        target = (whole or context.target) if part is not None else (context.target or whole)
        if target is not None:
            yield from _facts(context, each, target)


def _whole(device: Device) -> Target | None:
    """The target of the GPU that the device is, or is a part of."""
    facts, part = device.facts, device.facts["part"]
    product, share = facts["product"], 1
    if part is not None:
        product, share = part["product"], part["of"]
    sizes = (facts["memory_bytes"] * share, facts["unit_count"] * share) if share else (None, None)
    return identify(facts["arch_vendor"], facts["arch"], product, *sizes)


def _part(context: Context, device: Device) -> Result:
    """A part of a GPU is a part of the wanted product, or no product of its own."""
    whole, wanted, name = _whole(device), context.wanted, device.facts["part"]["name"]
    product = whole.id if whole is not None else "a GPU that is no known target"
    reason = f"{device.name} is the part {name} of {product}"
    if wanted is None:
        return context.result(
            "target", Verdict.UNVERIFIED, f"{reason}: what is expected of a GPU is not of its parts"
        )
    if whole is not wanted:
        return context.judge("target", False, f"{reason}, not of {wanted.id}", device=device.name)
    return context.judge("target", True, reason)


def _facts(context: Context, device: Device, target: Target) -> Iterator[Result]:
    """What the device reports against what its target states."""
    facts, part = device.facts, device.facts["part"]
    for name, reported, stated in (
        ("arch", facts["arch"], target.arch.name),
        ("warp-size", facts["warp_size"], target.arch.warp_size),
    ):
        reason = f"{target.id} states {stated}, the device reports {reported}"
        yield context.judge(name, reported == stated, reason, device=device.name)
    missing = sorted(set(target.claims) - set(facts["capabilities"]))
    reason = f"{target.id} claims {', '.join(target.claims) or 'no capability'}"
    if missing:
        reason = f"{reason}; the backend does not claim {' and '.join(missing)}"
    verdict = Verdict.INCONCLUSIVE if missing else Verdict.PASS
    yield context.result("capabilities", verdict, reason, device=device.name)
    subject = Subject(
        facts["reported"],
        target,
        part["name"] if part is not None else None,
        part["of"] if part is not None else 1,
    )
    for finding in compare(subject):
        yield context.result(finding.name, finding.verdict, finding.reason, device=device.name)


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
