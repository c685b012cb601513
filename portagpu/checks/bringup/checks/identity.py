"""The gate identity: are all devices there, and are they the expected ones?"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from portagpu.base.errors import BackendNotFound
from portagpu.base.text import is_twice_in_itself
from portagpu.checks.bringup.device import (
    CheckedDevice,
    device_names,
    equal_parts,
    recorded_devices,
)
from portagpu.checks.bringup.device_properties import Subject, compare
from portagpu.devices import registry
from portagpu.facts.arch import base_name
from portagpu.facts.formats.host.kernel_log import KIND as KERNEL_LOG
from portagpu.facts.host.gpus import NODES, PCI_DEVICES
from portagpu.facts.targets import Scope, identify, load_targets, named_product
from portagpu.machine.inventory.gpu import falls_short, product_target
from portagpu.runs.judges.peers import majority
from portagpu.runs.results.run import Verdict
from portagpu.runs.results.wording import exactly

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from portagpu.checks.bringup.device import DeviceFacts
    from portagpu.checks.bringup.run import Context
    from portagpu.facts.targets import Target
    from portagpu.machine.inventory.gpu import Gpu, Inventory, Unlisted
    from portagpu.runs.results.run import Result

_DESCRIBE = "portagpu.checks.bringup.device:describe"


def check(context: Context) -> Iterator[Result]:
    """Open every device in its own rank; count them, compare them, match them with the target."""
    try:
        count = context.tested.device_count = registry.count(context.tested.backend or "")
    except BackendNotFound as error:
        yield context.judge(
            "device",
            False,
            str(error),
            device=context.tested.backend,
            value="not usable",
            expected=exactly("usable", "a backend whose torch sees devices"),
        )
        return
    for index in range(count):
        if spent := context.time_is_up():
            name = f"{context.tested.backend} device {index}"
            yield context.result("device", Verdict.INCONCLUSIVE, spent, device=name)
            break
        context.step(f"device {index}")
        outcome = context.tested.ranks.run(
            _DESCRIBE,
            backend=context.tested.backend,
            indices=[index],
            group=False,
            timeout_s=context.limit_s,
        )
        if not outcome.ok:
            yield context.failure("device", outcome, f"{context.tested.backend} device {index}")
        else:
            facts = outcome.values[0]
            device = CheckedDevice(index, facts["device"], facts)
            context.tested.devices.append(device)
            yield _device(context, device)
    else:
        yield _count(context, count)
    if context.tested.devices:
        yield from _target(context)
    if len(context.tested.devices) > 1:
        yield _same_kind(context)


def replay(context: Context) -> Iterator[Result]:
    """The same for devices that files show, with their parts and contradictions of sources."""
    inventory = context.tested.machine.inventory()
    context.tested.devices.extend(recorded_devices(context.tested.machine, inventory))
    for device in context.tested.devices:
        yield _device(context, device)
    yield _recorded_count(context, inventory)
    yield from _unlisted(context, inventory)
    for name, gpu in zip(device_names(inventory.gpus), inventory.gpus, strict=True):
        if gpu.disagreements:
            reason = f"sources contradict each other: {'; '.join(gpu.disagreements)}"
            yield context.result("sources", Verdict.INCONCLUSIVE, reason, device=name)
        if gpu.parts:
            yield _parts(context, name, gpu)
    if context.tested.devices:
        yield from _target(context)
    elif context.tested.wanted is not None:
        reason = f"no device is recorded, which has to be {context.tested.wanted.id}"
        yield context.result("target", Verdict.INCONCLUSIVE, reason)
    if len(context.tested.devices) > 1:
        yield _same_kind(context)


def _device(context: Context, device: CheckedDevice) -> Result:
    facts = device.facts
    known = facts["product"] is not None
    verdict = Verdict.PASS if known else Verdict.UNVERIFIED
    text = _description(facts)
    return context.result("device", verdict, text, device=device.name, extra={"facts": facts})


def _description(facts: DeviceFacts) -> str:
    """A device in words: "NVIDIA H200 (sm_90), 139.8 GiB"."""
    arch = f" ({facts['arch']})" if facts["arch"] is not None else ""
    memory = facts["memory_bytes"]
    size = "unknown memory" if memory is None else f"{memory / 2**30:.1f} GiB"
    part = f", part {facts['part']['name']}" if facts["part"] is not None else ""
    return f"{facts['product'] or 'unknown product'}{arch}, {size}{part}"


def _count(context: Context, count: int) -> Result:
    expected = context.tested.expect_devices
    found = len(context.tested.devices)
    if expected is None:
        return context.judge(
            "count",
            found == count,
            f"{found} of {count} visible devices opened",
            value=found,
            unit="1",
            expected=exactly(count, "devices that torch sees"),
        )
    return context.judge(
        "count",
        found == expected,
        f"{found} devices opened, {expected} expected",
        value=found,
        unit="1",
        expected=exactly(expected, "--expect-devices"),
    )


def _recorded_count(context: Context, inventory: Inventory) -> Result:
    """The number of recorded devices; a log names only those with an event."""
    logged = [
        name
        for name, gpu in zip(device_names(inventory.gpus), inventory.gpus, strict=True)
        if set(gpu.sources) <= {KERNEL_LOG}
    ]
    excused = [each for each in inventory.unlisted if each.excuse]
    doubted = [each for each in inventory.unlisted if each.doubt]
    lost = [each for each in inventory.unlisted if not (each.doubt or each.excuse)]
    lost_names = {_name(inventory, each) for each in lost}
    logged = [name for name in logged if name not in lost_names]
    gpus, expected = len(inventory.gpus) - len(logged), context.tested.expect_devices
    found = sum(device.name not in logged for device in context.tested.devices)
    found -= inventory.unpaired
    wanted = context.tested.wanted
    if not inventory.gpus and expected is not None and (wanted is None or wanted.vendor != "cpu"):
        found = 0  # the CPU stands for no GPU that is missing
    seen = "recorded" if context.tested.origins else "shown by files"
    words = f"{found - len(excused)} device(s) {seen}"
    if any(device.facts["part"] is not None for device in context.tested.devices):
        words = f"{words}, some of them parts of {gpus} GPU(s)"
    listed = gpus or any(context.tested.machine.tree.exists(path) for path in (PCI_DEVICES, NODES))
    absent = sum(each.count for each in lost)
    gone = f", of which the driver does not list {absent}" if absent else ""
    if excused:
        gone += f", and {len(excused)} more of no use here: {excused[0].excuse}"
    found -= absent + len(excused)
    if doubted and not absent:
        who = _name(inventory, doubted[0]) or f"{doubted[0].count} GPU(s)"
        reason = f"{words}, and the driver's list does not have {who}: {doubted[0].doubt}"
        return context.result("count", Verdict.INCONCLUSIVE, reason)
    if (doubt := inventory.in_doubt) is not None and not absent:
        return context.result("count", Verdict.INCONCLUSIVE, f"{words}; {doubt.pci}: {doubt.code}")
    if inventory.breaks_off:
        reason = f"a list of devices breaks off: {words}, and there may be more"
        return context.result("count", Verdict.INCONCLUSIVE, reason)
    if logged or not listed:
        why = "no list of devices is there"
        if listed:
            why = f"a log names {logged[0]}, which no list of devices has"
        return context.result("count", Verdict.INCONCLUSIVE, f"{why}: {words}")
    if expected is None:
        reason = f"{words}{gone}; --expect-devices says how many there should be"
        return context.result("count", Verdict.UNVERIFIED, reason, value=found, unit="1")
    reason, asked = f"{words}{gone}, {expected} expected", exactly(expected, "--expect-devices")
    return context.judge("count", found == expected, reason, value=found, unit="1", expected=asked)


def _unlisted(context: Context, inventory: Inventory) -> Iterator[Result]:
    """Each GPU that sources name and a list of what the driver serves lacks."""
    for each in inventory.unlisted:
        if each.excuse:
            continue
        name = _name(inventory, each)
        seen = f"{_and(each.sources)} {'names' if len(each.sources) == 1 else 'name'}"
        who = name or f"{each.count} GPU(s) more than {each.missing_in}, which names none apart"
        reason = f"{seen} {who}, and the driver does not list it ({each.missing_in})"
        if name is None:
            reason = f"{seen} {who}"
        if each.doubt:
            doubtful = f"{reason}: {each.doubt}"
            yield context.result("listed", Verdict.INCONCLUSIVE, doubtful, device=name)
            continue
        yield context.judge(
            "listed",
            False,
            reason,
            device=name,
            value="missing",
            expected=exactly("listed", f"the driver's list of GPUs ({each.missing_in})"),
        )


def _name(inventory: Inventory, missing: Unlisted) -> str | None:
    """The device's name in results; None where it is not known which one is missing."""
    if missing.gpu is None:
        return None
    wanted = (missing.gpu.pci, missing.gpu.uuid, missing.gpu.indices)
    names = zip(device_names(inventory.gpus), inventory.gpus, strict=True)
    return next((n for n, gpu in names if (gpu.pci, gpu.uuid, gpu.indices) == wanted), None)


def _and(words: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def _parts(context: Context, name: str, gpu: Gpu) -> Result:
    """Check that equal partitions are complete; no fact states how a GPU should be sliced."""
    target = product_target(gpu)
    of, found = equal_parts(gpu, target), len(gpu.parts)
    if of is None or target is None:
        kinds = Counter(part.profile for part in gpu.parts if part.profile is not None)
        listed = ", ".join(f"{count} x {kind}" for kind, count in kinds.items())
        reason = f"{found} parts{f' ({listed})' if listed else ''}: no fact says how many to expect"
        return context.result("parts", Verdict.UNVERIFIED, reason, device=name)
    numbers = {part.index for part in gpu.parts}
    missing = [str(number) for number in range(of) if number not in numbers]
    reason = f"{found} of {of} parts of {target.value('exec.unit_count') // of} units"
    if found < of and len(missing) == of - found:
        reason = f"{reason}: {' and '.join(f'{name} part {each}' for each in missing)} is missing"
    stated = exactly(of, f"equal parts of {target.id}")
    return context.judge(
        "parts", found == of, reason, device=name, value=found, unit="1", expected=stated
    )


def _target(context: Context) -> Iterator[Result]:
    """Judge the machine's target, which is that of most devices, and each device by its own."""
    targets = {each.name: _device_target(each) for each in context.tested.devices}
    common = Counter(target for target in targets.values() if target is not None).most_common(1)
    usual = common[0][0] if common else None
    device = next(each for each in context.tested.devices if targets[each.name] is usual)
    part = device.facts["part"]
    if part is not None:
        yield _part(context, device, part["name"])
    elif context.tested.wanted is not None:
        yield _compare_with_wanted(context, device, usual, context.tested.wanted)
    elif usual is None:
        product = device.facts["product"] or "this device"
        yield context.result(
            "target",
            Verdict.UNVERIFIED,
            f"{product} matches no known target, so its facts cannot be compared; docs/targets.md "
            "says how to add it",
        )
    else:
        context.tested.target = usual
        note = " (facts of the family only)" if usual.scope is Scope.FAMILY else ""
        yield context.judge(
            "target",
            True,
            f"this machine is {usual.id}{note}",
            value=usual.id,
            expected=exactly("a known target", "docs/targets.md"),
        )
    for each in context.tested.devices:
        target = targets[each.name]
        if target is None or (target.scope is Scope.FAMILY and context.tested.wanted is not None):
            # an unnamed device is compared with the wanted target, or with that of its peers: of
            # another architecture it is another card
            of_peers, arch = context.tested.target, base_name(each.facts["arch"] or "")
            is_another = context.tested.wanted is None and (
                each.facts["product"] is not None
                or (of_peers is not None and arch not in ("", of_peers.arch.name))
            )
            target = target if is_another or of_peers is None else of_peers
        if target is not None:
            yield from _facts(context, each, target)


def _device_target(device: CheckedDevice) -> Target | None:
    """The target of a device, or of the GPU that it is a part of.

    A device with a product's name and less memory or units is that product, and faulty.
    """
    facts = device.facts
    if facts["part"] is not None:
        return _gpu_target(device)
    found = load_targets().get(facts["target"] or "")
    if found is not None:
        return found
    named = named_product(facts["arch_vendor"], facts["arch"], facts["product"])
    if named is not None and falls_short(named, facts["memory_bytes"], facts["unit_count"]):
        return named
    return _gpu_target(device)


def _compare_with_wanted(
    context: Context, device: CheckedDevice, found: Target | None, wanted: Target
) -> Result:
    """Whether the machine is the wanted target; INCONCLUSIVE if no source names the product."""
    arch = device.facts["arch"]
    asked = exactly(wanted.id, "--target")
    if found is wanted:
        reason = f"this machine is {wanted.id}"
        return context.judge("target", True, reason, value=wanted.id, expected=asked)
    same = arch is None or base_name(arch) == wanted.arch.name
    if device.facts["product"] is None and same:
        reason = f"no source states the product, which has to be {wanted.id}"
        return context.result("target", Verdict.INCONCLUSIVE, reason)
    seen = found.id if found is not None else "no known target"
    reason = f"this machine is {seen}, not {wanted.id}"
    return context.judge("target", False, reason, device=device.name, value=seen, expected=asked)


def _gpu_target(device: CheckedDevice) -> Target | None:
    """The target of the GPU that the device is, or is a part of."""
    facts, part = device.facts, device.facts["part"]
    product = facts["product"] if part is None else part["product"]
    share = 1 if part is None else part["of"]
    if facts["arch"] is None:
        return None
    sizes = (
        each * share if share and each is not None else None
        for each in (facts["memory_bytes"], facts["unit_count"])
    )
    return identify(facts["arch_vendor"], facts["arch"], product, *sizes)


def _part(context: Context, device: CheckedDevice, name: str) -> Result:
    """Whether the device is a part of the wanted product; a part alone has no target."""
    whole, wanted = _gpu_target(device), context.tested.wanted
    product = whole.id if whole is not None else "a GPU that matches no known target"
    reason = f"{device.name} is the part {name} of {product}"
    if wanted is None:
        return context.result(
            "target", Verdict.UNVERIFIED, f"{reason}: what is expected of a GPU is not of its parts"
        )
    is_part = whole is wanted
    return context.judge(
        "target",
        is_part,
        reason if is_part else f"{reason}, not of {wanted.id}",
        device=None if is_part else device.name,
        value=whole.id if whole is not None else "no known target",
        expected=exactly(wanted.id, "--target"),
    )


def _facts(context: Context, device: CheckedDevice, target: Target) -> Iterator[Result]:
    """Compare what the device reports with what its target states."""
    facts, part = device.facts, device.facts["part"]
    for name, reported, stated in (
        ("arch", base_name(facts["arch"] or "") or None, target.arch.name),
        ("warp-size", facts["warp_size"], target.arch.warp_size),
    ):
        if reported is not None:
            reason = f"{target.id} states {stated}, the device reports {reported}"
            yield context.judge(
                name,
                reported == stated,
                reason,
                device=device.name,
                value=reported,
                unit=None if isinstance(reported, str) else "1",
                expected=exactly(stated, target.id),
            )
    if facts["capabilities"] is not None:
        yield _capabilities(context, device, target, facts["capabilities"])
    subject = Subject(
        facts["reported"],
        target,
        part["name"] if part is not None else None,
        part["of"] if part is not None else 1,
    )
    source = "the recording" if context.tested.origins else "this machine's files"
    source = source if context.tested.from_files else "this torch"
    for each in compare(subject, device.name, source):
        yield context.result(each.name, **each.fields)


def _capabilities(
    context: Context, device: CheckedDevice, target: Target, made: Sequence[str]
) -> Result:
    missing = sorted(set(target.claims) - set(made))
    reason = f"{target.id} claims {', '.join(target.claims) or 'no capability'}"
    if missing:
        reason = f"{reason}; the backend does not claim {' and '.join(missing)}"
    verdict = Verdict.INCONCLUSIVE if missing else Verdict.PASS
    return context.result(
        "capabilities",
        verdict,
        reason,
        device=device.name,
        value=len(missing),
        unit="1",
        expected=exactly(0, "claims of the target that the backend does not make"),
    )


def _same_kind(context: Context) -> Result:
    """Check that the devices of a node are one product; a minority against a majority fails.

    Only known traits are compared, and not the memory of slices, which may differ in size. A device
    of another architecture may be intended: it is UNVERIFIED.
    """
    devices = context.tested.devices
    odd: list[tuple[CheckedDevice, str, int | None]] = []
    silent: list[str] = []
    compared = False
    for group, trait in _compared_traits(devices):
        stated = [(device, value) for device in group if (value := trait(device)) is not None]
        if not stated:
            continue
        compared = True
        silent += [device.name for device in group if trait(device) is None]
        usual, votes, decided = majority([value for _, value in stated])
        first = next(device for device, value in stated if value == usual)
        peers = votes if decided else None
        for each, value in stated:
            if isinstance(value, str) and is_twice_in_itself(value, str(usual)):
                silent.append(each.name)
            elif value != usual:
                odd.append((each, first.name, peers))
    if odd:
        device, other, peers = odd[0]
        own, theirs = _description(device.facts), _description_of(devices, other)
        both = f"{other} is {theirs} and {device.name} {own}"
        if peers is None and _may_be_two_products(devices, other, device):
            reason = f"{both}: nobody said that they have to be one product"
            return context.result("alike", Verdict.SKIP, reason)
        if peers is None:
            reason = f"{both}; without a majority nobody can say which is wrong"
            return context.result("alike", Verdict.UNVERIFIED, reason)
        reason = f"{device.name} is {own}, unlike its {peers} peers"
        usual_arch = next(each for each in devices if each.name == other).facts["arch"]
        if None not in (device.facts["arch"], usual_arch) and device.facts["arch"] != usual_arch:
            return context.result("alike", Verdict.UNVERIFIED, f"{reason}, which may be meant")
        if all(each.facts["product"] is each.facts["arch"] is None for each in devices):
            reason = f"{reason}; no source says which products they are"
            return context.result("alike", Verdict.INCONCLUSIVE, reason)
        if context.tested.origins and context.tested.machine.inventory().breaks_off:
            reason = f"{reason}; the recording breaks off"
            return context.result("alike", Verdict.INCONCLUSIVE, reason, device=device.name)
        return context.judge(
            "alike",
            False,
            reason,
            device=device.name,
            value=own,
            expected=exactly(theirs, "what most of its peers are"),
        )
    if silent or not compared:
        who = silent[0] if compared else "any of them"
        reason = f"{len(devices)} devices, and it is not known what {who} is"
        return context.result("alike", Verdict.INCONCLUSIVE, reason)
    return context.judge(
        "alike",
        True,
        f"{len(devices)} devices of one kind",
        value=0,
        unit="1",
        expected=exactly(0, "devices unlike their peers"),
    )


def _may_be_two_products(devices: Sequence[CheckedDevice], name: str, other: CheckedDevice) -> bool:
    """Whether no product's name says that both devices are the same."""
    product = next(each.facts["product"] for each in devices if each.name == name)
    return product is None or product != other.facts["product"]


def _compared_traits(
    devices: Sequence[CheckedDevice],
) -> Iterator[tuple[Sequence[CheckedDevice], Callable[[CheckedDevice], Any]]]:
    """The traits that devices of one kind share, each with the devices that it applies to."""
    # the name of a slice is its GPU's, with or without its profile
    yield devices, lambda device: device.facts["product"]
    yield devices, lambda device: device.facts["arch"]
    whole = [device for device in devices if device.facts["part"] is None]
    equal = [each for each in devices if (part := each.facts["part"]) is not None and part["of"]]
    for group in (whole, equal):
        yield group, lambda device: device.facts["memory_bytes"]


def _description_of(devices: Sequence[CheckedDevice], name: str) -> str:
    return _description(next(device.facts for device in devices if device.name == name))
